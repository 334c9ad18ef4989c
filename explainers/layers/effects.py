"""The effect of an operation of PyTorch on layouts, and the table of rules for it."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from seewhy.explainers.layers.layout import Layout, broadcast, resized

aten = torch.ops.aten

Layouts = Callable[[Any], Layout | None]
"""Returns the layout of a tensor; None for a tensor outside the picture, and for anything else."""


class Effect(NamedTuple):
    """The effect of an operation.

    Attributes:
        layout: layout of its result; None if the result lies nowhere in the picture.
        kernel: whether it combines neighbouring positions, as a convolution does.
        mixes: whether it combines all positions, as attention does.
        pools: whether it sums up positions or selects one, so that a result outside the picture is right.
        beside: whether it takes class or register tokens alone.
    """

    layout: Layout | None
    kernel: bool = False
    mixes: bool = False
    pools: bool = False
    beside: bool = False


Rule = Callable[..., Effect]
LayoutRule = TypeVar("LayoutRule", bound=Callable[..., Layout | Effect | None])

RULES: dict[Any, Rule] = {}
"""By operation, without its overload."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of operations; names that this version of PyTorch lacks are skipped."""

    def enter(function: Rule) -> Rule:
        for name in names:
            if operation := getattr(aten, name, None):
                RULES[operation] = function
        return function

    return enter


def layout_rule(*names: str, kernel: bool = False) -> Callable[[LayoutRule], LayoutRule]:
    """Enter a function of one tensor's layout as the rule of operations; a tensor outside the picture stays outside.

    Args:
        names: see `rule`.
        kernel: kernel of the `Effect`, if the function returns a layout and not an effect.
    """

    def enter(function: LayoutRule) -> LayoutRule:
        @rule(*names)
        @wraps(function)
        def effect(layouts: Layouts, result: Tensor, tensor: Tensor, *args: Any, **kwargs: Any) -> Effect:
            layout = layouts(tensor)
            if layout is None:
                return Effect(None)
            outcome = function(layout, result, *args, **kwargs)
            return outcome if isinstance(outcome, Effect) else Effect(outcome, kernel)

        return function

    return enter


def default_effect(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor]) -> Effect:
    """Return the effect of an operation without a rule, judged by the shapes of its arguments and result."""
    placed = [layout for tensor in tensors if (layout := layouts(tensor)) is not None]
    if not placed:
        return Effect(None)
    layout = broadcast(placed, result.shape)
    if layout is None or not layout.spatial:
        layout = next((scaled for source in placed if (scaled := resized(source, result.shape)) is not None), None)
    elif len(placed) == 1 and len(placed[0].axes) == result.ndim and placed[0].shape != tuple(result.shape):
        # Some axes changed their size, as in a resize: the others keep their place.
        layout = resized(placed[0], result.shape) or layout
    return Effect(layout)
