"""Functions that users register as hooks: checked when they are registered, and named in errors."""

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

Hook = Callable[..., Any]

_MOST_NAMES = 3


def callable_with(hook: Any, method: str, arguments: str) -> Hook:
    """Return a hook that can be called with these arguments.

    Args:
        hook: as the user gave it.
        method: method of the session that registers the hook.
        arguments: names of the hook's arguments, separated by commas.

    Raises:
        TypeError: the hook cannot be called, or not with these arguments; the message names it.
    """
    if not callable(hook):
        raise TypeError(f"A hook must be callable, got {type(hook).__name__}; pass the hook first, then where.")
    function: Hook = hook
    try:
        parameters = signature(function)
    except ValueError:  # written in C
        return function
    try:
        parameters.bind(*arguments.split(", "))
    except TypeError as error:
        raise TypeError(
            f"`{method}` calls hook({arguments}), but {name_of(function)} takes {parameters}: {error}."
        ) from None
    return function


def name_of(hook: Hook) -> str:
    """Return the name of a hook, and its place in the source."""
    function = hook.__func__ if isinstance(hook, MethodType) else hook
    if isinstance(function, type | BuiltinFunctionType):
        return function.__name__
    if not isinstance(function, FunctionType):
        return type(function).__name__
    code = function.__code__
    return f"{function.__name__} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def listed(names: Sequence[str]) -> str:
    """Return the first of some paths, and the number of others."""
    further = len(names) - _MOST_NAMES
    return ", ".join(map(repr, names[:_MOST_NAMES])) + (f" and {further} more" if further > 0 else "")


def fitting(replacement: Any, gradient: Tensor | None, hook: Hook, place: str) -> Tensor:
    """Return the gradient that a hook returned, if it has the shape of the one that it replaces.

    Args:
        place: where the hook ran, such as ``full_backward at 'layer4'``.

    Raises:
        ValueError: the value is not a tensor, or has another shape.
    """
    if isinstance(replacement, Tensor) and (gradient is None or replacement.shape == gradient.shape):
        return replacement
    answer = f"shape {_shape(replacement)}" if isinstance(replacement, Tensor) else type(replacement).__name__
    shape = None if gradient is None else _shape(gradient)
    raise ValueError(
        f"The hook {name_of(hook)} of {place} returned {answer} for a gradient of shape {shape}; return one of that "
        "shape, or None."
    )


def fitting_all(
    replacement: Any, gradients: Sequence[Tensor | None], hook: Hook, place: str, side: str
) -> list[Tensor | None]:
    """Return the gradients that a hook returned, checked against those that they replace; errors as in `fitting`."""
    values = tree_flatten(replacement)[0]
    if len(values) != len(gradients):
        raise ValueError(
            f"The hook {name_of(hook)} of {place} returned {len(values)} gradients for {len(gradients)} {side}s; "
            f"return a tuple like grad_{side}, or None."
        )
    pairs = zip(values, gradients, strict=True)
    return [None if new is None else fitting(new, old, hook, place) for new, old in pairs]


def misfit(replacement: Any, value: Any, hook: Hook, place: str) -> str:
    """Return a note about a hook that changed the shapes of a value; empty if they are the same."""
    new, old = _shapes(replacement), _shapes(value)
    return "" if new == old else f"The hook {name_of(hook)} of {place} had returned shapes {new} in place of {old}."


def _shapes(value: Any) -> str:
    return ", ".join(_shape(leaf) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in tree_leaves(value))


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
