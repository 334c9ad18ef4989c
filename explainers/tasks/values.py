"""Regression: each output is a value; maps explain what raises or lowers it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.ask import MOST_PROBABLE, NO_CONTRAST, Ask
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import ModelOutputError, TargetError, listed, near_matches
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.tasks.choices import DEFAULT_METHOD

Direction = Literal["up", "down"]
"""The explained direction of a value: its increase, or its decrease."""

_NAMED = 5
"""Maximum number of values that an error names."""


@dataclass(frozen=True)
class Values(Task):
    """Regression: measures something that a picture shows, such as an age, a distance or an angle.

    Outputs are values (N, K), in the units of the training. A target K stands for the increase of value K; ``~K``, the
    complement of integers in Python, for its decrease. Without a target, the first value is explained.

    Attributes:
        labels: one per value; empty for ``output 0``, ``output 1`` and so on.
        units: one per value, such as ``years``; empty where none are known.
    """

    labels: Sequence[str] = ()
    units: Sequence[str] = ()

    default_method: ClassVar[str] = DEFAULT_METHOD

    @property
    def objectives(self) -> type["ValueObjective"]:
        """The kind of its objectives."""
        return ValueObjective

    def outputs(self, raw: Any) -> Tensor:
        """Return the values (N, K) in the module's result; a result (N,) has one value."""
        tensors = [value for value in tree_flatten(raw)[0] if isinstance(value, Tensor) and value.is_floating_point()]
        if len(tensors) != 1 or tensors[0].ndim not in (1, 2) or 0 in tensors[0].shape:
            shapes = ", ".join(str(tuple(value.shape)) for value in tensors) or "none"
            raise ModelOutputError(
                f"Expected values of shape (N, K) or (N,) from the model, found {shapes} in its {type(raw).__name__}; "
                "wrap the model so that it returns its values alone."
            )
        return tensors[0].reshape(len(tensors[0]), -1)

    def objective(self, outputs: Tensor, ask: Ask) -> "ValueObjective":
        """Return the checked values to explain."""
        targets = torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device)
        if ask.numbers is not None:
            numbers = ask.numbers.to(outputs.device, torch.int64, non_blocking=outputs.is_cuda)
            targets = torch.where(numbers == MOST_PROBABLE, targets, numbers)
        _check(_places(targets), outputs.shape[1])
        if ask.against is None:
            return ValueObjective(targets)
        against = ask.against.to(outputs.device, torch.int64, non_blocking=outputs.is_cuda)
        is_contrasted, places = against != NO_CONTRAST, _places(against)
        _check(torch.where(is_contrasted, places, 0), outputs.shape[1])
        same = is_contrasted & (_places(targets) == places)
        fault = "The model has one value, so there is no other to contrast it with."
        if outputs.shape[1] > 1:
            fault = "A value is contrasted with itself; name two values."
        require(~same.any(), lambda: TargetError(fault))
        opposite = is_contrasted & (against < 0) & (targets >= 0)
        require(~opposite.any(), lambda: TargetError("A contrast has the direction of its target; omit its ':down'."))
        # Evidence that lowers a value rather than another one lowers its lead: both have the direction of the target.
        directed = torch.where(targets < 0, ~places, places)
        return ValueObjective(targets, torch.where(is_contrasted, directed, against))

    def target(self, target: int | str) -> int:
        """Return the number of a value: its index, ``output:INDEX`` or its label; with ``:down``, that of its
        decrease."""
        name, direction = str(target).strip(), "up"
        if name not in self.labels and name.rpartition(":")[2] in ("up", "down"):
            name, _, direction = name.rpartition(":")
        places = [place for place, label in enumerate(self.labels) if label.casefold() == name.casefold()]
        if len(places) > 1:
            raise TargetError(f"The label {name!r} names the values {', '.join(map(str, places))}; give output:INDEX.")
        digits = name.removeprefix("output:")
        if not places and not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
            names = [f"output:{place}" for place in range(len(self.labels))]
            hint = near_matches(name, [*self.labels, *names])
            some = listed(self.labels[:_NAMED]) + (", …" if len(self.labels) > _NAMED else "")
            hint = hint or f"There are {some or 'output:INDEX'}; add :down to explain what lowers a value."
            raise TargetError(f"The model has no value {name!r}. {hint}")
        place = places[0] if places else int(digits)
        if place >= len(self.labels):
            raise _outside(place, len(self.labels))
        return place if direction == "up" else ~place

    def describe(self, outputs: Tensor, targets: Sequence[int] = (), top: int = 5) -> "tuple[ValuePrediction, ...]":
        """Return the targets of a picture with values (K,), and then its first `top` values."""
        values = outputs.detach().float().tolist()
        return tuple(self._prediction(number, values) for number in (*targets, *range(min(top, len(values)))))

    def _prediction(self, number: int, values: Sequence[float]) -> "ValuePrediction":
        place = max(number, ~number)
        label = self.labels[place] if self.labels else f"output {place}"
        unit = self.units[place] if self.units else ""
        return ValuePrediction(place, label, values[place], unit, "up" if number >= 0 else "down")


@dataclass(frozen=True, eq=False)
class ValueObjective(Objective):
    """For each picture a value, or its negative, or its lead over another value."""

    is_linear: ClassVar[bool] = True

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the target's value of each row of values (N, K), minus that of its contrast."""
        outputs = outputs.float()
        scores = _signed(outputs, self.targets)
        if self.against is None:
            return scores
        return scores - torch.where(self.is_contrasted, _signed(outputs, self.against), 0)


@dataclass(frozen=True)
class ValuePrediction:
    """One value.

    Attributes:
        index: its place among the outputs.
        label: the name of the value.
        value: the model's value, in the unit.
        unit: empty if unknown.
        direction: direction of a target: whether its increase or its decrease is explained.
    """

    probability: ClassVar[None] = None  # a value has none

    index: int
    label: str
    value: float
    unit: str = ""
    direction: Direction = "up"

    @property
    def name(self) -> str:
        """The target, ``output:INDEX`` or ``output:INDEX:down``."""
        return f"output:{self.index}" + (":down" if self.direction == "down" else "")

    @property
    def score(self) -> float:
        """The value."""
        return self.value

    @property
    def text(self) -> str:
        """The value with its unit, and a note if its decrease is explained."""
        return _with_unit(f"{self.value:.4g}", self.unit) + (" (what lowers it)" if self.direction == "down" else "")

    @property
    def verb(self) -> str:
        """The verb for the explained evidence."""
        return "raises" if self.direction == "up" else "lowers"

    @property
    def sign(self) -> int:
        """-1 if its decrease is explained; otherwise 1."""
        return 1 if self.direction == "up" else -1

    def reading(self, score: float) -> str:
        """Return a value with its unit."""
        return _with_unit(f"{score:.4g}", self.unit)

    lead = reading

    def change(self, before: Self) -> str:
        """Return the change of the value."""
        return _with_unit(f"{self.value - before.value:+.3g}", self.unit)


def _places(numbers: Tensor) -> Tensor:
    """Return the indices of the values of targets, whatever their direction."""
    return torch.maximum(numbers, ~numbers)


def _signed(outputs: Tensor, numbers: Tensor) -> Tensor:
    """Return the value (N,) of each number, negative if its decrease is explained."""
    places = _places(numbers).clamp(0, outputs.shape[1] - 1)  # a check on a GPU is read later
    values = outputs.gather(1, places[:, None])[:, 0]
    return torch.where(numbers < 0, -values, values)


def _check(places: Tensor, count: int) -> None:
    beyond = places >= count
    require(~beyond.any(), lambda: _outside(int(places[beyond][0]), count))


def _outside(place: int, count: int) -> TargetError:
    return TargetError(f"Output {place} is out of range: the model has outputs 0 to {count - 1}.")


def _with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number
