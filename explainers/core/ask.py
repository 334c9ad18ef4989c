"""Questions about pictures: targets, and contrasts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from seewhy.explainers.errors import TargetError
from seewhy.explainers.imaging.geometry import Geometry

MOST_PROBABLE = torch.iinfo(torch.int64).min
"""As a target: the most probable one of that picture."""

NO_CONTRAST = torch.iinfo(torch.int64).min
"""No contrast: only the target's score counts."""


class SpatialTarget(Protocol):
    """A target that lies in the picture, such as a region of a segmenter or a box of a detector."""

    @property
    def label(self) -> int | None:
        """The index of the class; None if it depends on the model's outputs."""

    @property
    def is_plural(self) -> bool:
        """Whether it stands for several targets, depending on the outputs; `tasks.pose.each_ask` lists them."""

    def placed(self, geometry: Geometry) -> Self:
        """Return the target in the model's input, given the part of the picture that the model sees.

        Raises:
            TargetError: the model does not see it.
        """

    def mirrored(self) -> Self:
        """Return the target of the mirrored picture."""


Targets: TypeAlias = Tensor | tuple[SpatialTarget | None, ...]
"""(N,) integers, the task's numbers of its targets; or N targets that are places in the pictures."""


@dataclass(frozen=True, eq=False)
class Ask:
    """The question about each picture of a batch, still unchecked.

    Attributes:
        targets: see `Targets`, or `MOST_PROBABLE` (None in a tuple); None for the most probable target of each picture.
        against: (N,) integers to contrast the targets with, or `NO_CONTRAST`; None for no contrast at all.
        function: maps outputs (N, ...) to scores (N,), which are explained instead of targets; None for targets.
    """

    targets: Targets | None = None
    against: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def single(cls, target: Any = None, against: int | None = None) -> Self:
        """Return the question about one picture; by default its most probable target, without a contrast."""
        contrasts = None if against is None else torch.tensor([against])
        if target is None:
            return cls(None, contrasts)
        return cls(torch.tensor([target]) if isinstance(target, int) else (target,), contrasts)

    @classmethod
    def stacked(cls, asks: Sequence["Ask"]) -> Self:
        """Return the question about a batch, from the questions about each picture (N = 1); either all or none are a
        function."""
        against = _stacked([ask.against for ask in asks], NO_CONTRAST)
        targets = [ask.targets for ask in asks]
        if any(isinstance(part, tuple) for part in targets):
            return cls(tuple(part[0] if isinstance(part, tuple) else None for part in targets), against)
        numbers = [part for part in targets if not isinstance(part, tuple)]
        return cls(_stacked(numbers, MOST_PROBABLE), against, asks[0].function)

    def rows(self, rows: slice) -> Self:
        """Return the question about some of the pictures."""
        targets = None if self.targets is None else self.targets[rows]
        return replace(self, targets=targets, against=None if self.against is None else self.against[rows])

    @property
    def contrast(self) -> int | None:
        """The contrast of one picture."""
        return None if self.against is None else int(self.against)

    @property
    def numbers(self) -> Tensor | None:
        """The targets of a task that numbers them.

        Raises:
            TargetError: they lie in the pictures.
        """
        if isinstance(self.targets, tuple):
            raise TargetError("The model has no regions; name a class or a value.")
        return self.targets

    def in_pictures(self, count: int, of_class: Callable[[int], SpatialTarget]) -> tuple[SpatialTarget | None, ...]:
        """Return the targets of `count` pictures as targets that lie in them; None for the most probable one.

        Args:
            count: number of pictures.
            of_class: returns the target for a class index.
        """
        if isinstance(self.targets, tuple):
            return self.targets
        numbers = [MOST_PROBABLE] * count if self.targets is None else self.targets.tolist()
        return tuple(None if number == MOST_PROBABLE else of_class(number) for number in numbers)

    @property
    def is_independent(self) -> bool:
        """Whether the outputs do not decide what is explained: all targets are numbers."""
        return isinstance(self.targets, Tensor) and self.function is None and not (self.targets == MOST_PROBABLE).any()

    @property
    def is_plural(self) -> bool:
        """Whether a target stands for several."""
        return isinstance(self.targets, tuple) and any(target and target.is_plural for target in self.targets)

    def placed(self, geometry: Geometry) -> Self:
        """Return the question in coordinates of the model's input; errors are those of `SpatialTarget.placed`."""
        if not isinstance(self.targets, tuple):
            return self
        return replace(self, targets=tuple(target and target.placed(geometry) for target in self.targets))

    def mirrored(self) -> Self:
        """Return the question about the mirrored pictures."""
        if not isinstance(self.targets, tuple):
            return self
        return replace(self, targets=tuple(target and target.mirrored() for target in self.targets))


def _stacked(numbers: Sequence[Tensor | None], absent: int) -> Tensor | None:
    if all(number is None for number in numbers):
        return None
    return torch.cat([torch.tensor([absent]) if number is None else number for number in numbers])


DEFAULT_ASK = Ask()
"""The most probable target of each picture."""
