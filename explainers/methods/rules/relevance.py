"""How the relevance of an operation's outputs is shared among its inputs: layer-wise relevance propagation.

Convolutions, dense layers, additions and average poolings are all linear: each output is a sum of contributions, and a
rule says how much of the output's relevance each contribution gets. Rectifiers hand on what they get, max pooling hands
it to the winner. Batch normalisation is folded into the convolution or dense layer whose output it takes; of other
things it is a linear operation with a bias.
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

Run = tuple[Tensor, Callable[[Tensor], Tensor]]
"""The outputs of a linear operation, and what shares out factors of the outputs in proportion to contributions."""


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear operation on float32 values.

    Attributes:
        apply: computes it, without bias, of an input and a weight.
        values: the input.
        weight: None where all weights are positive and fixed (addition, average).
        bias: of a shape that can be added to the output; or zero.
        output: what the model computed, with bias. Rules divide by it rather than by what can be computed from the
            rest, for in half precision the two may differ in sign, and relevance is in proportion to the former.
    """

    apply: Callable[[Tensor, Tensor | None], Tensor]
    values: Tensor
    weight: Tensor | None
    bias: Tensor
    output: Tensor

    def run(self, values: Tensor, weight: Tensor | None) -> Run:
        """Run it on other values and weights."""
        with torch.enable_grad():
            leaf = values.detach().requires_grad_()
            output = self.apply(leaf, weight)

        def share(factors: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(output, leaf, factors, retain_graph=True)
            return leaf.detach() * found

        return output.detach(), share

    def all(self) -> Run:
        """Run it as it is."""
        return self.run(self.values, self.weight)

    def part(self, positive: bool) -> Run:
        """Run it on the positive contributions only, or on the negative ones only."""
        plus, minus = self.values.clamp_min(0), self.values.clamp_max(0)
        if self.weight is None:
            return self.run(plus if positive else minus, None)
        same, other = self.weight.clamp_min(0), self.weight.clamp_max(0)
        if not positive:
            same, other = other, same
        first = self.run(plus, same)
        if not bool((minus < 0).any()):
            return first
        second = self.run(minus, other)
        return first[0] + second[0], lambda factors: first[1](factors) + second[1](factors)


Rule = Callable[[Linear, Tensor], Tensor]
"""Takes a linear operation and the relevance of its outputs, and returns that of its inputs."""


def epsilon_rule(linear: Linear, relevance: Tensor, epsilon: float) -> Tensor:
    """Share in proportion to contributions; a small term keeps the denominator from zero."""
    _, share = linear.all()
    return share(relevance / (linear.output + torch.where(linear.output < 0, -epsilon, epsilon)))


def gamma_rule(linear: Linear, relevance: Tensor, gamma: float) -> Tensor:
    """Share in proportion to contributions, those of the output's own sign counted 1 + gamma times."""
    _, share = linear.all()
    above = linear.output >= 0
    found = torch.zeros_like(linear.values)
    denominator = linear.output
    parts = [linear.part(positive) for positive in (True, False)]
    for (total, _), mask, bias in zip(parts, (above, ~above), _signs(linear.bias), strict=True):
        denominator = denominator + gamma * (total + bias) * mask
    factors = _divided(relevance, denominator)
    for (_, share_part), mask in zip(parts, (above, ~above), strict=True):
        found = found + gamma * share_part(factors * mask)
    return share(factors) + found


def own_sign_rule(linear: Linear, relevance: Tensor, biased: bool = True) -> Tensor:
    """Share among the contributions of the output's own sign, in proportion: z-plus where outputs are positive.

    Biases of that sign get their share too, if `biased`.
    """
    above = linear.output >= 0
    found = torch.zeros_like(linear.values)
    for positive, mask, bias in zip((True, False), (above, ~above), _signs(linear.bias), strict=True):
        if bool((wanted := relevance * mask).any()):
            total, share = linear.part(positive)
            found = found + share(_divided(wanted, total + bias if biased else total))
    return found


def excitation_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share among positive contributions, in proportion; biases get no share."""
    total, share = linear.part(positive=True)
    return share(_divided(relevance, total))


def alpha_beta_rule(linear: Linear, relevance: Tensor, alpha: float, beta: float) -> Tensor:
    """Share alpha times the relevance among positive, and take back beta times it from negative contributions.

    Where those of one sign are missing, those of the other share the relevance itself.
    """
    parts = [linear.part(positive) for positive in (True, False)]
    totals = [total + bias for (total, _), bias in zip(parts, _signs(linear.bias), strict=True)]
    found = torch.zeros_like(linear.values)
    for (_, share), total, other, factor in zip(parts, totals, reversed(totals), (alpha, -beta), strict=True):
        found = found + share(_divided(relevance * torch.where(other == 0, 1.0, factor), total))
    return found


def flat_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share evenly among all inputs of an output."""
    weight = None if linear.weight is None else torch.ones_like(linear.weight)
    total, share = linear.run(torch.ones_like(linear.values), weight)
    return share(_divided(relevance, total))


def box_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share in proportion to contributions beyond those of the darkest and brightest values of each picture's channels.

    Values (N, F) of a dense layer have no channels: then those of the whole picture.
    """
    axes = _places(linear)
    ends = (linear.values.amin(axes, keepdim=True), linear.values.amax(axes, keepdim=True))
    low, high = (end.expand_as(linear.values).contiguous() for end in ends)
    weights = (None, None) if linear.weight is None else (linear.weight.clamp_min(0), linear.weight.clamp_max(0))
    total, share = linear.all()
    runs = [linear.run(low, weights[0]), linear.run(high, weights[1])]
    factors = _divided(relevance, total - runs[0][0] - runs[1][0])
    return share(factors) - runs[0][1](factors) - runs[1][1](factors)


def _places(linear: Linear) -> tuple[int, ...]:
    """Return the axes of a linear operation's input that are neither the batch's nor, if there are others, channels."""
    axes = linear.values.ndim
    if axes == 2:
        return (1,)
    dense = linear.weight is not None and linear.weight.ndim == 2
    return tuple(range(1, axes - 1) if dense else range(2, axes))


def _signs(bias: Tensor) -> tuple[Tensor, Tensor]:
    return bias.clamp_min(0), bias.clamp_max(0)


def _divided(relevance: Tensor, total: Tensor) -> Tensor:
    """Return relevance / total; zero where nothing contributes, which then keeps it."""
    return torch.where(total == 0, 0.0, relevance / torch.where(total == 0, 1.0, total))


@dataclass(frozen=True)
class Composite:
    """Which rule which operation follows.

    Attributes:
        first: convolutions and dense layers that the picture reaches before any other one.
        conv: other convolutions.
        dense: other dense layers.
        sums: additions, average poolings, and batch normalisations that cannot be folded into another operation.
    """

    first: Rule
    conv: Rule
    dense: Rule
    sums: Rule


def relevance_rules(method: str, composite: Composite) -> Rules:
    """Return the rules of one pass by a composite; they must not be used for another."""
    weighted = _Weighted(composite)
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
    averages = ("mean", "sum", *(f"{kind}avg_pool{axes}d" for kind in ("", "adaptive_") for axes in (1, 2, 3)))
    handlers |= dict.fromkeys(averages, partial(_average, composite.sums))
    return Rules(method, handlers, lambda kind, node: kind in _WINNERS or moves_only(kind, node))


_WINNERS = frozenset({"MaxPool2DWithIndices", "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "Amax"})


@dataclass(frozen=True, eq=False)
class _Affine:
    """A convolution or dense layer of the forward pass.

    Attributes:
        given: its input, in the graph.
        apply: computes it, without bias, of an input and a weight.
        axis: of the weight, along which the outputs lie.
        places: axes of the output after that of its channels.
        rule: which it follows.
    """

    given: Tensor
    weight: Tensor
    bias: Tensor | None
    apply: Callable[[Tensor, Tensor | None], Tensor]
    axis: int
    places: int
    rule: Rule

    def replace(self, output: Tensor) -> Tensor:
        """Return its output as one that follows the rule."""
        kept = self.given.detach().clone()
        apply, weight, bias, rule, places = self.apply, self.weight, self.bias, self.rule, self.places
        made = output.detach().clone()

        def pull(relevance: Tensor) -> tuple[Tensor]:
            shift = kept.new_zeros(1) if bias is None else bias
            shift = shift.float().view(-1, *[1] * places)
            linear = Linear(apply, kept.float(), weight.float(), shift, made.float())
            return (rule(linear, relevance.float()),)

        return replaced(output, pull, self.given, weighted=True)

    def normalised(self, mean: Tensor, scale: Tensor, shift: Tensor) -> "_Affine | None":
        """Return it with (output - mean) * scale + shift folded in; None where the channels do not fit."""
        if self.weight.shape[self.axis] != len(scale) or self.given.ndim != self.weight.ndim:
            return None
        bias = torch.zeros_like(mean) if self.bias is None else self.bias.float()
        weight = self.weight.float() * scale.view([-1 if axis == self.axis else 1 for axis in range(self.weight.ndim)])
        return replace(self, weight=weight, bias=(bias - mean) * scale + shift)


class _Weighted:
    """Operations with weights, and the batch normalisation after them."""

    def __init__(self, composite: Composite) -> None:
        self._composite = composite
        self._made = WeakTensorKeyDictionary()

    def dense(self, operation: Operation) -> Tensor | None:
        def apply(values: Tensor, weight: Tensor | None) -> Tensor:
            return functional.linear(values, weight)  # type: ignore[arg-type]

        return self._replace(operation, operation.bound("input", "weight", "bias"), apply, self._composite.dense)

    def conv(self, operation: Operation) -> Tensor | None:
        transposed = "transpose" in operation.name
        more = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        given = operation.bound("input", "weight", "bias", "stride", "padding", *more)
        options = {name: value for name, value in given.items() if name not in ("input", "weight", "bias")}

        def apply(values: Tensor, weight: Tensor | None) -> Tensor:
            found: Tensor = operation.function(values, weight, None, **options)
            return found

        return self._replace(operation, given, apply, self._composite.conv, int(transposed), given["weight"].ndim - 2)

    def _replace(
        self,
        operation: Operation,
        given: dict[str, Any],
        apply: Callable[[Tensor, Tensor | None], Tensor],
        rule: Rule,
        axis: int = 0,
        places: int = 0,
    ) -> Tensor | None:
        if not only_first_depends(operation):
            return None
        values, weight, bias = given["input"], given["weight"], given.get("bias")
        rule = self._composite.first if is_first(values) else rule
        affine = _Affine(values, weight, bias, apply, axis, places, rule)
        made = affine.replace(operation(values.detach()))
        self._made[made] = affine, values._version, made._version
        return made

    def batch_norm(self, operation: Operation) -> Tensor | None:
        """Fold it into what made its input; where that is something else, it is a linear operation of its own."""
        if operation.function is functional.batch_norm:
            given = operation.bound("input", "running_mean", "running_var", "weight", "bias", "training", "", "eps")
        else:
            given = operation.bound("input", "weight", "bias", "running_mean", "running_var", "training", "", "eps")
        values, mean = given["input"], given["running_mean"]
        if given.get("training") or mean is None or not only_first_depends(operation):
            return None
        output = operation(values.detach())
        scale = (given["running_var"].float() + given.get("eps", 1e-5)).rsqrt()
        if given.get("weight") is not None:
            scale = scale * given["weight"].float()
        shift = torch.zeros_like(scale) if given.get("bias") is None else given["bias"].float()
        affine: _Affine | None
        affine, *versions = self._made.get(values, (None,))  # type: ignore[no-untyped-call]
        if affine is not None and [affine.given._version, values._version] == versions:
            affine = affine.normalised(mean.float(), scale, shift)
            if affine is not None:
                return affine.replace(output)
        return _diagonal(output, values, scale, shift - mean.float() * scale, self._composite.sums)


def _diagonal(output: Tensor, values: Tensor, scale: Tensor, shift: Tensor, rule: Rule) -> Tensor:
    shape = (1, -1, *[1] * (values.ndim - 2))
    kept, made = values.detach().clone(), output.clone()

    def apply(inputs: Tensor, weight: Tensor | None) -> Tensor:
        return inputs if weight is None else inputs * weight

    def pull(relevance: Tensor) -> tuple[Tensor]:
        linear = Linear(apply, kept.float(), scale.view(shape), shift.view(shape), made.float())
        return (rule(linear, relevance.float()),)

    return replaced(output, pull, values)


def _sum(rule: Rule, operation: Operation) -> Tensor | None:
    """Addition and subtraction; constants are biases, which take their share."""
    given = operation.bound("input", "other")
    terms, alpha = (given["input"], given["other"]), given.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[operation.name]
    output = operation(terms[0].detach())
    made = output.detach().clone()
    kept = torch.stack([_copied(term, output) * factor for term, factor in zip(terms, factors, strict=True)])
    live = {place: term for place, term in enumerate(terms) if isinstance(term, Tensor) and term.requires_grad}
    shapes = {place: term.shape for place, term in live.items()}

    def pull(relevance: Tensor) -> tuple[Tensor, ...]:
        shares = rule(_weightless(lambda values, _: values.sum(dim=0), kept, made), relevance.float())
        return tuple(shares[place].sum_to_size(shape) for place, shape in shapes.items())

    return replaced(output, pull, *live.values())


def _copied(value: Any, like: Tensor) -> Tensor:
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
    return tensor.to(like).expand_as(like)


def _scaled(operation: Operation) -> Tensor | None:
    """Scaling by constants: each output has one input, which gets all."""
    given = operation.bound("input", "other")
    live = [name for name in ("input", "other") if isinstance(given.get(name), Tensor) and given[name].requires_grad]
    if len(live) != 1 or (operation.name == "div" and live != ["input"]) or given.get("rounding_mode") is not None:
        return None
    (value,) = (given[name] for name in live)
    shape = value.shape
    output = operation(operation.args[0].detach())
    return replaced(output, lambda relevance: (relevance.sum_to_size(shape),), value)


def _activation(operation: Operation) -> Tensor | None:
    """Rectifiers hand on all relevance."""
    if not only_first_depends(operation) or not (operation.name == "leaky_relu" or rectifies(operation)):
        return None
    return replaced(operation(operation.args[0].detach()), _unchanged, operation.args[0])


def _unchanged(relevance: Tensor) -> tuple[Tensor]:
    return (relevance,)


def _average(rule: Rule, operation: Operation) -> Tensor | None:
    """Averages and sums over places."""
    if not only_first_depends(operation):
        return None
    kept = operation.args[0].detach().clone()
    output = operation(kept)
    made = output.clone()

    def pull(relevance: Tensor) -> tuple[Tensor]:
        return (rule(_weightless(lambda values, _: operation(values), kept, made), relevance.float()),)

    return replaced(output, pull, operation.args[0])


def _weightless(apply: Callable[[Tensor, Tensor | None], Tensor], values: Tensor, output: Tensor) -> Linear:
    return Linear(apply, values.float(), None, torch.zeros(1, device=values.device), output.float())
