"""Methods for transformers: attention and its gradients, and relevance through attention."""
