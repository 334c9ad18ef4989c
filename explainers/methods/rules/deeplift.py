"""DeepLIFT."""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import UnsupportedOperationError
from seewhy.explainers.execution.chunks import pass_size, passes
from seewhy.explainers.methods.baselines import PLAIN, Plain, baseline_of
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.rules.base import (
    Operation,
    Rules,
    is_linear,
    only_first_depends,
    propagate,
    replaced,
    slope_of,
)

_ELEMENTWISE = (
    *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max"),
    *("elu", "selu", "celu", "silu", "gelu", "mish", "softplus", "sigmoid", "tanh", "hardswish", "hardsigmoid"),
    *("softsign", "logsigmoid", "hardshrink", "softshrink", "tanhshrink", "erf", "exp", "square", "abs", "sin", "cos"),
)


def _rescale(operation: Operation) -> Tensor | None:
    """The rescale rule: the multiplier of an elementwise function is its difference over that of its input."""
    if not only_first_depends(operation):
        return None
    values, same = operation.args[0].detach().clone(), operation.apart()
    output = operation(values).detach()
    # In double precision, a difference of two values of single precision is exact, and rounding makes no secant steep.
    exact = values.dtype == torch.float32 and values.device.type != "mps"
    same = same.doubled() if exact else same
    kept = None if exact else output.clone()

    def pull(arriving: Tensor) -> tuple[Tensor]:
        places = values.double() if kept is None else values
        given, made = (half.to(_wide(half)).chunk(2) for half in (places, same(places) if kept is None else kept))
        difference = given[0] - given[1]
        near = difference.abs() <= (0 if exact else 1e-6) * torch.maximum(given[0].abs(), given[1].abs())
        slopes = (made[0] - made[1]) / torch.where(near, 1.0, difference)
        if bool(near.any()):
            middle = ((given[0] + given[1]) / 2).to(places.dtype)
            slopes = torch.where(near, slope_of(same, torch.cat([middle, middle])).chunk(2)[0].to(slopes), slopes)
        return (arriving * torch.cat([slopes, slopes]).float(),)

    return replaced(output, pull, operation.args[0])


def _wide(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _max_pool(operation: Operation) -> Tensor | None:
    """The multiplier of a maximum goes to the place of the larger of the two maxima, of the picture's and baseline's.

    There the input differs at least as much as the maximum does, so it is between zero and one.
    """
    pool = {"max_pool1d": functional.max_pool1d, "max_pool2d": functional.max_pool2d}.get(operation.name)
    if operation.kwargs.get("return_indices") or not only_first_depends(operation):
        return None
    values = operation.args[0].detach().clone()
    if operation.name == "adaptive_max_pool2d":
        output, places = functional.adaptive_max_pool2d(values, operation.args[1], return_indices=True)
    else:
        options = {name: value for name, value in operation.kwargs.items() if name != "return_indices"}
        output, places = pool(values, *operation.args[1:], **options, return_indices=True)  # type: ignore[misc]
    kept = output.clone()

    def pull(arriving: Tensor) -> tuple[Tensor]:
        made = kept.float().chunk(2)
        given = (values.float()[: len(values) // 2] - values.float()[len(values) // 2 :]).flatten(2)
        winner, other = places.chunk(2)
        winner = torch.where(made[0] >= made[1], winner, other).flatten(2)
        difference = given.gather(2, winner)
        same = difference == 0
        slopes = torch.where(same, 1.0, (made[0] - made[1]).flatten(2) / torch.where(same, 1.0, difference))
        first = arriving.float().chunk(2)[0].flatten(2)
        found = torch.zeros_like(given).scatter_add(2, winner, first * slopes)
        found = found.view_as(values[: len(values) // 2])
        return (torch.cat([found, torch.zeros_like(found)]),)

    return replaced(output, pull, operation.args[0])


def _product(operation: Operation) -> Tensor | None:
    """A product of two activations: each factor's difference counts times the other's mean, which is complete."""
    given = operation.bound("input", "other")
    first, second = given["input"], given["other"]
    if not all(isinstance(factor, Tensor) and factor.requires_grad for factor in (first, second)):
        return None
    kept = [factor.detach().clone() for factor in (second, first)]
    shapes = [factor.shape for factor in (first, second)]

    def pull(arriving: Tensor) -> tuple[Tensor, ...]:
        found = []
        for other, shape in zip(kept, shapes, strict=True):
            halves = other.float().chunk(2)
            mean = (halves[0] + halves[1]) / 2
            found.append((arriving * torch.cat([mean, mean])).sum_to_size(shape))
        return tuple(found)

    return replaced(operation(first.detach()), pull, first, second)


_RULES = Rules(
    "deeplift",
    dict.fromkeys(_ELEMENTWISE, _rescale)
    | dict.fromkeys(("max_pool1d", "max_pool2d", "adaptive_max_pool2d"), _max_pool)
    | {"mul": _product},
    is_linear,
)


@method(
    "deeplift",
    family="rule",
    summary="The difference to a baseline's score, shared out by how much each activation differs from the baseline's.",
    paper=Paper(
        "Shrikumar, Greenside, Kundaje",
        "Learning Important Features Through Propagating Activation Differences",
        2017,
        "https://arxiv.org/abs/1704.02685",
    ),
    forwards="2",
    backwards="2",
    fine=True,
)
@dataclass(frozen=True, kw_only=True)
class DeepLIFT(Explainer):
    r"""DeepLIFT with the rescale rule: a gradient whose slopes are those of secants between baseline and picture.

    .. math:: C_i = m_i \, (x_i - x'_i), \qquad \sum_i C_i = S(x) - S(x'), \qquad
              m_i = \sum_j m_{ij} m_j, \quad m_{f(z)} = \frac{f(z) - f(z')}{z - z'}

    These are the paper's summation to delta, chain rule for multipliers and rescale rule; linear operations have their
    ordinary gradient (the linear rule without the separation of signs, which only matters for RevealCancel). S is the
    logit (of a contrast: the difference of two), not the probability. Where z and z' are all but equal, m is the slope
    between them. Picture x and baseline x' run through the model in one batch, so every nonlinearity sees both, however
    it is called.

    Beyond the paper: the multiplier of max pooling goes to the maximum of whichever of the two is larger; in a product
    of two activations (a gate) each factor's difference counts times the mean of the other in x and x', the Shapley
    values of the two. That keeps the sum complete, which is checked: a model whose operations break it is refused, as
    is one with softmax attention, layer norm or group norm.

    The standard deviation of ``baseline="blur"`` is a tenth of the picture's shorter side.
    """

    baseline: Annotated[
        Plain,
        Field(description=f"What the picture is compared with. {PLAIN}"),
    ] = "zero"
    sign: Annotated[
        Sign, Field(description="Contributions for the class and against it, only those for it, or their size.")
    ] = "signed"

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back, of picture and baseline together."""
        size = max(1, pass_size(question.module, question.images, backward=True) // 2)
        total = len(question.images)
        maps, objectives, outputs = [], [], []
        for rows in passes(total, size, question.progress):
            found, objective, scores = self._contributions(question.part(rows))
            maps.append(self.project(found))
            objectives.append(objective)
            outputs.append(scores)
        return self.answer(torch.cat(maps), Objective.joined(objectives), torch.cat(outputs))

    def _contributions(self, question: Question) -> tuple[Tensor, Objective, Tensor]:
        count = len(question.images)
        hidden = baseline_of(question.images, self.baseline, question.model).to(question.images.dtype)
        both = torch.cat([question.images, hidden])
        found, objective, outputs = propagate(question, both, _RULES)
        difference = (both[:count] - both[count:]).float()
        contributions = found[:count] * difference
        expected = objective.scores(outputs[:count]) - objective.scores(outputs[count:])
        # What no rule sees, such as a value that the model reads out of a tensor, would make the map wrong.
        missed = (contributions.sum(dim=(1, 2, 3)) - expected).abs()
        precise = question.images.dtype in (torch.float32, torch.float64)
        allowed = (1e-3 if precise else 0.1) * contributions.abs().sum(dim=(1, 2, 3)) + 1e-6 * outputs.abs().max()
        if bool((missed > allowed).any()):
            raise UnsupportedOperationError(
                "The contributions do not sum to the difference of the scores, so the model does something that no "
                "rule of the method 'deeplift' covers; choose another method, such as saliency.",
                "unknown",
            )
        return contributions, objective, outputs[:count]
