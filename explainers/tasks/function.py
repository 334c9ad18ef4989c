"""A function of the outputs as a target, in place of a task's own targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.task import Prediction, Task
from seewhy.explainers.errors import TargetError
from seewhy.explainers.tasks.values import ValuePrediction

TargetFunction = Callable[[Tensor], Tensor]
"""From outputs (N, ...) float32 to scores (N,), differentiable; each score depends on its own row alone."""


@dataclass(frozen=True, eq=False)
class FunctionTask(Task):
    """A task whose target is a function of the outputs of another task, which reads and describes them.

    Attributes:
        task: the model's own.
        function: see `TargetFunction`.
    """

    task: Task
    function: TargetFunction

    @property
    def default_method(self) -> str:
        """The default method of the model's own task."""
        return self.task.default_method

    @property
    def objectives(self) -> type["FunctionObjective"]:
        """The kind of its objectives."""
        return FunctionObjective

    def outputs(self, raw: Any) -> Tensor:
        """Return the outputs (N, ...) in the module's result."""
        return self.task.outputs(raw)

    def objective(self, outputs: Tensor, ask: Ask) -> "FunctionObjective":
        """Return the function as an objective; its target is always 0."""
        if ask.against is not None:
            raise TargetError("A target function has no contrast; subtract the other score in the function.")
        return FunctionObjective(torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device), task=self)

    def target(self, target: Any) -> int:
        """Raise `TargetError`: the function is the target."""
        raise TargetError("A target function cannot be combined with other targets.")

    def describe(self, outputs: Tensor, targets: Sequence[int] = (), top: int = 5) -> tuple[Prediction, ...]:
        """Return the function's value once for each target, then the predictions of the model's own task."""
        rows: tuple[Prediction, ...] = self.task.describe(outputs, top=top)
        if not targets:
            return rows
        name = getattr(self.function, "__name__", "<")
        label = "function of the outputs" if name.startswith("<") else name
        value = float(self.scores(outputs[None].detach())[0])
        return (ValuePrediction(0, label, value),) * len(targets) + rows

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether the model's own task takes outputs (N, ...) for probabilities."""
        return self.task.are_probabilities(outputs)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the scores (N,) float32 of outputs (N, ...).

        Raises:
            TargetError: the function raised an exception, or did not return one number for each picture.
        """
        try:
            scores = self.function(outputs.float())
        except Exception as error:
            shape = tuple(outputs.shape)
            raise TargetError(
                f"The target function raised {type(error).__name__} for outputs of shape {shape}: {error}"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != outputs.shape[:1] or not scores.is_floating_point():
            kind = f"{tuple(scores.shape)} {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
            raise TargetError(
                f"The target function must return one float for each picture, a tensor ({len(outputs)},), not {kind}; "
                "`lambda outputs: outputs[:, 3] - outputs[:, 5]` does."
            )
        if outputs.requires_grad and not scores.requires_grad:
            raise TargetError("The target function lost the gradient; use only PyTorch operations on the outputs.")
        return scores.float()


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionObjective(Objective):
    """For each picture the value of a function of its outputs.

    Attributes:
        task: the task with the function.
    """

    task: FunctionTask

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the function of each row of outputs (N, ...)."""
        return self.task.scores(outputs)
