"""What a proof offers to choose from, and its limits.

It imports no PyTorch, because the help and the completion of commands use it.
"""

from typing import Literal, get_args

Extent = bool | Literal["full"]
"""No proof, a proof, or one that also tests the map's own turned and mirrored copies."""

Fill = Literal["blur", "mean"]
"""What hides pixels: the picture blurred, or the mean colour, zero in normalised units."""

FILLS: tuple[Fill, ...] = get_args(Fill)

AREA = 0.25
"""Share of the model's input that a map marks."""

AREAS = (0.01, 0.9)
"""The least and the most that it can mark."""
