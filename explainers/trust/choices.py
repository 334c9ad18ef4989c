"""The choices of evaluations.

This module imports no PyTorch, because the help and the completion of commands use it.
"""

from typing import Literal

Aspect = Literal["faithfulness", "localisation", "complexity", "stability", "randomisation"]
"""The aspects of a map that metrics measure."""

Better = Literal["higher", "lower"]
"""Which values of a metric are better."""

DEFAULT_METRICS = ("insertion", "deletion", "road", "sensitivity-n", "sparseness")

CONTROLS = ("random", "edges", "centre")
"""Methods that any other method should beat."""
