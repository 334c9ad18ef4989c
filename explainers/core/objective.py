"""Objectives: for each picture the score that is explained, or the lead of one score over another."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NoReturn, Self

import torch
from torch import Tensor

from seewhy.explainers.core.ask import NO_CONTRAST, Ask, SpatialTarget, Targets
from seewhy.explainers.errors import UnsuitableModelError

_NO_CLASSES = "The method compares class probabilities, which values and custom scores do not have; use gradcam."
_NO_REGIONS = "The method needs a segmenter, because only segmenters have regions; use rise."

ONE_CLASS = "The method compares classes, but the model has only one; use gradcam."
"""The message of `Objective.nearest` if there is no other target."""

_REFUSALS = {
    "log_probabilities": _NO_CLASSES,
    "nearest": _NO_CLASSES,
    "similarity": "The method needs a detector; use rise.",
    "region": _NO_REGIONS,
    "loss": _NO_REGIONS,
}
"""The messages about members of an objective that only some tasks have."""


@dataclass(frozen=True, eq=False)
class Objective(ABC):
    """The explained score of each picture of a batch; a task makes it. Its tensors have a row for each picture.

    Attributes:
        targets: (N,) int64, the target of each picture, in the task's numbering.
        against: (N,) int64, the contrast of each target, or `NO_CONTRAST`; None without any contrast.
        is_linear: whether `scores` is linear in the outputs, so that its gradient is the same for all outputs.
    """

    is_linear: ClassVar[bool] = False

    targets: Tensor
    against: Tensor | None = None

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the target's value in each row of outputs (N, ...), minus that of its contrast.

        The gradient of their sum holds each picture's own.
        """

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return outputs (N, ...) as probabilities (N, ...) float32, which `scores` also accepts.

        Outputs that are not logits, such as values with a unit, are returned as they are.
        """
        return outputs.float()

    @property
    def are_probabilities(self) -> Tensor:
        """(N,) bool: whether the `scores` of `probabilities` are probabilities themselves, in [0, 1]."""
        return torch.zeros_like(self.targets, dtype=torch.bool)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of `probabilities`.

        Raises:
            UnsuitableModelError: the model gives no probabilities.
        """
        _refuse("log_probabilities")

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,) float32: the mean value of the `count` other targets nearest in value to the target.

        Raises:
            UnsuitableModelError: there is no other target.
        """
        _refuse("nearest")

    def rivals(self, outputs: Tensor) -> Tensor | None:
        """Return (N, K) bool: which classes of outputs (N, K) compete with the target; the contrast alone, if any.

        Labels that do not exclude each other have no rivals.

        Returns:
            The rivals; None where the targets are not classes.
        """
        return None

    def similarity(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32 in [0, 1]: how similar the explained box is to the most similar one in outputs (N, ...).

        Raises:
            UnsuitableModelError: the model detects no boxes.
        """
        _refuse("similarity")

    @property
    def region(self) -> Tensor:
        """(N, h, w) bool: the explained part of each picture, on a grid of the model's whole input.

        Raises:
            UnsuitableModelError: the targets are not regions.
        """
        _refuse("region")

    def loss(self, outputs: Tensor, before: Tensor) -> Tensor:
        """Return (N,) float32: the loss of probability of the targets, averaged over their regions.

        Args:
            outputs: (N, ...).
            before: likewise, from before the loss; where the target has become more probable, the loss is 0.

        Raises:
            UnsuitableModelError: the targets are not regions.
        """
        _refuse("loss")

    @classmethod
    def must_have(cls, member: str) -> None:
        """Raise an error if objectives of this kind lack a member that only some tasks have.

        Args:
            member: ``region``, ``similarity``, ``nearest`` or ``log_probabilities``.

        Raises:
            UnsuitableModelError: they lack it; the member itself would raise the same error.
        """
        if getattr(cls, member) is getattr(Objective, member):
            _refuse(member)

    @property
    def ask_targets(self) -> Targets:
        """The same targets, to ask again."""
        return self.targets

    @property
    def first(self) -> int | SpatialTarget | None:
        """The target of the first picture."""
        target = self.ask_targets[0]
        return int(target) if isinstance(target, Tensor) else target

    @property
    def ask(self) -> Ask:
        """The same targets and contrasts, for other pictures."""
        return Ask(self.ask_targets, self.against)

    @property
    def alone(self) -> Self:
        """The objective without its contrast."""
        return replace(self, against=None)

    @property
    def contrast(self) -> Self:
        """The objective of the contrasts; without a contrast, of the target itself."""
        if self.against is None:
            return self
        return replace(self, targets=torch.where(self.is_contrasted, self.against, self.targets), against=None)

    @property
    def is_contrasted(self) -> Tensor:
        """(N,) bool: which targets have a contrast."""
        if self.against is None:
            return torch.zeros_like(self.targets, dtype=torch.bool)
        return self.against != NO_CONTRAST

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the objective of a batch from those of its parts."""
        return replace(
            parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0]._per_picture}
        )

    def rows(self, pictures: Tensor) -> Self:
        """Return the objective of a batch whose rows are copies of pictures of this one.

        Args:
            pictures: (R,) int64, the index of each row's picture.
        """
        return replace(self, **{name: getattr(self, name)[pictures] for name in self._per_picture})

    @property
    def _per_picture(self) -> list[str]:
        """The fields that are tensors."""
        return [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]


def _refuse(member: str) -> NoReturn:
    raise UnsuitableModelError(_REFUSALS[member])
