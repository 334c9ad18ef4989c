"""What can be asked of a model's outputs."""
