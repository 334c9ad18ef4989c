"""Faithfulness: what becomes of the score where what a map marks is alone, or hidden."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

LEAST = 1e-6
"""Least probability that differences are divided by; and least change of other scores, as a share of them."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """What the model says of each picture of a batch, whole and in parts.

    The tensors are float32. Scores are probabilities where the target has one, and otherwise in the target's own units.

    Attributes:
        area: share of the model's input that each map marks.
        fill: what hides pixels: ``blur`` or ``mean``.
        whole: (N,) the score of the picture.
        kept: (N,) with all hidden but what is marked.
        dropped: (N,) with what is marked hidden.
        turned_dropped: (N,) with the same shape hidden, turned by 180 degrees; None if copies were not tried.
        hidden: (N,) with everything hidden; None if all scores are probabilities, which do not need it.
        copies: (N, 2) what the map's own turned and mirrored copies keep, less what is left without them; None if they
            were not tried.
        stranger: (N,) the same of the map of another picture, NaN where there was none; None if none was tried.
        are_probabilities: (N,) bool: whether the scores are probabilities.
        are_blank: (N,) bool: whether the map has one value everywhere, and marks nothing.
        forwards: forward passes of the model for each map.
        gap: (N,) by how much the sum of the map misses what it should be, as a share of that; None where the method
            promises no sum.
    """

    area: float
    fill: Literal["blur", "mean"]
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
        """(N,): the probability, or by how much another score changes when everything is hidden; never zero."""
        probability = self.whole.clamp_min(LEAST)
        if self.hidden is None:
            return probability
        # Below this the change is rounding.
        least = LEAST * torch.maximum(self.whole.abs(), self.hidden.abs()).clamp_min(torch.finfo(self.whole.dtype).tiny)
        change = torch.maximum((self.whole - self.hidden).abs(), least)
        return torch.where(self.are_probabilities, probability, change)

    @property
    def score(self) -> Tensor:
        """(N,): what the marked part keeps alone, less what is left without it, by `scale`."""
        return (self.kept - self.dropped) / self.scale

    @property
    def copy_scores(self) -> Tensor | None:
        """(N, 2): the same of the map's own turned and mirrored copies."""
        return None if self.copies is None else self.copies / self.scale[:, None]

    @property
    def stranger_scores(self) -> list[float]:
        """The score of the map of another picture on one picture (N = 1); empty without one."""
        if self.stranger is None or bool(self.stranger.isnan()):
            return []
        return (self.stranger / self.scale).tolist()

    @property
    def null_scores(self) -> list[float]:
        """The scores of maps that cannot know one picture (N = 1): copies of its own, and that of another picture."""
        copies = self.copy_scores
        return [*([] if copies is None or bool(self.are_blank) else copies[0].tolist()), *self.stranger_scores]

    def rows(self) -> list["Faithfulness"]:
        """Return that of each picture (N = 1), on the CPU."""
        parts: dict[str, Any] = {name: value.cpu() for name, value in vars(self).items() if isinstance(value, Tensor)}
        return [
            replace(self, **{name: value[row : row + 1] for name, value in parts.items()})
            for row in range(len(self.whole))
        ]
