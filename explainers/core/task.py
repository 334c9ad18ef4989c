"""What can be asked of a model: a task reads its outputs, turns them into scores, and describes them to people."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective


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

    @property
    def verb(self) -> str:
        """What evidence does for it: it ``speaks for`` a class, ``raises`` or ``lowers`` a value."""

    @property
    def sign(self) -> int:
        """-1 where the negative of its score is explained, because evidence lowers it; otherwise 1."""

    def reading(self, score: float) -> str:
        """Return what a score, of probabilities where there are any, reads like: ``37%``, ``41.2 years``."""

    def lead(self, score: float) -> str:
        """Return what a difference of two such scores reads like: ``-22.3 points``, ``1.2 years``."""

    def change(self, before: Self) -> str:
        """Return how far this is from an earlier one of the same index, for a person: ``+3.2 points``."""


class Task(Protocol):
    """What a model was trained for.

    Methods know a task by this protocol alone: they run the model, take the `outputs`, and explain the scores of an
    `Objective`. Outputs are one tensor with a row for each picture; the task says what its other axes are.
    """

    @property
    def default_method(self) -> str:
        """The method that explains where none is named."""

    @property
    def objectives(self) -> type[Objective]:
        """The kind of its objectives."""

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


def probability_change(before: Prediction, after: Prediction) -> float | None:
    """Return the increase of a probability; None if the model has none."""
    if before.probability is None or after.probability is None:
        return None
    return after.probability - before.probability
