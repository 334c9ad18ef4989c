"""A model on an accelerator: the part before a cut, so that hooks reach the rest in PyTorch; and input gradients."""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from math import isfinite
from operator import attrgetter, contains, itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from seewhy.explainers.execution.accelerators import ACCELERATORS, choose
from seewhy.explainers.execution.bfloat16 import rounded
from seewhy.explainers.execution.chunks import chunk_size
from seewhy.explainers.execution.cut import Cut, UncuttableError, cut_before
from seewhy.explainers.execution.pooled_head import PooledHead, pooled_head
from seewhy.explainers.execution.runtime import BATCH, Run
from seewhy.explainers.execution.segments import segmented
from seewhy.explainers.execution.vjp import Vjp, vjp_of
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.process_wide import exclusive_if_free

MOST_COMPILED = 8
"""Maximum number of cached graphs of a model; the least recently used one is dropped first."""

PICTURES_TO_COMPILE = 16
"""Pictures that run whole before a part is compiled: compiling pays only for many."""

GRADIENTS_TO_COMPILE = 128
"""Pictures whose gradients PyTorch computes before the vector-Jacobian product is compiled, which takes seconds."""

TOLERANCE = 1e-4
"""Largest difference between a part and the whole model that is accepted, as a share of the largest value."""

Compiled = TypeVar("Compiled")

_VJP = ("the vector-Jacobian product",)
"""The key of a `Vjp` among the compiled graphs; those of parts are paths of layers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Parts:
    """The two parts of a model.

    Attributes:
        prefix: runs the part before the layer; with a `head`, it returns the model's output after the feature maps.
        suffix: the part after it; see `Cut`.
        head: the suffix as a `PooledHead`, if it is one.
    """

    prefix: Run
    suffix: fx.GraphModule
    head: PooledHead | None = None

    def __call__(self, images: Tensor) -> Any:
        """Return the model's output for images (N, C, H, W)."""
        values = self.prefix(images)
        return self.suffix(*(values[:1] if self.head else values))

    def without_hooks(self, images: Tensor) -> Any:
        """Return the same, given that no module of the suffix has a hook."""
        return self.prefix(images)[1] if self.head else self(images)


class AcceleratedModel:
    """The parts of a model, and its gradients, compiled on demand and compared with the model.

    PyTorch runs the model while its modules have hooks, and after its weights have changed. Changes through ``.data``
    are noticed only if they change the first element of a tensor. The sole owner of the module can `seal` its weights.

    Args:
        module: the model, frozen.
        image_shape: (C, H, W) of the images that parts are compiled for; others run whole.
        layers: the cut for `whole`; empty for none.
        outputs: reads the outputs (N, ...) from the module's result.
        accelerator: a name in `ACCELERATORS`, or ``auto``.
        device: device of the module.
        bfloat16: whether to compute the first parts in bfloat16, on OpenVINO, if explanations stay the same.

    Attributes:
        precision: precision of the first parts: ``float32`` or ``bfloat16``.

    Raises:
        OptionError: an accelerator that is unknown, not installed, or not for this device.
    """

    def __init__(
        self,
        module: nn.Module,
        image_shape: tuple[int, int, int],
        layers: Sequence[str],
        outputs: Callable[[Any], Tensor],
        accelerator: str = "auto",
        device: torch.device | None = None,
        bfloat16: bool = False,
    ) -> None:
        self.device = torch.empty(0, device=device or "cpu").device  # with an index, as the devices of tensors have
        self.name = choose(accelerator, self.device)
        self.precision = "bfloat16" if bfloat16 else "float32"
        self._module = module
        self._shape = image_shape
        self._layers = tuple(layers)
        self._outputs = outputs
        self._compiled: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._pictures: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()
        self._watch = _Watch(module)
        self._sealed = False

    def parts(self, layers: Sequence[str], images: Tensor) -> Parts | None:
        """Return the model cut at the first of some layers; None if it must run whole.

        Args:
            layers: dotted paths.
            images: (N, C, H, W), the next ones to run.
        """
        if not self._serves(images):
            return None
        key = tuple(sorted(layers))
        return self._ready(key, images, PICTURES_TO_COMPILE, partial(self._compile, key))

    def vjp(self, images: Tensor) -> Vjp | None:
        """Return the model's vector-Jacobian product; None if PyTorch must compute it.

        Args:
            images: (N, C, H, W), the next ones whose gradients are computed.
        """
        if self.name != "openvino" or not self._serves(images):
            return None
        return self._ready(_VJP, images, GRADIENTS_TO_COMPILE, self._compile_vjp)

    def whole(self, images: Tensor) -> Parts | None:
        """Return the parts for a run without hooks and gradients; None if the model must run whole."""
        return self.parts(self._layers, images) if self._layers else None

    def warm(self) -> None:
        """Compile the parts of `whole` now, rather than after `PICTURES_TO_COMPILE` pictures."""
        with self._lock:
            key = tuple(sorted(self._layers))
            is_float32 = all(value.dtype == torch.float32 for value in self._module.parameters())
            if key and key not in self._compiled and is_float32:
                self._keep(key, self._compile(key))

    def submodules(self) -> list[nn.Module] | None:
        """Return all modules of the model, each once; None if some were replaced, so that they must be listed anew."""
        return self._watch.modules if self._sealed or self._watch.has_its_modules() else None

    def seal(self) -> None:
        """Stop checking the weights: the model is not shared, and checking hundreds of tensors takes as long as some
        layers."""
        self._sealed = True

    def _serves(self, images: Tensor) -> bool:
        """Whether the parts fit these images, and the model is unchanged."""
        return (
            tuple(images.shape[1:]) == self._shape
            and images.dtype == torch.float32
            and images.device == self.device
            and self._watch.untouched()
            and (self._sealed or self._watch.unchanged())
            # OpenVINO's clamp turns NaN into numbers. In PyTorch a model passes NaN on, and explainers refuse it.
            and (self.name != "openvino" or isfinite(images.detach().sum()))
        )

    def _ready(
        self, key: tuple[str, ...], images: Tensor, threshold: int, compile_graph: Callable[[], Compiled | None]
    ) -> Compiled | None:
        """Return a compiled graph; None if it cannot be compiled, or for fewer pictures than the threshold."""
        with self._lock:
            if key not in self._compiled:
                self._pictures[key] += len(images)
                if self._pictures[key] < threshold:
                    return None
                with exclusive_if_free() as free:
                    if not free:  # another model is being compiled, which may take long
                        return None
                    self._keep(key, compile_graph())
            self._compiled.move_to_end(key)
            graph: Compiled | None = self._compiled[key]
            return graph

    def _keep(self, key: tuple[str, ...], graph: object) -> None:
        """Cache a compiled graph, and drop the least recently used ones."""
        self._pictures.pop(key, None)
        self._compiled[key] = graph
        while len(self._compiled) > MOST_COMPILED:
            self._compiled.popitem(last=False)

    def _compile(self, layers: tuple[str, ...]) -> Parts | None:
        """Return the parts, on the accelerator or else on PyTorch, if they agree with the model."""
        with evaluation_mode(self._module), torch.inference_mode(False), torch.no_grad():
            probe = self._probe()
            try:
                cut = cut_before(self._module, layers, probe[:1])
            except UncuttableError as error:
                _log.info("Passes for %s run all of the model: %s", ", ".join(layers), error)
                return None
            # Copies, because a model may modify its input in place.
            expected = cut.prefix(probe.clone()), self._outputs(self._module(probe.clone()))
            head = pooled_head(cut.suffix, expected[0]) if len(layers) == 1 else None
            if self.precision == "bfloat16" and (run := self._in_bfloat16(cut)):
                prefix = partial(_followed, run, head) if head else run
                return self._segmented(Parts(prefix, cut.suffix, head), cut, layers, expected)
            # PyTorch takes over where an accelerator fails; where both do, the model runs whole.
            for name in dict.fromkeys((self.name, "eager")):
                try:
                    first = head.joined(cut.prefix) if head else cut.prefix
                    parts = Parts(ACCELERATORS[name](first, probe[:1]), cut.suffix, head)
                    if self._agree(parts, probe, expected):
                        return self._segmented(parts, cut, layers, expected) if name == "openvino" else parts
                    _log.warning("The results of %s differ from the model's before %s.", name, cut.layer)
                except Exception as error:  # a trace or runtime may raise anything
                    _log.warning("%s cannot run the part before %s: %s", name, cut.layer, error)
            return None

    def _in_bfloat16(self, cut: Cut) -> Run | None:
        """Return the first part in bfloat16; None if it stays in float32, as then does the whole model."""
        try:
            return rounded(cut, self._outputs, self._shape)
        except Exception as error:  # a trace or the runtime may raise anything
            _log.warning("The model stays in float32; bfloat16 does not suit the part before %s: %s", cut.layer, error)
            self.precision = "float32"
            self._compiled.clear()  # graphs in bfloat16
            return None

    def _segmented(
        self, parts: Parts, cut: Cut, layers: tuple[str, ...], expected: tuple[tuple[Tensor, ...], Tensor]
    ) -> Parts:
        """Return the parts with accelerated stretches between several layers, if these give the same."""
        values, outputs = expected
        if len(layers) > 1 and len(values) == 1:
            try:
                suffix = segmented(cut, layers, values[0])
                if _close(self._outputs(suffix(values[0])), outputs):
                    return Parts(parts.prefix, suffix)
            except Exception as error:  # a trace or the runtime may raise anything
                _log.info("The part after %s runs in PyTorch: %s", cut.layer, error)
        return parts

    def _probe(self) -> Tensor:
        """Return three images (3, C, H, W) to trace and to compare results with."""
        return torch.randn(3, *self._shape, generator=torch.Generator().manual_seed(0)).to(self.device)

    def _compile_vjp(self) -> Vjp | None:
        """Return the vector-Jacobian product, if the graph of gradients can be written and agrees with the model."""
        with evaluation_mode(self._module), torch.inference_mode(False):
            try:
                probe = self._probe()
                most = chunk_size(self._module, probe, backward=True)
                return vjp_of(self._module, self._outputs, probe, most)
            except Exception as error:  # a trace or the runtime may raise anything
                _log.info("Gradients of pictures are computed in PyTorch: %s", error)
                return None

    def _agree(self, parts: Parts, probe: Tensor, expected: tuple[tuple[Tensor, ...], Tensor]) -> bool:
        """Whether the parts give the same results as the model, for other batch sizes than compiled for."""
        values, outputs = expected
        for count in (1, len(probe), BATCH):  # OpenVINO has graphs for one and for `BATCH`
            rows = torch.arange(count) % len(probe)
            results = parts.prefix(probe[rows])
            crossing, predicted = results[: len(values)], results[len(values) :]
            if not all(_close(result, value[rows]) for result, value in zip(crossing, values, strict=True)):
                return False
            for raw in (parts.suffix(*crossing), *predicted):
                if not _close(self._outputs(raw), outputs[rows]):
                    return False
        return True


_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Watch:
    """Tells whether a module has changed.

    It reads plain attributes only: properties and methods of modules may run the user's code. This happens before each
    pass, and a model has hundreds of modules and tensors; therefore loops run outside of Python where they can.

    Attributes:
        modules: all of its modules, each once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._children = [part._modules for part in self.modules]
        self._tables = [members for part in self.modules for members in (part._parameters, part._buffers) if members]
        self._start_children, self._start_members = _members(self._children), _members(self._tables)
        self._tensors = [*module.parameters(), *module.buffers()]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._first = [
            tensor.detach().numpy().reshape(-1)[:1]
            for tensor in self._tensors
            if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.numel()
        ]
        self._state = self._present()

    def unchanged(self) -> bool:
        """Whether modules and weights are the same."""
        return (
            self.has_its_modules() and _members(self._tables) == self._start_members and self._present() == self._state
        )

    def has_its_modules(self) -> bool:
        """Whether no module was added, replaced or removed."""
        return _members(self._children) == self._start_children

    def untouched(self) -> bool:
        """Whether no module has a hook or another `forward`."""
        attributes = list(map(vars, self.modules))
        return not (any(map(any, map(_HOOKS, attributes))) or any(map(contains, attributes, repeat("forward"))))

    def _present(self) -> list[object]:
        """Return each tensor's address, version and first element."""
        return [
            *map(Tensor.data_ptr, self._tensors),
            *map(attrgetter("_version"), self._counted),
            *map(np.ndarray.item, self._first),
        ]


def _members(tables: list[dict[str, Any]]) -> list[int]:
    """Return the identities of all values of some tables."""
    return list(map(id, chain.from_iterable(map(dict.values, tables))))


def _followed(run: Run, head: PooledHead, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the feature maps of a run, and the head's outputs for them."""
    (features,) = run(images)
    return features, head.outputs(features)


def _close(result: Tensor, expected: Tensor) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return bool((result == expected).all())
    # By default PyTorch lets a GPU round the factors of convolutions (TF32).
    rounded = result.is_cuda and torch.backends.cudnn.conv.fp32_precision != "ieee"  # type: ignore[attr-defined]
    tolerance = 100 * TOLERANCE if rounded else TOLERANCE
    return bool((result - expected).abs().max() <= tolerance * expected.abs().max())
