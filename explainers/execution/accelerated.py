"""A model cut before its layers: the part before them on an accelerator, the rest in PyTorch, where hooks reach it."""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from seewhy.explainers.execution.accelerators import ACCELERATORS, Run, choose
from seewhy.explainers.execution.cut import UncuttableError, cut_before
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.selection import logits_of
from seewhy.explainers.process_wide import exclusive_if_free

MOST_CUTS = 8
"""Most sets of layers for which a model is kept cut; the least recently used goes first."""

PATIENCE = 16
"""Pictures that are run whole before it pays to compile a part for them."""

TOLERANCE = 1e-4
"""Largest difference from the model run whole, over its largest value, that a part may make."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Parts:
    """The two parts of a model.

    Attributes:
        prefix: runs what comes before the layer.
        suffix: what comes after it, with its modules under their own paths, the layer's among them; see `Cut`.
    """

    prefix: Run
    suffix: fx.GraphModule

    def __call__(self, images: Tensor) -> Any:
        """Return the model's output for images (N, C, H, W)."""
        return self.suffix(*self.prefix(images))


class Accelerated:
    """The parts of a model, compiled when they are needed and compared with the model then.

    The model runs whole while there are hooks on its modules, and once its weights were changed. Changes through
    ``.data`` are seen only where they change the first element of a tensor.

    Args:
        module: the model, frozen.
        image_shape: (C, H, W) of the images that parts are compiled for; others run whole.
        layers: the cut for `whole`; empty for none.
        accelerator: a name in `ACCELERATORS`, or ``auto``.
        device: where the module is.

    Raises:
        OptionError: an accelerator that is unknown, not installed, or not for this device.
    """

    def __init__(
        self,
        module: nn.Module,
        image_shape: tuple[int, int, int],
        layers: Sequence[str],
        accelerator: str = "auto",
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.empty(0, device=device or "cpu").device  # with its number, as tensors have it
        self.name = choose(accelerator, self.device)
        self._module = module
        self._shape = image_shape
        self._layers = tuple(layers)
        self._parts: OrderedDict[tuple[str, ...], Parts | None] = OrderedDict()
        self._pictures: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()
        self._watch = _Watch(module)

    def parts(self, layers: Sequence[str], images: Tensor) -> Parts | None:
        """Return the model cut before the first of some layers; None where it must run whole.

        Args:
            layers: dotted paths.
            images: (N, C, H, W), to be run next.
        """
        if not self._serves(images):
            return None
        key = tuple(sorted(layers))
        with self._lock:
            if key not in self._parts:
                self._pictures[key] += len(images)
                if self._pictures[key] < PATIENCE:
                    return None
                with exclusive_if_free() as free:
                    if not free:  # another model is compiled, which may take long: this one runs whole meanwhile
                        return None
                    self._keep(key)
            self._parts.move_to_end(key)
            return self._parts[key]

    def whole(self, images: Tensor) -> Parts | None:
        """Return what runs the model without hooks and gradients; None where it must run whole."""
        return self.parts(self._layers, images) if self._layers else None

    def warm(self) -> None:
        """Compile what `whole` needs now, rather than after `PATIENCE` pictures."""
        with self._lock:
            key = tuple(sorted(self._layers))
            if key and key not in self._parts and self._is_float32():
                self._keep(key)

    def _is_float32(self) -> bool:
        return all(value.dtype == torch.float32 for value in self._module.parameters())

    def _serves(self, images: Tensor) -> bool:
        """Whether the parts were compiled for such images, and the model is as it was."""
        return (
            tuple(images.shape[1:]) == self._shape
            and images.dtype == torch.float32
            and images.device == self.device
            and self._watch.unchanged()
        )

    def _keep(self, key: tuple[str, ...]) -> None:
        """Compile the parts for some layers, and drop those that were used least recently."""
        self._pictures.pop(key, None)
        self._parts[key] = self._compile(key)
        while len(self._parts) > MOST_CUTS:
            self._parts.popitem(last=False)

    def _compile(self, layers: tuple[str, ...]) -> Parts | None:
        """Return the parts, on the accelerator or else on PyTorch, if they do what the model does."""
        with evaluation_mode(self._module), torch.inference_mode(False), torch.no_grad():
            probe = torch.randn(3, *self._shape, generator=torch.Generator().manual_seed(0)).to(self.device)
            try:
                cut = cut_before(self._module, layers, probe[:1])
            except UncuttableError as error:
                _log.info("The model runs whole for %s: %s", ", ".join(layers), error)
                return None
            # Copies, for a model may modify its input in place.
            expected = cut.prefix(probe.clone()), logits_of(self._module(probe.clone()))
            # PyTorch itself takes over where the accelerator fails; where both do, the model runs whole.
            for name in dict.fromkeys((self.name, "eager")):
                try:
                    parts = Parts(ACCELERATORS[name](cut.prefix, probe[:1]), cut.suffix)
                    if _agree(parts, probe, expected):
                        return parts
                    _log.warning("%s does not give what the model gives before %s.", name, cut.layer)
                except Exception as error:  # of whatever an exporter or a runtime cannot do
                    _log.warning("%s cannot run what comes before %s: %s", name, cut.layer, error)
            return None


class _Watch:
    """Tells whether a module is as it was.

    It looks at plain attributes only, before each use: properties and methods of modules may run code of the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._named = [
            named for part in self._modules for named in (part._parameters, part._buffers, part._modules) if named
        ]
        self._noted = self._members()
        self._tensors = [*module.parameters(), *module.buffers()]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._first = [
            tensor.detach().numpy().reshape(-1)[:1]
            for tensor in self._tensors
            if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.numel()
        ]
        self._state = self._present()

    def unchanged(self) -> bool:
        """Whether its parts and their weights are the same, and no hook and no other forward is on any of them."""
        return (
            self._members() == self._noted
            and self._present() == self._state
            and not any(
                part._forward_hooks
                or part._forward_pre_hooks
                or part._backward_hooks
                or part._backward_pre_hooks
                or "forward" in part.__dict__
                for part in self._modules
            )
        )

    def _members(self) -> list[int]:
        return [id(value) for named in self._named for value in named.values()]

    def _present(self) -> list[object]:
        """Return where each tensor is, how often it was modified, and its first element."""
        return [
            *(tensor.data_ptr() for tensor in self._tensors),
            *(tensor._version for tensor in self._counted),
            *(values.item() for values in self._first),
        ]


def _agree(parts: Parts, probe: Tensor, expected: tuple[tuple[Tensor, ...], Tensor]) -> bool:
    """Whether parts give the values and logits that the model gives, for batches of other sizes than compiled for."""
    values, logits = expected
    for rows in (slice(0, 1), slice(1, 3), slice(0, 3)):
        crossing = parts.prefix(probe[rows])
        if not all(_close(result, value[rows]) for result, value in zip(crossing, values, strict=True)):
            return False
        if not _close(logits_of(parts.suffix(*crossing)), logits[rows]):
            return False
    return True


def _close(result: Tensor, expected: Tensor) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return bool((result == expected).all())
    # PyTorch lets a GPU round the products of convolutions unless told not to.
    rounded = result.is_cuda and torch.backends.cudnn.conv.fp32_precision != "ieee"  # type: ignore[attr-defined]
    tolerance = 100 * TOLERANCE if rounded else TOLERANCE
    return bool((result - expected).abs().max() <= tolerance * expected.abs().max())
