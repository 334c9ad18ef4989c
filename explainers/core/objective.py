"""What is explained: for each picture one score, or the lead of one score over another."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from seewhy.explainers.core.task import Ask

MOST_PROBABLE = torch.iinfo(torch.int64).min
"""In targets: the most probable one of that picture."""

NO_CONTRAST = torch.iinfo(torch.int64).min
"""Among what targets are contrasted with: nothing; the target's score alone counts."""


@dataclass(frozen=True, eq=False)
class Objective(ABC):
    """The score of each picture of a batch, whose reasons a map shows; a task makes it.

    Attributes:
        targets: (N,) int64, what is explained of each picture, by the task's numbers.
        against: (N,) int64, what the target is contrasted with, or `NO_CONTRAST`; None where there is no contrast.
    """

    targets: Tensor
    against: Tensor | None = None

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the target's value in each row of outputs (N, ...), less that of its contrast.

        The gradient of their sum holds each picture's own.
        """

    @abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return outputs (N, ...) as probabilities (N, ...) float32; `scores` takes these too."""

    @abstractmethod
    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of `probabilities`."""

    @abstractmethod
    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,) float32: the mean value of the `count` targets whose values are nearest to the target's.

        Raises:
            TargetError: there is no other target.
        """

    @property
    def ask(self) -> Ask:
        """The same objective, to be asked of other pictures."""
        return Ask(self.targets, self.against)

    @property
    def alone(self) -> Self:
        """The objective without its contrast."""
        return replace(self, against=None)

    @property
    def contrast(self) -> Self:
        """The objective of what the targets are contrasted with; where there is nothing, of the target itself."""
        if self.against is None:
            return self
        return replace(self, targets=torch.where(self.is_contrasted, self.against, self.targets), against=None)

    @property
    def is_contrasted(self) -> Tensor:
        """(N,) bool: which targets are contrasted with something."""
        if self.against is None:
            return torch.zeros_like(self.targets, dtype=torch.bool)
        return self.against != NO_CONTRAST

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the objective of a batch that was cut into parts, from those of the parts."""
        against = [part.against for part in parts if part.against is not None]
        return replace(
            parts[0],
            targets=torch.cat([part.targets for part in parts]),
            against=torch.cat(against) if against else None,
        )

    def rows(self, pictures: Tensor) -> Self:
        """Return the objective of a batch whose rows are copies of these pictures of the first batch.

        Args:
            pictures: (R,) int64 indices.
        """
        against = None if self.against is None else self.against[pictures]
        return replace(self, targets=self.targets[pictures], against=against)
