"""Selection of the layer of a CAM: surveys of a model, and the layout of its tensors in the picture."""
