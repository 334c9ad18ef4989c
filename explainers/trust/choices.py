"""Names that options of evaluations default to. Without PyTorch: the help of commands names them."""

DEFAULT_METRICS = ("insertion", "deletion", "road", "sensitivity-n", "sparseness")

CONTROLS = ("random", "edges", "centre")
"""The methods that any other should beat."""
