"""Surveys that are at hand: those that models carry, and those of bare modules for as long as these do not change."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn

from seewhy.explainers.hooks.selection import as_module
from seewhy.explainers.layers.layout import grid_axes
from seewhy.explainers.layers.survey import Survey, survey
from seewhy.explainers.process_wide import exclusive, exclusive_if_free

_MOST_SIZES = 8
"""Sizes of pictures for which a module's surveys are kept; the oldest goes first."""


class _Entry(NamedTuple):
    state: object
    survey: Survey


_surveys: "weakref.WeakKeyDictionary[nn.Module, dict[tuple[int, int, int], _Entry]]" = weakref.WeakKeyDictionary()


def survey_of(model: object, image_shape: tuple[int, int, int], check: Callable[[], None] | None = None) -> Survey:
    """Return the survey that a model carries for pictures of a size, or make one and keep it.

    It is made anew after any change of the modules, their hooks and plain attributes, the parameters and buffers.

    Args:
        model: an `nn.Module` or a `LoadedModel`.
        image_shape: (C, H, W) of the input.
        check: called now and then while this thread waits for others that must be alone; it ends the wait by raising.
    """
    carried = getattr(model, "survey", None)
    if isinstance(carried, Survey) and carried.layers and carried.layers[0].input_shape == (1, *image_shape):
        return carried
    module = as_module(model)
    present = _kept(module, image_shape)
    if present is not None:
        return present
    with exclusive_if_free() as free, nullcontext() if free else exclusive(check):
        present = _kept(module, image_shape)
        if present is None:
            present = survey(module, image_shape)
            entries = _surveys.setdefault(module, {})
            entries.pop(image_shape, None)
            if len(entries) >= _MOST_SIZES:
                del entries[next(iter(entries))]
            entries[image_shape] = _Entry(_state(module), present)
    return present


def _kept(module: nn.Module, image_shape: tuple[int, int, int]) -> Survey | None:
    entry = _surveys.get(module, {}).get(image_shape)
    return entry.survey if entry is not None and entry.state == _state(module) else None


def _state(module: nn.Module) -> object:
    """Return what a survey may depend on; equal only where nothing of it was changed."""
    parts = tuple((path, weakref.ref(part), *_attributes(part)) for path, part in module.named_modules())
    tensors = tuple(_version(tensor) for tensor in (*module.parameters(), *module.buffers()))
    return parts, tensors


def _attributes(part: nn.Module) -> tuple[object, ...]:
    """Return what a module is besides its tensors and modules: its code, hooks and plain attributes."""
    attributes = vars(part)
    # PyTorch has no public list of a module's hooks.
    hooks = (*part._forward_pre_hooks, *part._forward_hooks)
    plain = tuple((name, value) for name, value in attributes.items() if name != "training" and _is_plain(value))
    return type(part), id(getattr(type(part), "forward", None)), id(attributes.get("forward")), hooks, plain


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(item, bool | int | float | str) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _version(tensor: Tensor) -> tuple[object, ...]:
    if nn.parameter.is_lazy(tensor):
        return (id(tensor),)
    changes = 0 if tensor.is_inference() else tensor._version
    return id(tensor), changes, tensor.shape, tensor.dtype, tensor.device


def axes_at(
    model: object,
    path: str,
    shape: tuple[int, ...],
    image_shape: tuple[int, int, int],
    check: Callable[[], None] | None = None,
) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns in what a layer of a model returned, or None if it has none.

    A model that carries its survey is asked; a bare module is surveyed where proportions do not tell.

    Args:
        model: an `nn.Module` or a `LoadedModel`.
        path: of the layer.
        shape: of its output, batch axis first.
        image_shape: (C, H, W) of the input.
        check: see `survey_of`.
    """
    if len(shape) != 4:
        return None
    surveyed = getattr(model, "survey", None)
    if not isinstance(surveyed, Survey):
        axes = grid_axes(shape, image_shape[1:])
        if axes == (1, 2, 3):  # else a map that was pooled along one axis may look as if channels came last
            return axes
        surveyed = survey_of(model, image_shape, check)
    for layer in surveyed.layers:
        if layer.path == path:
            return layer.grid.axes if layer.grid is not None else None
    return grid_axes(shape, image_shape[1:])  # it does not run in Python, or has several names


def surveyed_axes(model: object) -> dict[str, tuple[int, int, int] | None]:
    """Return the axes of channels, rows and columns in what each layer returns, of a model that carries its survey."""
    surveyed = getattr(model, "survey", None)
    layers = surveyed.layers if isinstance(surveyed, Survey) else ()
    return {
        layer.path: None if layer.grid is None else layer.grid.axes
        for layer in layers
        if layer.calls == 1 and len(layer.output_shape or ()) == 4
    }
