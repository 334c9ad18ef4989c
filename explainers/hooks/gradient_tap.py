"""Where gradients are read and replaced without a view that in-place operations may not touch: the tap and the leaf.

A bare full backward hook wraps a module's output in a view that a later in-place operation may not touch, so it
raises on many modules of stock CNNs (``ReLU(inplace=True)``, ``out += identity``; pytorch#61519). A *tap* hands the
model a copy instead, free to be modified, and sees the gradients of all tensors of one call at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

Receive = Callable[[tuple[Tensor | None, ...]], Sequence[Tensor | None]]
"""Takes the gradients of the tapped tensors, None where none flows, and returns what flows on in their place."""


class _Tap(torch.autograd.Function):
    """The identity, whose backward pass goes through a function.

    Unlike the full backward hook of an `nn.Identity` it takes several tensors and tells no gradient from a zero one.
    """

    @staticmethod
    def forward(ctx: Any, receive: Receive, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.receive = receive
        ctx.set_materialize_grads(False)  # else a gradient that never came would arrive as zeros
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.receive(gradients))


def tap(tensors: Sequence[Tensor], receive: Receive) -> list[Tensor]:
    """Tap tensors together, and return what to hand on in their place.

    Args:
        tensors: floating-point or complex; those that need no gradient are made to.
        receive: called once in each backward pass, as soon as the gradients of all of them are known.
    """
    return list(_Tap.apply(receive, *map(_needing_gradient, tensors))) if tensors else []


def mark(tensor: Tensor) -> None:
    """Note in the graph that a hook of this tensor waits for its gradient."""
    tensor.grad_fn.metadata.setdefault(_MARK, set()).add(tensor.output_nr)  # type: ignore[union-attr]


def edges_behind_taps(score: Tensor) -> list[GradientEdge]:
    """Return where a backward pass must lead for all taps and marks in the graph of a score to be reached."""
    ends: list[GradientEdge] = []
    seen: set[Any] = set()
    waiting = [score.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]
        ends += [GradientEdge(node, number) for number in metadata.get(_MARK, ())]
        for before, number in node.next_functions:
            waiting.append(before)
            # Autograd runs only nodes that lead to an end, so the tap itself needs an end behind it.
            if before is not None and isinstance(node, _Tap._backward_cls):
                ends.append(GradientEdge(before, number))
    return ends


_MARK = "seewhy"


def _needing_gradient(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        return tensor
    # Autograd keeps no tensor made in inference mode.
    return (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()


class Gradients:
    """The gradients of one call's tensors, in the structure of those tensors; None until one arrives."""

    def __init__(self) -> None:
        self.leaves: list[Tensor | None] = [None]
        self._spec = tree_flatten(None)[1]

    def take_structure(self, tensors: Any) -> None:
        """Take the structure of the tensors that the gradients belong to."""
        leaves, self._spec = tree_flatten(tensors)
        self.leaves = [None] * len(leaves)

    def put(self, index: int, gradient: Tensor | None) -> None:
        """Keep the gradient of leaf `index`."""
        # A copy, for autograd may make the very tensor a leaf's `.grad`, and add to it in the next pass.
        self.leaves[index] = None if gradient is None else gradient.detach().clone()

    def value(self) -> Any:
        """Return the gradients in the structure of the tensors."""
        return self.of(self.leaves)

    def of(self, leaves: Sequence[Tensor | None]) -> Any:
        """Return other leaves in the same structure; as a tuple, where it cannot hold them (a `PackedSequence`)."""
        built = self._built(leaves)
        return tuple(leaves) if built is _UNFIT else built

    def arguments(self, leaves: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return other leaves as positional and keyword arguments, which must have been the structure."""
        built = self._built(leaves)
        args, kwargs = (tuple(leaves), {}) if built is _UNFIT else built
        return args, kwargs or {}

    def _built(self, leaves: Sequence[Tensor | None]) -> Any:
        try:  # structures of the user's may check what they are built of
            return tree_unflatten(list(leaves), self._spec)
        except (AssertionError, AttributeError, TypeError, ValueError):
            return _UNFIT


_UNFIT = object()


def substituted(value: Any, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Return a structure with tensors replaced; its lists and dicts without any of them stay the same objects.

    Args:
        value: the structure.
        pairs: old and new; one that occurs several times stands in as many pairs, in the order of the structure.
    """
    if not pairs:
        return value
    ids = frozenset(id(old) for old, _ in pairs)
    waiting: dict[int, list[Tensor]] = {}
    for old, new in reversed(pairs):
        waiting.setdefault(id(old), []).append(new)

    # It refers to no tensor, for PyTorch keeps it in a reference cycle.
    def stays(node: Any) -> bool:
        return isinstance(node, list | dict) and not any(id(leaf) in ids for leaf in tree_leaves(node))

    return tree_map(lambda leaf: waiting[id(leaf)].pop() if waiting.get(id(leaf)) else leaf, value, is_leaf=stays)


def leaf_of(tensor: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Return a leaf of autograd with the values of a tensor, and what to hand on in the tensor's place.

    A tensor that others hold too becomes a copy of the leaf itself, so that all of them depend on it.
    """
    if shared and not tensor._is_view():  # `detach_` refuses views
        leaf = tensor.detach().clone().requires_grad_()
        return leaf, tensor.detach_().copy_(leaf)
    leaf = tensor.detach().requires_grad_()
    return leaf, leaf


def leaf_again(tensor: Tensor) -> Tensor:
    """Return a tensor that needs a gradient, where gradient checkpointing computes again what became a leaf."""
    return tensor if tensor.requires_grad or not is_differentiable(tensor) else tensor.detach().requires_grad_()


def is_differentiable(value: Any) -> bool:
    """Whether a value is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def is_one_of(tensor: Tensor, arguments: Any) -> bool:
    """Whether this very tensor, not one equal to it, is in a structure."""
    return any(tensor is argument for argument in tree_flatten(arguments)[0])


def copied(value: Any) -> Any:
    """Return a structure with its tensors copied, out of the graph and safe from in-place operations."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)


def is_tap(node: Any) -> bool:
    """Whether a node of a graph is a tap."""
    return isinstance(node, _Tap._backward_cls)
