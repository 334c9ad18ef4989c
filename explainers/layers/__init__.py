"""Which layer a CAM reads: surveys of a model, and where the axes of its tensors lie in the picture."""
