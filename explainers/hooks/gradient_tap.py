"""Where gradients are read and replaced: the tap and the leaf.

A bare full backward hook wraps a module's output in a view that later in-place operations may not touch, so it raises
on many modules of stock CNNs (``ReLU(inplace=True)``, ``out += identity``; pytorch#61519). A *tap* hands the model a
copy instead, which it may modify, and sees the gradients of all tensors of one call at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

Receive = Callable[[tuple[Tensor | None, ...]], Sequence[Tensor | None]]
"""Takes the gradients of the tapped tensors, None where none flows, and returns the gradients that flow on."""


class _Tap(torch.autograd.Function):
    """An identity whose backward pass calls a function.

    Unlike a full backward hook of an `nn.Identity`, it takes several tensors and tells a missing gradient from zero.
    """

    @staticmethod
    def forward(ctx: Any, receive: Receive, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.receive = receive
        ctx.set_materialize_grads(False)  # else a missing gradient would arrive as zeros
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.receive(gradients))


def tap(tensors: Sequence[Tensor], receive: Receive) -> list[Tensor]:
    """Tap tensors jointly, and return their copies for the model.

    Args:
        tensors: floating-point or complex; a tensor without ``requires_grad`` becomes a leaf that has it.
        receive: called once in each backward pass, as soon as all of their gradients are known.
    """
    return list(_Tap.apply(receive, *map(_needing_gradient, tensors))) if tensors else []


def mark(tensor: Tensor) -> None:
    """Mark in the graph that a hook of this tensor needs its gradient."""
    tensor.grad_fn.metadata.setdefault(_MARK, set()).add(tensor.output_nr)  # type: ignore[union-attr]


def edges_behind_taps(score: Tensor) -> list[GradientEdge]:
    """Return the edges that a backward pass from a score must reach to run all taps and marked hooks."""
    ends: list[GradientEdge] = []
    visited: set[Any] = set()
    stack = [score.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]
        ends += [GradientEdge(node, number) for number in metadata.get(_MARK, ())]
        for before, number in node.next_functions:
            stack.append(before)
            # `torch.autograd.grad` runs only nodes on a path to one of its inputs, so the end lies behind the tap.
            if before is not None and is_tap(node):
                ends.append(GradientEdge(before, number))
    return ends


_MARK = "seewhy"


def _needing_gradient(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        return tensor
    # Autograd cannot save a tensor made in inference mode; its clone can be saved.
    return (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()


class Gradients:
    """The gradients of one call's tensors, in the structure of these tensors; None until they arrive."""

    def __init__(self) -> None:
        self.leaves: list[Tensor | None] = [None]
        self._spec = tree_flatten(None)[1]

    def take_structure(self, tensors: Any) -> None:
        """Adopt the structure of the tensors whose gradients these are."""
        leaves, self._spec = tree_flatten(tensors)
        self.leaves = [None] * len(leaves)

    def put(self, index: int, gradient: Tensor | None) -> None:
        """Store the gradient of leaf `index`."""
        # A copy: autograd may make this very tensor the `.grad` of a leaf, and accumulate into it in the next pass.
        self.leaves[index] = None if gradient is None else gradient.detach().clone()

    def value(self) -> Any:
        """Return the gradients in the structure of the tensors."""
        return self.of(self.leaves)

    def of(self, leaves: Sequence[Tensor | None]) -> Any:
        """Return other leaves in the same structure, or as a tuple if it refuses them (as a `PackedSequence` does)."""
        structure = self._unflatten(leaves)
        return tuple(leaves) if structure is _UNFIT else structure

    def arguments(self, leaves: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return other leaves as positional and keyword arguments, if the structure is that of arguments."""
        structure = self._unflatten(leaves)
        args, kwargs = (tuple(leaves), {}) if structure is _UNFIT else structure
        return args, kwargs or {}

    def _unflatten(self, leaves: Sequence[Tensor | None]) -> Any:
        try:  # a user's class may check its members
            return tree_unflatten(list(leaves), self._spec)
        except (AssertionError, AttributeError, TypeError, ValueError):
            return _UNFIT


_UNFIT = object()


def substituted(value: Any, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Return a structure with tensors replaced. Lists and dicts without such tensors stay the same objects.

    Args:
        value: the structure.
        pairs: old and new tensor; a tensor that occurs several times has as many pairs, in the structure's order.
    """
    if not pairs:
        return value
    ids = frozenset(id(old) for old, _ in pairs)
    replacements: dict[int, list[Tensor]] = {}
    for old, new in reversed(pairs):
        replacements.setdefault(id(old), []).append(new)

    # PyTorch keeps this function in a reference cycle, so it closes over ids and not over tensors.
    def stays(node: Any) -> bool:
        return isinstance(node, list | dict) and not any(id(leaf) in ids for leaf in tree_leaves(node))

    return tree_map(
        lambda leaf: replacements[id(leaf)].pop() if replacements.get(id(leaf)) else leaf, value, is_leaf=stays
    )


def leaf_of(tensor: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Return a leaf of autograd with the values of a tensor, and the tensor to hand on in its place.

    A shared tensor itself becomes a copy of the leaf, so that all of its holders depend on the leaf.
    """
    if shared and not tensor._is_view():  # `detach_` refuses views
        leaf = tensor.detach().clone().requires_grad_()
        return leaf, tensor.detach_().copy_(leaf)
    leaf = tensor.detach().requires_grad_()
    return leaf, leaf


def leaf_again(tensor: Tensor) -> Tensor:
    """Return a tensor that requires a gradient, when gradient checkpointing recomputes a former leaf."""
    return tensor if tensor.requires_grad or not is_differentiable(tensor) else tensor.detach().requires_grad_()


def is_differentiable(value: Any) -> bool:
    """Whether a value is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def is_one_of(tensor: Tensor, arguments: Any) -> bool:
    """Whether this very tensor, not one equal to it, is in a structure."""
    return any(tensor is argument for argument in tree_flatten(arguments)[0])


def copied(value: Any) -> Any:
    """Return a structure with copies of its tensors, detached and safe from in-place operations."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)


def is_tap(node: Any) -> bool:
    """Whether a node of a graph is a tap."""
    return isinstance(node, _Tap._backward_cls)
