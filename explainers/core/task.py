"""What can be asked of a model: a task reads its outputs, turns them into scores, and describes them to people."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.attribution import Diagnostic
from seewhy.explainers.core.objective import Objective


class Task(Protocol):
    """What a model was trained for.

    Methods know a task by this protocol alone: they run the model, take the `outputs`, and explain the scores of an
    `Objective`. Outputs are one tensor with a row for each picture; the task says what its other axes are.
    """

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

    def target(self, target: int | str) -> int:
        """Return the number of what a user names.

        Raises:
            TargetError: there is no such target, or it is one of several.
        """

    def describe(self, outputs: Tensor, targets: Sequence[int] = (), top: int = 5) -> Sequence[Any]:
        """Return what a person reads of one picture's outputs (...): some targets, then the `top` most probable."""

    def remarks(self, outputs: Tensor, target: int) -> Sequence[Diagnostic]:
        """Return what the reader of a map of a target should know of one picture's outputs (...)."""

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether outputs (N, ...) look like probabilities, which a model should not return."""


def named_ask(task: Task, target: int | str | None, against: int | str | None = None) -> Ask:
    """Return what is asked of one picture, as a user names it; raises what `Task.target` raises."""
    return Ask.single(*(None if name is None else task.target(name) for name in (target, against)))
