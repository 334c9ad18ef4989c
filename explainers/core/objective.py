"""What is explained: for each picture the logit of a class, or its lead over the logit of another one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seewhy.explainers.errors import TargetError
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.tasks.classification import outside

MOST_PROBABLE = torch.iinfo(torch.int64).min
"""In targets: the most probable class of that picture."""

NO_CONTRAST = torch.iinfo(torch.int64).min
"""Among the classes that targets are contrasted with: none; the target's logit alone counts."""


@dataclass(frozen=True, eq=False)
class Goal:
    """The score of each picture of a batch, whose reasons a map shows.

    Attributes:
        targets: (N,) int64, the explained class of each picture.
        against: (N,) int64, the class that it is contrasted with, or `NO_CONTRAST`; None where there is no contrast.
    """

    targets: Tensor
    against: Tensor | None = None

    def scores(self, logits: Tensor) -> Tensor:
        """Return (N,) float32: the target's logit of each row of logits (N, K), less that of its contrast.

        The gradient of their sum holds each picture's own.
        """
        logits = logits.float()
        found = logits.gather(1, self.targets[:, None])[:, 0]
        if self.against is None:
            return found
        others = logits.gather(1, self.against.clamp_min(0)[:, None])[:, 0]
        return found - torch.where(self.against == NO_CONTRAST, 0, others)

    @classmethod
    def joined(cls, goals: Sequence["Goal"]) -> "Goal":
        """Return the goal of a batch that was cut into parts, given those of the parts."""
        against = [goal.against for goal in goals if goal.against is not None]
        return cls(torch.cat([goal.targets for goal in goals]), torch.cat(against) if against else None)

    def rows(self, pictures: Tensor) -> "Goal":
        """Return the goal of a batch whose rows are copies of these pictures of the first batch.

        Args:
            pictures: (R,) int64 indices.
        """
        return Goal(self.targets[pictures], None if self.against is None else self.against[pictures])


def goal_of(logits: Tensor, targets: Tensor | None, against: Tensor | None = None) -> Goal:
    """Return the goal that was asked for, checked, on the logits' device.

    Args:
        logits: (N, K).
        targets: (N,) integers, or `MOST_PROBABLE`; None for the most probable class of each picture.
        against: (N,) integers, or `NO_CONTRAST`; None for no contrast at all.

    Raises:
        TargetError: an index outside 0..K-1; or a class contrasted with itself.
    """
    chosen = logits.detach().argmax(dim=1)
    if targets is not None:
        targets = targets.to(logits.device, torch.int64, non_blocking=logits.is_cuda)
        chosen = _checked(targets, targets == MOST_PROBABLE, chosen, logits.shape[1])
    if against is None:
        return Goal(chosen)
    against = against.to(logits.device, torch.int64, non_blocking=logits.is_cuda)
    contrast = _checked(against, against == NO_CONTRAST, against, logits.shape[1])
    same = chosen == contrast
    require(~same.any(), lambda: contrasted_with_itself(int(chosen[same][0]), logits.shape[1]))
    return Goal(chosen, contrast)


def _checked(classes: Tensor, free: Tensor, others: Tensor, count: int) -> Tensor:
    """Return classes, and others where they are free; none is an index that a model of so many classes lacks."""
    beyond = ((classes < 0) | (classes >= count)) & ~free
    require(~beyond.any(), lambda: outside(int(classes[beyond][0]), count))
    # Within bounds, for a condition on a GPU is looked at later; a copy, for autograd cannot keep an inference tensor.
    return torch.where(free, others, classes.clamp(0, count - 1))


def contrasted_with_itself(index: int, count: int) -> TargetError:
    """Return the error that tells of a class, of so many, that is contrasted with itself."""
    if count == 1:
        return TargetError("The model has one logit, so there is no other class to contrast its class with.")
    return TargetError(f"Class {index} is contrasted with itself; name two classes.")
