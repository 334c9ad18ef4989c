"""Questions: pictures, a model that is ready to run, and the targets to explain."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import (
    InvalidArgumentError,
    ModelOutputError,
    NonFiniteError,
    UnsupportedModuleError,
    UnsupportedOperationError,
)
from seewhy.explainers.execution.accelerated import AcceleratedModel, Parts
from seewhy.explainers.execution.chunks import chunk_size, chunks
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.execution.vjp import Vjp
from seewhy.explainers.hooks.evaluation import CHECKPOINTED, evaluation_mode, is_checkpointed
from seewhy.explainers.hooks.selection import as_module

_BAD_OUTPUTS = "The model's logits contain NaN or infinity; check its weights and its precision."


@dataclass(frozen=True, eq=False)
class Question:
    """A question to an explainer.

    Attributes:
        model: the module, or its owner, such as a `LoadedModel`.
        task: reads and describes the model's outputs.
        module: in evaluation mode.
        images: (N, C, H, W) in the module's dtype; give the module a copy, because it may modify its input in place.
        ask: the targets, still unchecked.
        progress: for reports before each of many passes.
    """

    model: AnyModel
    task: Task
    module: nn.Module
    images: Tensor
    ask: Ask = DEFAULT_ASK
    progress: Progress = SILENT

    @property
    def distinct_images(self) -> Tensor:
        """The images without repetitions: (1, C, H, W) if all are one picture in the same memory, as by `expand`."""
        return self.images[:1] if self.images.stride(0) == 0 else self.images

    @property
    def is_precise(self) -> bool:
        """Whether the module itself computes in single or double precision, without `torch.autocast`."""
        full = self.images.dtype in (torch.float32, torch.float64)
        return full and not torch.is_autocast_enabled(self.images.device.type)

    def part(self, rows: slice) -> "Question":
        """Return the same question about some of the pictures."""
        return replace(self, images=self.images[rows], ask=self.ask.rows(rows))

    def outputs(self, raw: Any) -> Tensor:
        """Return the outputs (N, ...) from the module's result, in its dtype.

        Raises:
            ModelOutputError: there are none.
            NonFiniteError: they hold NaN or infinity.
        """
        return checked_finite(self.task.outputs(raw))

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
        # The first call counts activations outside inference mode: tensors that a model caches then, such as a grid of
        # positions, can serve a later backward pass.
        size = chunk_size(self.module, images, backward=False)
        whole = self.accelerated.whole(images) if self.accelerated else None
        run = whole.without_hooks if whole else self.run_copy
        with torch.inference_mode():
            parts = (images[start : start + size] for start in range(0, len(images), size))
            outputs = [checked_rows(self.outputs(run(part)), part) for part in parts]
        with torch.no_grad():
            return torch.cat(outputs)  # a copy that autograd can keep

    def chunks(
        self, total: int, backward: bool = False, copies: int = 1, progress: Progress | None = None
    ) -> Iterator[slice]:
        """Yield slices of `total` rows, each as many as one pass may hold; report before each, and at the end.

        Args:
            total: how many rows there are.
            backward: whether a backward pass follows each forward pass.
            copies: see `chunk_size`.
            progress: notified of each pass; None for that of the question.
        """
        return chunks(total, chunk_size(self.module, self.images, backward, copies), progress or self.progress)

    @property
    def accelerated(self) -> AcceleratedModel | None:
        """The model's accelerated parts; None for a bare module, which runs in PyTorch alone."""
        return _accelerated(self.model)

    def host(self, layers: Sequence[str]) -> tuple[nn.Module, Callable[[Tensor], Any]]:
        """Return the module for hooks on layers, and the function that runs the model with them.

        Args:
            layers: dotted paths.

        Returns:
            The model, or its part from the first of the layers on, where paths are the same; and a function that
            returns the model's output for images (N, C, H, W), which stay as they are.
        """
        return self.host_of(self.parts(layers))

    def host_of(self, parts: Parts | None) -> tuple[nn.Module, Callable[[Tensor], Any]]:
        """Return what `host` returns, given the parts of the model."""
        return (parts.suffix, parts) if parts else (self.module, self.run_copy)

    def parts(self, layers: Sequence[str]) -> Parts | None:
        """Return the accelerated model cut at the first of some layers; None if it runs whole."""
        return self.accelerated.parts(layers, self.images) if self.accelerated else None

    def vjp(self, images: Tensor) -> Vjp | None:
        """Return the model's vector-Jacobian product for pictures (R, C, H, W); None if PyTorch must compute it."""
        return self.accelerated.vjp(images) if self.accelerated else None

    def plain(self) -> tuple[Objective, Tensor]:
        """Return the objective, and the outputs (N, ...) of the pictures; errors as in `predict` and `objective`."""
        outputs = self.predict(self.images)
        return self.objective(outputs), outputs

    def objective(self, outputs: Tensor) -> Objective:
        """Return the checked objective, given the outputs (N, ...) of the images.

        Raises:
            TargetError: a target that the model lacks.
            ModelOutputError: the outputs do not have one row for each picture.
        """
        return self.task.objective(checked_rows(outputs, self.images), self.ask)


def must_be_images(images: object) -> None:
    """Raise `InvalidArgumentError` unless images are a floating-point tensor (N, C, H, W)."""
    expected = "Expected floating-point images of shape (N, C, H, W)"
    if not isinstance(images, Tensor):
        kind = type(images).__name__
        raise InvalidArgumentError(f"{expected}, got {kind}; give a torch.Tensor.", field="images")
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        hint = "; `images[None]` adds the batch axis" if images.ndim == 3 else ""
        raise InvalidArgumentError(f"{expected}, got {tuple(images.shape)} {images.dtype}{hint}.", field="images")


@contextmanager
def ready(model: AnyModel, images: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield the module in evaluation mode, outside inference mode, and the images in its dtype.

    Give the module a copy of the images: it may modify its input in place.

    Raises:
        UnsupportedModuleError: a scripted, compiled or data-parallel module.
        InvalidArgumentError: images of the wrong shape or dtype.
    """
    module = as_module(model)
    must_be_images(images)
    accelerated = _accelerated(model)
    with torch.inference_mode(False), evaluation_mode(module, accelerated.submodules() if accelerated else None):
        try:
            # Autograd cannot save inference tensors, but it can save their copies.
            yield module, images.detach().to(_dtype_of(module, images), copy=images.is_inference())
        except (RuntimeError, UnsupportedOperationError) as error:
            operation = error.operation if isinstance(error, UnsupportedOperationError) else ""
            if is_checkpointed(error) or operation == CheckpointFunction.__name__:
                raise UnsupportedModuleError(CHECKPOINTED) from error
            raise


def _accelerated(model: AnyModel) -> AcceleratedModel | None:
    return None if isinstance(model, nn.Module) else model.accelerated


def _dtype_of(module: nn.Module, images: Tensor) -> torch.dtype:
    first = None
    for value in module.parameters():
        if value.dtype == images.dtype:
            return images.dtype
        if first is None and value.is_floating_point():
            first = value.dtype
    return first or images.dtype


def checked_finite(outputs: Tensor) -> Tensor:
    """Return outputs, checked for NaN and infinity.

    Raises:
        NonFiniteError: they hold one.
    """
    require(torch.isfinite(outputs).all(), lambda: NonFiniteError(_BAD_OUTPUTS))
    return outputs


def checked_rows(outputs: Tensor, images: Tensor) -> Tensor:
    """Return the outputs, checked to have a row for each picture.

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
    """Return the images in float32 or a wider dtype, so that results computed from them are not rounded twice."""
    return images.to(torch.promote_types(images.dtype, torch.float32))
