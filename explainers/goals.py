"""What is explained: for each picture the logit of a class, or its lead over the logit of another one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.errors import TargetError

MOST_PROBABLE = torch.iinfo(torch.int64).min
"""In targets: the most probable class of that picture."""


@dataclass(frozen=True, eq=False)
class Goal:
    """The score of each picture of a batch, whose reasons a map shows.

    Attributes:
        targets: (N,) int64, the explained class of each picture.
        against: (N,) int64, the class that it is contrasted with; None for the target's logit alone.
    """

    targets: Tensor
    against: Tensor | None = None

    def scores(self, logits: Tensor) -> Tensor:
        """Return (N,) float32: the target's logit of each row of logits (N, K), less that of its contrast.

        The gradient of their sum holds each picture's own.
        """
        logits = logits.float()
        found = logits.gather(1, self.targets[:, None])[:, 0]
        if self.against is not None:
            found = found - logits.gather(1, self.against[:, None])[:, 0]
        return found

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
        against: (N,) integers; None for no contrast.

    Raises:
        TargetError: an index outside 0..K-1; or a class contrasted with itself.
    """
    chosen = logits.detach().argmax(dim=1)
    if targets is not None:
        targets = targets.to(device=logits.device, dtype=torch.int64)
        chosen = _checked(torch.where(targets == MOST_PROBABLE, chosen, targets), logits)
    if against is None:
        return Goal(chosen)
    contrast = _checked(against, logits)
    same = chosen == contrast
    if bool(same.any()):
        index = int(chosen[same][0])
        raise TargetError(f"Class {index} is contrasted with itself; name two classes.")
    return Goal(chosen, contrast)


def _checked(targets: Tensor, logits: Tensor) -> Tensor:
    classes = logits.shape[1]
    outside = (targets < 0) | (targets >= classes)
    if bool(outside.any()):
        first = int(targets[outside][0])
        raise TargetError(f"Class {first} is out of range: the model has classes 0 to {classes - 1}.")
    # A copy, for autograd keeps it, and cannot keep a tensor made in inference mode.
    return targets.to(device=logits.device, dtype=torch.int64, copy=True)
