"""What an explainer is asked: pictures, a model that is ready to run, and what is to be explained."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from seewhy.explainers.core.model import AnyModel, task_of
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.task import DEFAULT_ASK, Ask, Task
from seewhy.explainers.errors import (
    ModelOutputError,
    NonFiniteError,
    TargetError,
    UnsuitableModelError,
    UnsupportedModuleError,
    UnsupportedOperationError,
)
from seewhy.explainers.execution.accelerated import Accelerated
from seewhy.explainers.execution.chunks import pass_size
from seewhy.explainers.execution.deferred_checks import deferred, require
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.hooks.evaluation import CHECKPOINTED, evaluation_mode, is_checkpointed
from seewhy.explainers.hooks.selection import as_module

_PROBABILITIES = (
    "(The model returns probabilities: a softmax or sigmoid is its last step. Return the logits before it, which is "
    "what methods explain.)"
)
_BAD_OUTPUTS = "The model's logits hold NaN or infinity; check its weights and its precision."


class Host(NamedTuple):
    """Where hooks on layers belong.

    Attributes:
        module: the model, or the part of it that begins with the first of the layers; paths are the same in both.
        run: returns the model's output for images (N, C, H, W), which stay as they are.
    """

    module: nn.Module
    run: Callable[[Tensor], Any]


@dataclass(frozen=True, eq=False)
class Question:
    """What an explainer is asked.

    Attributes:
        model: the module, or what carries it, such as a `LoadedModel`.
        task: reads and describes what the model returns.
        module: in evaluation mode.
        images: (N, C, H, W) in the module's dtype; give the module a copy, for it may modify its input in place.
        ask: what is to be explained, still unchecked.
        progress: report to it before each pass of many.
    """

    model: AnyModel
    task: Task
    module: nn.Module
    images: Tensor
    ask: Ask = DEFAULT_ASK
    progress: Progress = SILENT

    def part(self, rows: slice) -> "Question":
        """Return the same question about some of the pictures."""
        return replace(self, images=self.images[rows], ask=self.ask.rows(rows))

    def outputs(self, raw: Any) -> Tensor:
        """Return the outputs (N, ...) in what the module returned, in its dtype.

        Raises:
            ModelOutputError: there are none.
            NonFiniteError: they hold NaN or infinity.
        """
        return finite_outputs(self.task, raw)

    def run(self, images: Tensor) -> Tensor:
        """Return the outputs (R, ...) of pictures (R, C, H, W), which stay as they are, in the model's dtype.

        Raises:
            ModelOutputError: the model returns no outputs, or NaN.
        """
        return checked_rows(self.outputs(self.run_copy(images)), images)

    def run_copy(self, images: Tensor) -> Any:
        """Return what the module returns for pictures (R, C, H, W), which stay as they are."""
        return self.module(images.clone())

    def predict(self, images: Tensor) -> Tensor:
        """Return the outputs (R, ...) of pictures (R, C, H, W), without a graph, in passes that memory allows.

        Raises:
            ModelOutputError: the model returns no outputs, or NaN.
        """
        # The first call counts activations outside inference mode. So what a model makes once and keeps, such as a grid
        # of positions, is of use to a later backward pass too.
        size = pass_size(self.module, images, backward=False)
        run = (self.accelerated.whole(images) if self.accelerated else None) or self.run_copy
        with torch.inference_mode():
            parts = (images[start : start + size] for start in range(0, len(images), size))
            outputs = [checked_rows(self.outputs(run(part)), part) for part in parts]
        with torch.no_grad():
            return torch.cat(outputs)  # a copy that autograd can keep

    @property
    def accelerated(self) -> Accelerated | None:
        """What parts of the model run on; None where they run in PyTorch only."""
        return None if isinstance(self.model, nn.Module) else self.model.accelerated

    def host(self, layers: Sequence[str]) -> "Host":
        """Return where hooks on layers and what runs after them belong, and what runs the model there.

        Args:
            layers: dotted paths.
        """
        parts = self.accelerated.parts(layers, self.images) if self.accelerated else None
        return Host(parts.suffix, parts) if parts else Host(self.module, self.run_copy)

    def plain(self) -> tuple[Objective, Tensor]:
        """Return the objective, and the outputs (N, ...) of the pictures; errors as `predict` and `objective`."""
        outputs = self.predict(self.images)
        return self.objective(outputs), outputs

    def objective(self, outputs: Tensor) -> Objective:
        """Return what is explained, now that the outputs (N, ...) of the images are known.

        Raises:
            TargetError: a target that the model lacks.
            ModelOutputError: the outputs are not those of as many pictures.
        """
        return self.task.objective(checked_rows(outputs, self.images), self.ask)


@contextmanager
def pose(model: AnyModel, images: Tensor, ask: Ask = DEFAULT_ASK, progress: Progress = SILENT) -> Iterator[Question]:
    """Yield a question about images of a module that is ready; errors are those of `Explainer.explain`."""
    for numbers in (ask.targets, ask.against):
        if numbers is not None and not isinstance(numbers, Tensor):
            raise TargetError(f"Expected a tensor of one integer per image, got {numbers!r}; give torch.tensor([281]).")
        if numbers is not None and (numbers.shape != images.shape[:1] or numbers.is_floating_point()):
            raise TargetError(f"Expected one integer target per image, {len(images)} in all, got {numbers!r}.")
    with deferred(), ready(model, images) as (module, copies):
        question = Question(model, task_of(model), module, copies, ask, progress)
        try:
            yield question
        except (UnsuitableModelError, UnsupportedOperationError) as error:
            if _returns_probabilities(question):
                error.args = (f"{error} {_PROBABILITIES}",)
            raise


def _returns_probabilities(question: Question) -> bool:
    """Whether what the model returns looks like probabilities."""
    try:
        with torch.no_grad():  # not inference mode: the model may keep what it makes
            outputs = question.task.outputs(question.run_copy(question.images[:1]))
            return question.task.are_probabilities(outputs)
    except Exception:  # of whatever the model raises: the error at hand says more
        return False


@contextmanager
def ready(model: AnyModel, images: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield the module in evaluation mode, outside inference mode, and the images in its dtype.

    A model may modify its input in place: give it a copy.

    Raises:
        UnsupportedModuleError: a scripted, compiled or data-parallel module.
        ValueError: images of the wrong shape or dtype.
    """
    module = as_module(model)
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ValueError(
            f"Expected floating-point images of shape (N, C, H, W), got {tuple(images.shape)} {images.dtype}."
        )
    with torch.inference_mode(False), evaluation_mode(module):
        try:
            # A copy of an inference tensor is one that autograd can keep.
            yield module, images.detach().to(_dtype_of(module, images), copy=images.is_inference())
        except (RuntimeError, UnsupportedOperationError) as error:
            if is_checkpointed(error) or getattr(error, "operation", "") == CheckpointFunction.__name__:
                raise UnsupportedModuleError(CHECKPOINTED) from error
            raise


def _dtype_of(module: nn.Module, images: Tensor) -> torch.dtype:
    first = None
    for value in module.parameters():
        if value.dtype == images.dtype:
            return images.dtype
        if first is None and value.is_floating_point():
            first = value.dtype
    return first or images.dtype


def predict(model: AnyModel, images: Tensor) -> Tensor:
    """Return the outputs (N, ...), float32, of a batch of images (N, C, H, W), without a graph.

    Raises:
        ModelOutputError: the model returns no outputs, or NaN.
    """
    with pose(model, images) as question:
        return question.predict(question.images).float()


def finite_outputs(task: Task, raw: Any) -> Tensor:
    """Return the outputs (N, ...) in what a module returned; errors are those of `Question.outputs`."""
    outputs = task.outputs(raw)
    require(torch.isfinite(outputs).all(), lambda: NonFiniteError(_BAD_OUTPUTS))
    return outputs


def checked_rows(outputs: Tensor, images: Tensor) -> Tensor:
    """Return the outputs if there is a row for each picture.

    Raises:
        ModelOutputError: there are more or fewer.
    """
    if len(outputs) != len(images):
        raise ModelOutputError(
            f"The model returned logits of shape {tuple(outputs.shape)} for {len(images)} pictures: it must return one "
            "row for each, in the same order."
        )
    return outputs


def widened(images: Tensor) -> Tensor:
    """Return the images in float32 at least, so that what is computed of them is not rounded twice."""
    return images.to(torch.promote_types(images.dtype, torch.float32))
