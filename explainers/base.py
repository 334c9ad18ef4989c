"""What every explainer is: its parameters, frozen, and one method that turns images into maps."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from explainers.errors import ModelOutputError, NonFiniteError, TargetError
from explainers.modules import as_module, evaluation_mode, logits_of

Sign = Literal["positive", "signed", "absolute"]
"""Which part of a signed attribution to keep: max(x, 0), x, or |x|."""


@dataclass(frozen=True)
class Attribution:
    """What an explainer found for a batch.

    Attributes:
        maps: (N, h, w) float32, raw: not resized, not normalised; on the images' device.
        targets: (N,) int64, the explained class of each image.
        logits: (N, K) float32.
        layers: the paths of the layers used, in the model's order; empty for methods that need none.
        signed: whether negative values mean evidence against the target.
    """

    maps: Tensor
    targets: Tensor
    logits: Tensor
    layers: tuple[str, ...]
    signed: bool


@validated(frozen=True)
class Explainer(ABC):
    """An explainer is its parameters, checked when made: equal ones hash alike and can share a batch."""

    @abstractmethod
    def attribute(self, model: Any, module: nn.Module, images: Tensor, targets: Tensor | None) -> Attribution:
        """Compute the attribution; `explain` has checked the arguments and prepared the module."""

    def explain(self, model: Any, images: Tensor, targets: Tensor | None = None) -> Attribution:
        """Explain why the model gives each image its target class.

        The module is left as it was: no hook, no ``.grad``, no changed mode, flag or weight. It runs in
        evaluation mode whatever its mode is. It may be frozen, in half precision or channels-last, and the
        caller may be inside ``torch.no_grad()`` or ``torch.inference_mode()``.

        Args:
            model: an `nn.Module` that returns logits (N, K), or a `LoadedModel`.
            images: (N, C, H, W) floating, normalised as the model wants them, on the model's device;
                converted to the model's dtype.
            targets: (N,) int64 class indices, or None for the most probable class of each image.

        Raises:
            UnsupportedModuleError: a scripted, compiled or data-parallel module.
            LayerError: a layer that cannot carry this explanation.
            TargetError: a target out of range, or of the wrong shape.
            ModelOutputError: the model returns no logits, or NaN.
            ValueError: images of the wrong shape or dtype.
        """
        if targets is not None and (targets.shape != images.shape[:1] or targets.is_floating_point()):
            raise TargetError(f"Expected one integer target per image, {len(images)} in all, got {targets!r}.")
        with prepared(model, images) as (module, images):
            attribution = self.attribute(model, module, images, targets)
        if not bool(torch.isfinite(attribution.maps).all()):
            raise NonFiniteError("The map holds NaN or infinity; use a float32 model, or another layer or method.")
        return attribution


@contextmanager
def prepared(model: Any, images: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield the module in evaluation mode, outside inference mode, and a copy of the images in its dtype.

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
        # A model may modify its input in place; and a copy of an inference tensor is one that autograd can keep.
        yield module, images.detach().to(_dtype_of(module, images), copy=True)


def _dtype_of(module: nn.Module, images: Tensor) -> torch.dtype:
    dtypes = [value.dtype for value in module.parameters() if value.is_floating_point()]
    return images.dtype if not dtypes or images.dtype in dtypes else dtypes[0]


def predict(model: Any, images: Tensor) -> Tensor:
    """Return the logits (N, K), float32, of a batch of images (N, C, H, W), without a graph.

    Raises:
        ModelOutputError: the model returns no logits, or NaN.
    """
    module = as_module(model)
    with torch.inference_mode(), evaluation_mode(module):
        return checked_logits(module(images.to(_dtype_of(module, images), copy=True))).float()


def checked_logits(output: Any) -> Tensor:
    """Return the logits in a model's output, in the model's dtype.

    Raises:
        ModelOutputError: there are none.
        NonFiniteError: they hold NaN or infinity.
    """
    logits = logits_of(output)
    if logits.shape[1] < 1:
        raise ModelOutputError("The model returned logits for no class.")
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("The model's logits hold NaN or infinity; check its weights and its precision.")
    return logits


def chosen_targets(logits: Tensor, targets: Tensor | None) -> Tensor:
    """Return (N,) int64 targets on the logits' device: the given ones, checked, or the argmax.

    Raises:
        TargetError: an index outside 0..K-1.
    """
    if targets is None:
        return logits.detach().argmax(dim=1)
    classes = logits.shape[1]
    outside = (targets < 0) | (targets >= classes)
    if bool(outside.any()):
        first = int(targets[outside][0])
        raise TargetError(f"Class {first} is out of range: the model has classes 0 to {classes - 1}.")
    # A copy, for autograd keeps it, and cannot keep a tensor made in inference mode.
    return targets.to(device=logits.device, dtype=torch.int64, copy=True)


def target_score(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum over the batch of each image's target logit: its gradient holds each image's own."""
    return logits.float().gather(1, targets[:, None]).sum()


def keep_sign(values: Tensor, sign: Sign) -> Tensor:
    """Return max(x, 0), x or |x|, elementwise."""
    if sign == "positive":
        return values.clamp_min(0)
    return values.abs() if sign == "absolute" else values
