"""The rules of LRP: how a linear operation shares the relevance of its outputs among its inputs.

Each output of a linear operation is a sum of contributions, input times weight. A rule gives each contribution a share
of the output's relevance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Run = tuple[Tensor, Callable[[Tensor], Tensor]]
"""The outputs of a linear operation, and the function that multiplies each contribution by the factor of its output
and sums over the outputs: Σ_j x_i w_ij f_j."""


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear operation on float32 values.

    Attributes:
        apply: computes the operation, without bias, of an input and a weight.
        values: the input.
        weight: None if all weights are positive and fixed (addition, average).
        bias: bias of a shape that can be added to the output; or zero.
        output: with bias, as the model computed it. Rules divide by it, not by a recomputed sum of contributions: in
            half precision the two may differ in sign, and relevance is in proportion to the model's own output.
    """

    apply: Callable[[Tensor, Tensor | None], Tensor]
    values: Tensor
    weight: Tensor | None
    bias: Tensor
    output: Tensor

    def run(self, values: Tensor, weight: Tensor | None) -> Run:
        """Run the operation on other values and weights."""
        with torch.enable_grad():
            leaf = values.detach().requires_grad_()
            output = self.apply(leaf, weight)

        def share(factors: Tensor) -> Tensor:
            (gradients,) = torch.autograd.grad(output, leaf, factors, retain_graph=True)
            return leaf.detach() * gradients

        return output.detach(), share

    def all(self) -> Run:
        """Run the operation as it is."""
        return self.run(self.values, self.weight)

    def part(self, positive: bool) -> Run:
        """Run the operation on the positive contributions only, or on the negative ones only."""
        plus, minus = self.values.clamp_min(0), self.values.clamp_max(0)
        if self.weight is None:
            return self.run(plus if positive else minus, None)
        # A contribution is positive if value and weight have the same sign: two runs, one for values of either sign.
        # After a ReLU there are no negative values, and one run suffices.
        weights = self.weight.clamp_min(0), self.weight.clamp_max(0)
        of_plus, of_minus = weights if positive else weights[::-1]
        first = self.run(plus, of_plus)
        if not bool((minus < 0).any()):
            return first
        second = self.run(minus, of_minus)
        return first[0] + second[0], lambda factors: first[1](factors) + second[1](factors)


Rule = Callable[[Linear, Tensor], Tensor]
"""Takes a linear operation and the relevance of its outputs, and returns the relevance of its inputs."""


def epsilon_rule(linear: Linear, relevance: Tensor, epsilon: float) -> Tensor:
    """Share in proportion to contributions; a small term keeps the denominator from zero."""
    _, share = linear.all()
    return share(relevance / (linear.output + torch.where(linear.output < 0, -epsilon, epsilon)))


def gamma_rule(linear: Linear, relevance: Tensor, gamma: float) -> Tensor:
    """Share in proportion to contributions, those of the output's own sign counted 1 + gamma times."""
    _, share = linear.all()
    above = linear.output >= 0
    denominator = linear.output
    parts = [linear.part(positive) for positive in (True, False)]
    for (total, _), mask, bias in zip(parts, (above, ~above), _signs(linear.bias), strict=True):
        denominator = denominator + gamma * (total + bias) * mask
    factors = _divided(relevance, denominator)
    bonus = torch.zeros_like(linear.values)
    for (_, share_part), mask in zip(parts, (above, ~above), strict=True):
        bonus = bonus + gamma * share_part(factors * mask)
    return share(factors) + bonus


def own_sign_rule(linear: Linear, relevance: Tensor, biased: bool = True) -> Tensor:
    """Share among the contributions of the output's own sign, in proportion: z-plus where outputs are positive.

    Biases of that sign get their share too, if `biased`.
    """
    above = linear.output >= 0
    result = torch.zeros_like(linear.values)
    for positive, mask, bias in zip((True, False), (above, ~above), _signs(linear.bias), strict=True):
        masked = relevance * mask
        if bool(masked.any()):  # half the work after a ReLU, where negative outputs have no relevance
            total, share = linear.part(positive)
            result = result + share(_divided(masked, total + bias if biased else total))
    return result


def excitation_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share among positive contributions, in proportion; biases get no share."""
    total, share = linear.part(positive=True)
    return share(_divided(relevance, total))


def alpha_beta_rule(linear: Linear, relevance: Tensor, alpha: float, beta: float) -> Tensor:
    """Share alpha times the relevance among positive contributions, less beta times it among negative ones.

    If contributions of one sign are missing, those of the other share the relevance itself.
    """
    parts = [linear.part(positive) for positive in (True, False)]
    totals = [total + bias for (total, _), bias in zip(parts, _signs(linear.bias), strict=True)]
    result = torch.zeros_like(linear.values)
    for (_, share), total, opposite, factor in zip(parts, totals, reversed(totals), (alpha, -beta), strict=True):
        result = result + share(_divided(relevance * torch.where(opposite == 0, 1.0, factor), total))
    return result


def flat_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share evenly among all inputs of an output."""
    weight = None if linear.weight is None else torch.ones_like(linear.weight)
    total, share = linear.run(torch.ones_like(linear.values), weight)
    return share(_divided(relevance, total))


def box_rule(linear: Linear, relevance: Tensor) -> Tensor:
    """Share in proportion to contributions beyond those of the extreme values of each picture's channels.

    Values (N, F) of a dense layer have no channels: their extremes are those of the whole picture.
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
    """Return the axes of positions of a linear operation's input; without any, its only axis besides the batch."""
    axes = linear.values.ndim
    if axes == 2:
        return (1,)
    dense = linear.weight is not None and linear.weight.ndim == 2
    return tuple(range(1, axes - 1) if dense else range(2, axes))


def _signs(bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part of a bias."""
    return bias.clamp_min(0), bias.clamp_max(0)


def _divided(relevance: Tensor, total: Tensor) -> Tensor:
    """Return relevance / total; zero where nothing contributes, so that the relevance ends there."""
    return torch.where(total == 0, 0.0, relevance / torch.where(total == 0, 1.0, total))
