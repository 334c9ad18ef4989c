"""Layer-wise relevance propagation: the rules of a composite, applied to the operations of a model.

Convolutions, dense layers, additions, average poolings and resizing are linear and follow a rule. Rectifiers pass their
relevance on; max pooling passes it to the maximum. Batch normalisation is folded into the convolution or dense layer
before it; elsewhere it is a linear operation with a bias.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from seewhy.explainers.methods.rules.base import (
    Handler,
    Operation,
    Rules,
    is_first,
    moves_only,
    only_first_depends,
    rectifies,
    replaced,
)
from seewhy.explainers.methods.rules.linear import Linear, Rule


@dataclass(frozen=True)
class Composite:
    """The rules of the kinds of operations.

    Attributes:
        first: convolutions and dense layers that the picture reaches before any other.
        conv: other convolutions.
        dense: other dense layers.
        sums: additions, average poolings, and batch normalisations that cannot be folded into another operation.
    """

    first: Rule
    conv: Rule
    dense: Rule
    sums: Rule


def relevance_rules(method: str, composite: Composite) -> Rules:
    """Return the rules of a backward pass by a composite, for one pass only: they remember layers."""
    weighted = _WeightedOperations(composite)
    handlers: dict[str, Handler] = {
        "linear": weighted.dense,
        "batch_norm": weighted.batch_norm,
    }
    handlers |= {f"conv{kind}{axes}d": weighted.conv for kind in ("", "_transpose") for axes in (1, 2, 3)}
    handlers |= dict.fromkeys(("add", "sub", "rsub"), partial(_sum, composite.sums))
    handlers |= dict.fromkeys(("mul", "div", "neg"), _scaled)
    handlers |= dict.fromkeys(
        ("relu", "relu6", "leaky_relu", "hardtanh", "clamp", "clamp_min", "threshold"), _activation
    )
    averages = (
        "mean",
        "sum",
        "interpolate",
        *(f"{kind}avg_pool{axes}d" for kind in ("", "adaptive_") for axes in (1, 2, 3)),
    )
    handlers |= dict.fromkeys(averages, partial(_average, composite.sums))
    return Rules(method, handlers, lambda kind, node: kind in WINNERS or moves_only(kind, node))


WINNERS = frozenset({"MaxPool2DWithIndices", "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "Amax"})


@dataclass(frozen=True, eq=False)
class _Affine:
    """A convolution or dense layer of the forward pass.

    Attributes:
        values: its input, in the graph.
        weight, bias: its own, or with a batch normalisation folded in.
        apply: computes the layer, without bias, from an input and a weight.
        axis: the weight's axis of output channels.
        places: number of the output's axes after its channels.
        rule: rule of the layer.
    """

    values: Tensor
    weight: Tensor
    bias: Tensor | None
    apply: Callable[[Tensor, Tensor | None], Tensor]
    axis: int
    places: int
    rule: Rule

    def replace(self, output: Tensor) -> Tensor:
        """Return the output with a backward pass by the rule."""
        bias = None if self.bias is None else self.bias.view(-1, *[1] * self.places)
        return _shared(self.rule, output, self.values, self.apply, self.weight, bias, weighted=True)

    def normalised(self, mean: Tensor, scale: Tensor, shift: Tensor) -> "_Affine | None":
        """Return the layer with (output - mean) * scale + shift folded in; None where the channels do not fit."""
        if self.weight.shape[self.axis] != len(scale) or self.values.ndim != self.weight.ndim:
            return None
        bias = torch.zeros_like(mean) if self.bias is None else self.bias.float()
        weight = self.weight.float() * scale.view([-1 if axis == self.axis else 1 for axis in range(self.weight.ndim)])
        return replace(self, weight=weight, bias=(bias - mean) * scale + shift)


class _WeightedOperations:
    """The handlers of operations with weights, and of the batch normalisation after them."""

    def __init__(self, composite: Composite) -> None:
        self._composite = composite
        # By output: the layer, and the versions of its input and output, which reveal in-place changes since.
        self._layers = WeakTensorKeyDictionary()

    def dense(self, operation: Operation) -> Tensor | None:
        def apply(values: Tensor, weight: Tensor | None) -> Tensor:
            return functional.linear(values, weight)  # type: ignore[arg-type]

        return self._replace(operation, operation.bound("input", "weight", "bias"), apply, self._composite.dense)

    def conv(self, operation: Operation) -> Tensor | None:
        transposed = "transpose" in operation.name
        names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        arguments = operation.bound("input", "weight", "bias", "stride", "padding", *names)
        options = {name: value for name, value in arguments.items() if name not in ("input", "weight", "bias")}
        function, places = operation.function, arguments["weight"].ndim - 2

        def apply(values: Tensor, weight: Tensor | None) -> Tensor:
            output: Tensor = function(values, weight, None, **options)
            return output

        return self._replace(operation, arguments, apply, self._composite.conv, int(transposed), places)

    def _replace(
        self,
        operation: Operation,
        arguments: dict[str, Any],
        apply: Callable[[Tensor, Tensor | None], Tensor],
        rule: Rule,
        axis: int = 0,
        places: int = 0,
    ) -> Tensor | None:
        if not only_first_depends(operation):
            return None
        values, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
        rule = self._composite.first if is_first(values) else rule
        affine = _Affine(values, weight, bias, apply, axis, places, rule)
        output = affine.replace(operation(values.detach()))
        self._layers[output] = affine, values._version, output._version
        return output

    def batch_norm(self, operation: Operation) -> Tensor | None:
        """Fold it into the layer that made its input; without such a layer it is a linear operation itself."""
        if operation.function is functional.batch_norm:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training", "", "eps")
        else:  # torch.batch_norm
            names = ("input", "weight", "bias", "running_mean", "running_var", "training", "", "eps")
        arguments = operation.bound(*names)
        values, mean = arguments["input"], arguments["running_mean"]
        if arguments.get("training") or mean is None or not only_first_depends(operation):
            return None
        output = operation(values.detach())
        scale = (arguments["running_var"].float() + arguments.get("eps", 1e-5)).rsqrt()
        if arguments.get("weight") is not None:
            scale = scale * arguments["weight"].float()
        shift = torch.zeros_like(scale) if arguments.get("bias") is None else arguments["bias"].float()
        affine: _Affine | None
        affine, *versions = self._layers.get(values, (None,))  # type: ignore[no-untyped-call]
        if affine is not None and [affine.values._version, values._version] == versions:
            affine = affine.normalised(mean.float(), scale, shift)
            if affine is not None:
                return affine.replace(output)
        shape = (1, -1, *[1] * (values.ndim - 2))
        shift = shift - mean.float() * scale
        return _shared(self._composite.sums, output, values, _scale, scale.view(shape), shift.view(shape))


def _shared(
    rule: Rule,
    output: Tensor,
    values: Tensor,
    apply: Callable[[Tensor, Tensor | None], Tensor],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    weighted: bool = False,
) -> Tensor:
    """Return the output of a linear operation with a backward pass by a rule; arguments of `Linear` and `replaced`."""
    inputs, copy = values.detach().clone(), output.detach().clone()

    def backward(relevance: Tensor) -> tuple[Tensor]:
        factors = None if weight is None else weight.float()
        shift = inputs.new_zeros(1) if bias is None else bias
        return (rule(Linear(apply, inputs.float(), factors, shift.float(), copy.float()), relevance.float()),)

    return replaced(output, backward, values, weighted=weighted)


def _scale(values: Tensor, weight: Tensor | None) -> Tensor:
    return values if weight is None else values * weight


def _sum(rule: Rule, operation: Operation) -> Tensor | None:
    """Addition and subtraction; constants are biases, which take their share."""
    arguments = operation.bound("input", "other")
    terms, alpha = (arguments["input"], arguments["other"]), arguments.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[operation.name]
    output = operation(terms[0].detach())
    copy = output.detach().clone()
    addends = torch.stack([_expanded(term, output) * factor for term, factor in zip(terms, factors, strict=True)])
    inputs = {place: term for place, term in enumerate(terms) if isinstance(term, Tensor) and term.requires_grad}
    shapes = {place: term.shape for place, term in inputs.items()}

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        zero = torch.zeros(1, device=addends.device)
        linear = Linear(lambda values, _: values.sum(dim=0), addends.float(), None, zero, copy.float())
        shares = rule(linear, relevance.float())
        return tuple(shares[place].sum_to_size(shape) for place, shape in shapes.items())

    return replaced(output, backward, *inputs.values())


def _expanded(value: Any, like: Tensor) -> Tensor:
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
    return tensor.to(like).expand_as(like)


def _scaled(operation: Operation) -> Tensor | None:
    """Scaling by constants: each output has one input, which gets all its relevance."""
    arguments = operation.bound("input", "other")
    names = [name for name in ("input", "other") if isinstance(arguments.get(name), Tensor)]
    names = [name for name in names if arguments[name].requires_grad]
    if (
        len(names) != 1
        or (operation.name == "div" and names != ["input"])
        or arguments.get("rounding_mode") is not None
    ):
        return None
    value = arguments[names[0]]
    shape = value.shape
    output = operation(operation.args[0].detach())
    return replaced(output, lambda relevance: (relevance.sum_to_size(shape),), value)


def _activation(operation: Operation) -> Tensor | None:
    """Rectifiers pass on all relevance."""
    return identity_rule(operation) if operation.name == "leaky_relu" or rectifies(operation) else None


def identity_rule(operation: Operation) -> Tensor | None:
    """The identity rule: the only argument that depends on the picture gets all relevance."""
    if not only_first_depends(operation):
        return None
    return replaced(operation(operation.args[0].detach()), lambda relevance: (relevance,), operation.args[0])


def _average(rule: Rule, operation: Operation) -> Tensor | None:
    """Averages and sums over places, and resizing, which is an average over neighbours."""
    if not only_first_depends(operation):
        return None
    values, function = operation.args[0], operation.apart()
    return _shared(rule, operation(values.detach()), values, lambda inputs, _: function(inputs))
