"""Where gradients are read and replaced without a view that in-place operations may not touch: the tap and the leaf.

A bare full backward hook wraps a module's output in a view that a later in-place operation may not touch, so it
raises on many modules of stock CNNs (``ReLU(inplace=True)``, ``out += identity``; pytorch#61519). A *tap* hands the
model a copy instead, free to be modified, and sees the gradients of all tensors of one call at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

Receive = Callable[[tuple[Tensor | None, ...]], Sequence[Tensor | None]]
"""Takes the gradients of the tapped tensors, None where none flows, and returns what flows on in their place."""


class _Tap(torch.autograd.Function):
    """The identity, whose backward pass goes through a function.

    Unlike the full backward hook of an `nn.Identity` it takes several tensors and tells no gradient from a zero one.
    """

    @staticmethod
    def forward(ctx: Any, receive: Receive, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.receive(gradients))


def tap(tensors: Sequence[Tensor], receive: Receive) -> tuple[list[Tensor], list[Tensor]]:
    """Tap tensors together.

    Args:
        tensors: floating-point or complex; those that need no gradient are made to.
        receive: called once in each backward pass, as soon as the gradients of all of them are known.

    Returns:
        What to hand on in their place, and the leaves made of those that needed no gradient.
    """
    leaves = []
    inputs = []
    for tensor in tensors:
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
            leaves.append(tensor)
        inputs.append(tensor)
    return list(_Tap.apply(receive, *inputs)) if inputs else [], leaves


class Gradients:
    """The gradients of one call's tensors, in the structure of those tensors; None until one arrives."""

    def __init__(self, tensors: Any) -> None:
        leaves, self._spec = tree_flatten(tensors)
        self.leaves: list[Tensor | None] = [None] * len(leaves)

    def put(self, index: int, gradient: Tensor | None) -> None:
        """Keep the gradient of leaf `index`."""
        # A copy, for autograd may make the very tensor a leaf's `.grad`, and add to it in the next pass.
        self.leaves[index] = None if gradient is None else gradient.detach().clone()

    def value(self) -> Any:
        """Return the gradients in the structure of the tensors."""
        return self.of(self.leaves)

    def of(self, leaves: Sequence[Tensor | None]) -> Any:
        """Return other leaves in the same structure."""
        return tree_unflatten(list(leaves), self._spec)


def leaf_of(tensor: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Return a leaf of autograd with the values of a tensor, and what to hand on in the tensor's place.

    A tensor that others hold too becomes a copy of the leaf itself, so that all of them depend on it.
    """
    if shared and not tensor._is_view():
        leaf = tensor.detach().clone().requires_grad_()
        return leaf, tensor.detach_().copy_(leaf)
    leaf = tensor.detach().requires_grad_()
    return leaf, leaf


def is_differentiable(value: Any) -> bool:
    """Whether a value is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def is_one_of(tensor: Tensor, arguments: Any) -> bool:
    """Whether this very tensor, not one equal to it, is in a structure."""
    return any(tensor is argument for argument in tree_flatten(arguments)[0])


def copied(value: Any) -> Any:
    """Return a structure with its tensors copied, out of the graph and safe from in-place operations."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)
