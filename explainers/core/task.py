"""What can be asked of a model: a task reads its outputs, turns them into scores, and describes them to people."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, cast, runtime_checkable

from torch import Tensor

from seewhy.explainers.core.ask import Ask, SpatialTarget
from seewhy.explainers.core.attribution import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.errors import OptionError, TargetError, at_fault
from seewhy.explainers.imaging.geometry import Geometry


class Prediction(Protocol):
    """What a model says of one thing that can be asked of it, such as a class or a value; a dataclass.

    Its fields are what documents give of it.
    """

    @property
    def index(self) -> int:
        """Its place among the model's outputs."""

    @property
    def label(self) -> str:
        """What it is called."""

    @property
    def name(self) -> int | str:
        """What a user names to ask about it."""

    @property
    def score(self) -> float:
        """The model's output, which is explained."""

    @property
    def probability(self) -> float | None:
        """In [0, 1]; None where the model gives none."""

    @property
    def text(self) -> str:
        """What the model says, for a person: ``37.1%``, ``41.2 years``."""

    def reading(self, score: float) -> str:
        """Return what a score like the explained one, of probabilities, reads like: ``37%``, ``41.2 years``."""

    def change(self, before: Self) -> str:
        """Return how far this is from an earlier one of the same index, for a person: ``+3.2 points``."""


@runtime_checkable
class Located(Protocol):
    """A prediction that lies in the picture, such as a box."""

    def located(self, geometry: Geometry) -> Self:
        """Return it in pixels of the upload, given the part of it that the model sees."""


class Task(Protocol):
    """What a model was trained for.

    Methods know a task by this protocol alone: they run the model, take the `outputs`, and explain the scores of an
    `Objective`. Outputs are one tensor with a row for each picture; the task says what its other axes are.
    """

    @property
    def default_method(self) -> str:
        """The method that explains where none is named."""

    def outputs(self, raw: Any) -> Tensor:
        """Return the outputs (N, ...) in whatever the module returned, in its dtype, with their graph.

        They are values before any softmax, sigmoid or threshold, so that gradients are those of what was learnt.

        Raises:
            ModelOutputError: the module returned nothing of the kind.
        """

    def objective(self, outputs: Tensor, ask: Ask) -> Objective:
        """Return what is explained, checked, on the device of the outputs (N, ...).

        Raises:
            TargetError: a target that the outputs lack, or one that is contrasted with itself.
        """

    def target(self, target: Any) -> Any:
        """Return what a user names: its number, or what lies in the picture, see `Targets`.

        Raises:
            TargetError: there is no such target, or it is one of several.
        """

    def describe(self, outputs: Tensor, targets: Sequence[Any] = (), top: int = 5) -> tuple[Prediction, ...]:
        """Return what a person reads of one picture's outputs (...): some targets, then the `top` first ones.

        The first one is what is explained where no target is named.
        """

    def remarks(self, outputs: Tensor, target: Any) -> Sequence[Diagnostic]:
        """Return what the reader of a map of a target should know of one picture's outputs (...); else nothing."""
        return ()

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether outputs (N, ...) look like probabilities, which a model should not return; those of values do not."""
        return False


@runtime_checkable
class BoxTask(Task, Protocol):
    """The task of a detector, whose targets are boxes."""

    def with_attribute(self, target: Any, attribute: str) -> Any:
        """Return the target, or the box with the highest score for None, with its attribute: ``score``, ``x1`` and so
        on.

        Raises:
            OptionError: the detector has no such attribute.
        """

    def with_label(self, target: Any, label: int | str) -> Any:
        """Return the target as one of a class, or all boxes of the class for None.

        Raises:
            TargetError: there is no such class, or the target is of another one.
        """

    def each(self, outputs: Tensor, target: Any) -> tuple[Any, ...]:
        """Return the boxes that a target means in one picture's outputs (...), at least one.

        Raises:
            TargetError: there is none.
        """


def percent(share: float) -> str:
    """Return a share, or a difference of shares, in whole percent; one that is hardly 0 or 1 says so."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def probability_change(before: Prediction, after: Prediction) -> float | None:
    """Return the increase of a probability; None if the model has none."""
    if before.probability is None or after.probability is None:
        return None
    return after.probability - before.probability


def named_target(
    task: Task, target: Any, attribute: str | None = None, label: int | str | None = None
) -> int | SpatialTarget | None:
    """Return a target as a user names it, see `Task.target`; None for what is explained where nothing is named.

    Args:
        task: of the model.
        target: its name, or None.
        attribute: what is asked of a box instead of its score.
        label: class of a box that is named by its place.

    Raises:
        TargetError: as `Task.target`.
        OptionError: the task has no boxes, or these lack the attribute.
    """
    must_have_boxes(task, attribute, label)
    result: int | SpatialTarget | None = None if target is None else task.target(target)
    if isinstance(task, BoxTask):
        if label is not None:
            with at_fault("label", TargetError):
                result = task.with_label(result, label)
        if attribute is not None:
            result = task.with_attribute(result, attribute)
    return result


def must_have_boxes(task: Task, attribute: str | None, label: int | str | None) -> None:
    """Raise OptionError for what only boxes can be asked, of a task without any."""
    for field, value in (("label", label), ("attribute", attribute)):
        if value is not None and not isinstance(task, BoxTask):
            raise OptionError(f"Only a detector's boxes have {field}s; omit {field}.", field)


def named_ask(
    task: Task,
    target: Any,
    against: int | str | None = None,
    attribute: str | None = None,
    label: int | str | None = None,
) -> Ask:
    """Return the question about one picture, from user input.

    Args:
        task, target, attribute, label: as `named_target`, and so are the errors.
        against: what the target is contrasted with.

    Raises:
        TargetError: the contrast names no class.
    """
    contrast = None if against is None else task.target(against)
    if contrast is not None and not isinstance(contrast, int):
        contrast = contrast.label
        if contrast is None:
            raise TargetError(f"{against!r} is not a class to contrast with; give an index or a label.")
    return Ask.single(named_target(task, target, attribute, label), contrast)


def each_ask(task: Task, outputs: Tensor, ask: Ask) -> list[Ask]:
    """Return what a question about one picture means in its outputs (...): of each box of a class, one question.

    Raises:
        TargetError: there is none.
    """
    if not (ask.is_plural and isinstance(ask.targets, tuple) and isinstance(task, BoxTask)):
        return [ask]
    return [replace(ask, targets=(target,)) for target in task.each(outputs, ask.targets[0])]


def located(predictions: Sequence[Prediction], geometry: Geometry) -> tuple[Prediction, ...]:
    """Return the predictions of a task, those that lie in the picture in pixels of the upload."""
    if not predictions or not isinstance(predictions[0], Located):  # a task has one kind, and this check is slow
        return tuple(predictions)
    return tuple(row.located(geometry) for row in cast(Sequence[Any], predictions))
