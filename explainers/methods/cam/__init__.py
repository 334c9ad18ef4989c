"""Class activation maps: weighted sums of a layer's activations."""
