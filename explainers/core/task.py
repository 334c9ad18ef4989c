"""Tasks: a task reads a model's outputs, turns them into scores, and describes them to people."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective


class Prediction(Protocol):
    """A model's prediction of one possible target, such as a class or a value; a dataclass.

    Documents contain its fields.
    """

    @property
    def index(self) -> int:
        """Its place among the model's outputs."""

    @property
    def label(self) -> str:
        """The name that people read."""

    @property
    def name(self) -> int | str:
        """The name by which users ask for it."""

    @property
    def score(self) -> float:
        """The model's output for it, which is explained."""

    @property
    def probability(self) -> float | None:
        """In [0, 1]; None where the model gives none."""

    @property
    def text(self) -> str:
        """The model's answer, for people: ``37.1%``, ``41.2 years``."""

    @property
    def verb(self) -> str:
        """The verb for its evidence, which ``speaks for`` a class, or ``raises`` or ``lowers`` a value."""

    @property
    def sign(self) -> int:
        """-1 where the negative of its score is explained, because evidence lowers it; otherwise 1."""

    def reading(self, score: float) -> str:
        """Return a score as text: ``37%`` for a probability, ``41.2 years`` for a value."""

    def lead(self, score: float) -> str:
        """Return a difference of two such scores as text: ``-22.3 points``, ``1.2 years``."""

    def change(self, before: Self) -> str:
        """Return the change from an earlier prediction of the same index as text: ``+3.2 points``."""


class Task(Protocol):
    """What a model was trained for.

    Methods know a task by this protocol alone: they run the model, take the `outputs`, and explain the scores of an
    `Objective`. Outputs are one tensor with a row for each picture; the task says what its other axes are.
    """

    @property
    def default_method(self) -> str:
        """The method that explains by default."""

    @property
    def objectives(self) -> type[Objective]:
        """The kind of its objectives."""

    def outputs(self, raw: Any) -> Tensor:
        """Return the outputs (N, ...) from the module's result, in its dtype, with their graph.

        They are values before any softmax, sigmoid or threshold, so that gradients are those of what was learnt.

        Raises:
            ModelOutputError: the result has no such outputs.
        """

    def objective(self, outputs: Tensor, ask: Ask) -> Objective:
        """Return the checked objective, on the device of the outputs (N, ...).

        Raises:
            TargetError: a target that the outputs lack, or one that is contrasted with itself.
        """

    def target(self, target: Any) -> Any:
        """Return the target that a user names: its number, or a place in the picture; see `Targets`.

        Raises:
            TargetError: there is no such target, or there are several.
        """

    def describe(self, outputs: Tensor, targets: Sequence[Any] = (), top: int = 5) -> tuple[Prediction, ...]:
        """Return the predictions in one picture's outputs (...), for people: some targets, then the first `top` ones.

        Of the latter, the first one is explained by default.
        """

    def remarks(self, outputs: Tensor, target: Any) -> Sequence[Diagnostic]:
        """Return remarks about one picture's outputs (...) for the reader of a target's map; none by default."""
        return ()

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether outputs (N, ...) look like probabilities, which a model should not return; those of values do not."""
        return False


def probability_change(before: Prediction, after: Prediction) -> float | None:
    """Return the increase of a probability; None if the model has none."""
    if before.probability is None or after.probability is None:
        return None
    return after.probability - before.probability
