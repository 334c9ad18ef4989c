"""What an operation of PyTorch does to where tensors lie in the picture, and the table of rules that say so."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seewhy.explainers.layers.layout import Layout, broadcast, resized

aten = torch.ops.aten

Layouts = Callable[[Any], Layout | None]
"""The layout of a tensor; None of what has no place in the picture, and of what is no tensor."""


class Effect(NamedTuple):
    """What an operation does.

    Attributes:
        layout: of its result; None if that has no place in the picture.
        kernel: whether it looks at several neighbouring positions.
        mixes: whether it looks at all positions by themselves, as attention does.
        spent: whether a result that has no place in the picture is right: positions were summed up, or one taken.
    """

    layout: Layout | None
    kernel: bool = False
    mixes: bool = False
    spent: bool = False


Rule = Callable[..., Effect]

RULES: dict[Any, Rule] = {}
"""By operation, without its overload."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of operations, those that this version of PyTorch has."""

    def enter(function: Rule) -> Rule:
        for name in names:
            if operation := getattr(aten, name, None):
                RULES[operation] = function
        return function

    return enter


def default_effect(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor]) -> Effect:
    """Return what an operation without a rule does, by the shapes of what it takes and returns."""
    known = [layout for tensor in tensors if (layout := layouts(tensor)) is not None]
    if not known:
        return Effect(None)
    layout = broadcast(known, result.shape)
    if layout is None or not layout.spatial:
        layout = next((scaled for source in known if (scaled := resized(source, result.shape)) is not None), None)
    elif len(known) == 1 and len(known[0].axes) == result.ndim and known[0].shape != tuple(result.shape):
        # One of several axes changed its size.
        layout = resized(known[0], result.shape) or layout
    return Effect(layout)
