"""The choices of proofs, and their limits.

This module imports no PyTorch, because the help and the completion of commands use it.
"""

from collections.abc import Collection
from typing import Literal, get_args

Extent = bool | Literal["full"]
"""No proof, a proof, or one that also tests rotated and mirrored copies of the map."""

Fill = Literal["blur", "mean"]
"""Replacement of hidden pixels: the blurred picture, or the mean colour, which is zero in normalised units."""

FILLS: tuple[Fill, ...] = get_args(Fill)

AREA = 0.25
"""Share of the model's input that a map marks."""

AREAS = (0.01, 0.9)
"""The minimum and the maximum of that share."""

LIKELY = 0.3
"""Minimum probability of a target whose scores are compared with others, or averaged. Scores are shares of the
probability: those of an improbable target may be of any size."""


def verdict_of(grade: str | None, warnings: Collection[str]) -> str:
    """Return a grade for people, given the codes of a proof's warnings; see `Proof`."""
    is_open = grade == "not supported" and "fill-hides-little" in warnings
    return "inconclusive" if is_open else grade or "not graded"
