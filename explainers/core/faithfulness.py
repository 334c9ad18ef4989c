"""Faithfulness: scores of the marked part alone, and without it."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from seewhy.explainers.core.choices import LIKELY, Fill

Batch = TypeVar("Batch", bound=Any)

LEAST = 1e-6
"""Minimum probability that differences are divided by, and minimum relative change of other scores."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Scores of each whole picture of a batch, and of parts of it.

    The tensors are float32. Scores are probabilities if the target has one, otherwise in the target's own units.

    Attributes:
        area: share of the model's input that each map marks.
        fill: replacement of hidden pixels: ``blur`` or ``mean``.
        whole: (N,) the score of the picture.
        kept: (N,) with everything hidden except the marked part.
        dropped: (N,) with the marked part hidden.
        turned_dropped: (N,) with the same shape, rotated by 180 degrees, hidden; None if copies were not tried.
        hidden: (N,) with everything hidden; None if all scores are probabilities, which do not need it.
        copies: (N, 2) kept minus dropped for the rotated and the mirrored copy of the map; None if they were not tried.
        stranger: (N,) the same for the map of another picture; NaN without such a map; None if not tried.
        are_probabilities: (N,) bool: whether the scores are probabilities.
        are_blank: (N,) bool: whether the map has the same value everywhere, and so marks nothing.
        forwards: forward passes per map.
        gap: (N,) relative difference between the sum of the map and its expected sum; None if the method has no
            expected sum.
    """

    area: float
    fill: Fill
    whole: Tensor
    kept: Tensor
    dropped: Tensor
    turned_dropped: Tensor | None
    hidden: Tensor | None
    copies: Tensor | None
    stranger: Tensor | None
    are_probabilities: Tensor
    are_blank: Tensor
    forwards: int
    gap: Tensor | None = None

    @property
    def scale(self) -> Tensor:
        """(N,): the probability, or the change of another score when everything is hidden; never zero."""
        probability = self.whole.clamp_min(LEAST)
        if self.hidden is None:
            return probability
        # A smaller change is rounding.
        least = LEAST * torch.maximum(self.whole.abs(), self.hidden.abs()).clamp_min(torch.finfo(self.whole.dtype).tiny)
        change = torch.maximum((self.whole - self.hidden).abs(), least)
        return torch.where(self.are_probabilities, probability, change)

    @property
    def score(self) -> Tensor:
        """(N,): kept minus dropped, divided by `scale`."""
        return (self.kept - self.dropped) / self.scale

    def left(self, score: Tensor) -> Tensor:
        """Return the share (N,) of the picture's score that is left at another score (N,); above 1 if it is higher."""
        return 1 - (self.whole - score) / self.scale

    @property
    def is_likely(self) -> bool:
        """Whether other scores may be compared with those of this picture (N = 1), whose target is probable enough."""
        return bool(are_likely(self.whole, self.are_probabilities))

    @property
    def copy_scores(self) -> Tensor | None:
        """(N, 2): the same for the rotated and the mirrored copy of the map."""
        return None if self.copies is None else self.copies / self.scale[:, None]

    @property
    def stranger_scores(self) -> list[float]:
        """The score of the map of another picture on one picture (N = 1); empty without one."""
        if self.stranger is None or bool(self.stranger.isnan()):
            return []
        return (self.stranger / self.scale).tolist()

    @property
    def null_scores(self) -> list[float]:
        """The scores, on one picture (N = 1), of the copies of its map and of the map of another picture."""
        copies = self.copy_scores
        return [*([] if copies is None or bool(self.are_blank) else copies[0].tolist()), *self.stranger_scores]

    def rows(self) -> list["Faithfulness"]:
        """Return the faithfulness of each picture (N = 1), on the CPU."""
        return tensor_rows(self, len(self.whole))


def are_likely(wholes: Tensor, are_probabilities: Tensor) -> Tensor:
    """Return whether shares of the scores of whole pictures (N,) may be compared and averaged, (N,) bool."""
    return ~are_probabilities | (wholes >= LIKELY)


def tensor_rows(batch: Batch, count: int) -> list[Batch]:
    """Return a dataclass of each of `count` pictures, from one whose tensors have a row for each, on the CPU."""
    parts: dict[str, Any] = {name: value.cpu() for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return [replace(batch, **{name: value[row : row + 1] for name, value in parts.items()}) for row in range(count)]
