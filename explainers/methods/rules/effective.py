"""The effective transformation of a network: what is left of its gradient once gates and deviations are constants.

A transformer is a chain of linear maps whose entries depend on the picture: attention mixes values by probabilities, an
activation multiplies each of its inputs by a gate, a normalisation divides by a deviation. The gradient of the chain
with all of these held constant is the map that the network applies to this very picture.
"""

import torch
from torch import Tensor

from seewhy.explainers.methods.rules.attention import linear_part
from seewhy.explainers.methods.rules.base import (
    Operation,
    Rules,
    is_linear,
    only_first_depends,
    replaced,
    slope_of,
)
from seewhy.explainers.methods.rules.relevance import WINNERS

_GATED = ("gelu", "silu", "mish", "hardswish", "elu", "selu", "celu", "tanh", "relu", "relu6", "leaky_relu")
"""Functions that are zero at zero: each is its input times a gate."""

_BOUNDED = ("hardtanh", "clamp", "clamp_min", "threshold")
"""Functions that are zero at zero where their bounds allow it."""


def _bounded(operation: Operation) -> Tensor | None:
    try:
        is_gated = bool(operation(torch.zeros(1)) == 0)
    except RuntimeError:  # bounds that are tensors on another device
        return None
    return _gated(operation) if is_gated else None


def _gated(operation: Operation) -> Tensor | None:
    """An activation f(x): the gradient is times f(x) / x, at 0 times the limit of that, the slope."""
    if not only_first_depends(operation):
        return None
    values, function = operation.args[0].detach().clone(), operation.apart()

    def backward(gradient: Tensor) -> tuple[Tensor]:
        gates = torch.where(values == 0, slope_of(function, values.new_zeros(1)), function(values) / values)
        return (gradient * gates,)

    return replaced(operation(values), backward, operation.args[0])


def _normalised(operation: Operation) -> Tensor | None:
    """A normalisation: the gradient of its linear part, which centres and scales."""
    apply = linear_part(operation)
    if apply is None:
        return None
    values = operation.args[0]
    shape = values.shape

    def backward(gradient: Tensor) -> tuple[Tensor]:
        with torch.enable_grad():
            leaf = torch.zeros(shape, device=gradient.device, requires_grad=True)
            (slopes,) = torch.autograd.grad(apply(leaf), leaf, gradient.float())
        return (slopes,)

    return replaced(operation(values.detach()), backward, values)


def effective_rules(method: str) -> Rules:
    """Return the rules of an effective transformation.

    Args:
        method: its name, for messages.
    """
    handlers = dict.fromkeys(_GATED, _gated) | dict.fromkeys(_BOUNDED, _bounded)
    handlers |= dict.fromkeys(("layer_norm", "group_norm"), _normalised)
    constants = frozenset({"softmax", "sigmoid"})
    # The largest of several values is picked by a gate as well.
    return Rules(method, handlers, lambda kind, node: kind in WINNERS or is_linear(kind, node), constants)
