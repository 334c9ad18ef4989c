"""Tasks: the possible targets in a model's outputs."""
