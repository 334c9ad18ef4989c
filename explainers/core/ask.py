"""What is asked of pictures: targets, and what they are contrasted with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

MOST_PROBABLE = torch.iinfo(torch.int64).min
"""In targets: the most probable one of that picture."""

NO_CONTRAST = torch.iinfo(torch.int64).min
"""Among what targets are contrasted with: nothing; the target's score alone counts."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked of each picture of a batch, still unchecked.

    Attributes:
        targets: (N,) integers, the numbers that the task gives to what can be explained, or `MOST_PROBABLE`; None for
            the most probable target of each picture.
        against: (N,) integers to contrast the targets with, or `NO_CONTRAST`; None for no contrast at all.
        function: from outputs (N, ...) to scores (N,), which are explained in place of targets; None for targets.
    """

    targets: Tensor | None = None
    against: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def single(cls, target: int | None = None, against: int | None = None) -> Self:
        """Return what is asked of one picture; by default its most probable target, without a contrast."""
        targets, contrasts = (None if number is None else torch.tensor([number]) for number in (target, against))
        return cls(targets, contrasts)

    @classmethod
    def stacked(cls, asks: Sequence["Ask"]) -> Self:
        """Return what is asked of a batch, from what is asked of each picture (N = 1), all of one function or none."""
        targets, against = [ask.targets for ask in asks], [ask.against for ask in asks]
        return cls(_stacked(targets, MOST_PROBABLE), _stacked(against, NO_CONTRAST), asks[0].function)

    def rows(self, rows: slice) -> Self:
        """Return what is asked of some of the pictures."""
        targets, against = (None if numbers is None else numbers[rows] for numbers in (self.targets, self.against))
        return replace(self, targets=targets, against=against)


def _stacked(numbers: Sequence[Tensor | None], absent: int) -> Tensor | None:
    if all(number is None for number in numbers):
        return None
    return torch.cat([torch.tensor([absent]) if number is None else number for number in numbers])


DEFAULT_ASK = Ask()
"""The most probable target of each picture."""
