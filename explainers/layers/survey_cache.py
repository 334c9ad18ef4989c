"""Cached surveys: those of models, and those of bare modules, valid until the module changes."""

import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from seewhy.explainers.hooks.selection import as_module, is_compiled_in_place
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps, grid_axes
from seewhy.explainers.layers.survey import Survey, survey_module
from seewhy.explainers.process_wide import exclusive, exclusive_if_free

MOST_KEYS = 8
"""Maximum number of keys of a module in a cache, such as sizes of pictures; the oldest is dropped first."""

Value = TypeVar("Value")


class Surveyed(Protocol):
    """A model that carries its survey, such as a `LoadedModel`."""

    @property
    def module(self) -> nn.Module:
        """The network."""

    @property
    def survey(self) -> Survey:
        """Its layers, in execution order, for pictures of one size."""


class ModuleCache(Generic[Value]):
    """Cached facts about modules, by key; valid until the module changes."""

    def __init__(self) -> None:
        self._entries: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, tuple[object, Value]]]
        self._entries = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, module: nn.Module, key: Hashable) -> Value | None:
        """Return the valid entry of a key, or None."""
        with self._lock:
            state, value = self._entries.get(module, {}).get(key, (None, None))
        return value if state is not None and state == state_of(module) else None

    def put(self, module: nn.Module, key: Hashable, value: Value) -> Value:
        """Keep a value for a key, and return it."""
        state = state_of(module)
        with self._lock:
            entries = self._entries.setdefault(module, {})
            entries.pop(key, None)
            if len(entries) >= MOST_KEYS:
                del entries[next(iter(entries))]
            entries[key] = state, value
        return value


_surveys = ModuleCache[Survey]()


def survey_of(
    model: nn.Module | Surveyed,
    image_shape: tuple[int, int, int],
    outputs: Callable[[Any], Tensor],
    check: Callable[[], None] | None = None,
) -> Survey:
    """Return the survey that a model carries for pictures of a size, or make and cache one.

    A change of modules, their hooks or plain attributes, of parameters or buffers invalidates the cache.

    Args:
        model: bare, or one that carries its survey.
        image_shape: (C, H, W) of the input.
        outputs: reads the outputs (N, ...) from the module's result.
        check: called now and then while this thread waits for the process-wide lock; it ends the wait by raising.
    """
    if not isinstance(model, nn.Module):
        layers = model.survey.layers
        if layers and layers[0].input_shape == (1, *image_shape):
            return model.survey
    module, key = as_module(model), (image_shape, outputs)
    if (present := _surveys.get(module, key)) is not None:
        return present
    with exclusive_if_free() as free, nullcontext() if free else exclusive(check):
        if (present := _surveys.get(module, key)) is not None:
            return present
        return _surveys.put(module, key, survey_module(module, image_shape, outputs))


def state_of(module: nn.Module) -> object:
    """Return everything that determines what a module computes, except its mode; equal only if nothing changed."""
    parts = tuple((path, weakref.ref(part), *_attributes(part)) for path, part in module.named_modules())
    tensors = tuple(_version(tensor) for tensor in (*module.parameters(), *module.buffers()))
    return parts, tensors


def _attributes(part: nn.Module) -> tuple[object, ...]:
    """Return a module's code, hooks and plain attributes."""
    attributes = vars(part)
    # PyTorch has no public list of a module's hooks.
    hooks = (*part._forward_pre_hooks, *part._forward_hooks)
    plain = tuple((name, value) for name, value in attributes.items() if name != "training" and _is_plain(value))
    forwards = id(getattr(type(part), "forward", None)), id(attributes.get("forward")), is_compiled_in_place(part)
    return type(part), *forwards, hooks, plain


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(item, bool | int | float | str) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _version(tensor: Tensor) -> tuple[object, ...]:
    if nn.parameter.is_lazy(tensor):
        return (id(tensor),)
    changes = 0 if tensor.is_inference() else tensor._version
    return id(tensor), changes, tensor.shape, tensor.dtype, tensor.device


def maps_at(
    model: nn.Module | Surveyed,
    path: str,
    shape: tuple[int, ...],
    image_shape: tuple[int, int, int],
    outputs: Callable[[Any], Tensor],
    check: Callable[[], None] | None = None,
) -> FeatureMaps | None:
    """Return how the output of a model's layer holds feature maps; None if it holds none.

    The survey decides: that of the model, or, where proportions leave doubt, a new one of a bare module.

    Args:
        model: bare, or one that carries its survey.
        path: path of the layer.
        shape: shape of its output, batch axis first.
        image_shape: (C, H, W) of the input.
        outputs, check: see `survey_of`.
    """
    likely = grid_axes(shape, image_shape[1:])
    if len(shape) == 3:  # how many tokens there are depends on the size of the picture
        layers = survey_of(model, image_shape, outputs, check).layers
    elif len(shape) != 4:
        return None
    elif isinstance(model, nn.Module):
        if likely == (1, 2, 3):  # the other reading may be wrong: a map pooled along one axis looks like channels-last
            return GridMaps(likely)
        layers = survey_of(model, image_shape, outputs, check).layers
    else:
        layers = model.survey.layers
    for layer in layers:
        if layer.path == path:
            return layer.maps
    return likely and GridMaps(likely)  # the layer does not run in Python, or has several names


def surveyed_maps(model: nn.Module | Surveyed) -> dict[str, FeatureMaps | None]:
    """Return how each layer's output holds feature maps, for a model that carries its survey."""
    layers = () if isinstance(model, nn.Module) else model.survey.layers
    return {layer.path: layer.maps for layer in layers if layer.calls == 1 and len(layer.output_shape or ()) in (3, 4)}
