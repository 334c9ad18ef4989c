"""DeepLIFT."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.errors import UnsupportedOperationError
from seewhy.explainers.execution.chunks import chunk_size, chunks
from seewhy.explainers.methods.baselines import PLAIN, PlainBaseline, baseline_of
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.rules.attention import ELEMENTWISE
from seewhy.explainers.methods.rules.base import (
    Operation,
    Rules,
    is_linear,
    only_first_depends,
    propagate,
    replaced,
    slope_of,
)


def _rescale(operation: Operation) -> Tensor | None:
    """The rescale rule: the multiplier of an elementwise function is its difference over that of its input."""
    if not only_first_depends(operation):
        return None
    values, function = operation.args[0].detach().clone(), operation.apart()
    output = operation(values).detach()
    # A secant between close values divides by a small difference, where rounding dominates. In double precision the
    # difference of two single-precision values is exact, so the function is recomputed in double. MPS has no double:
    # there, and in other precisions, close values get the slope between them instead.
    exact = values.dtype == torch.float32 and values.device.type != "mps"
    function = function.doubled() if exact else function
    rounded = None if exact else output.clone()

    def backward(multipliers: Tensor) -> tuple[Tensor]:
        inputs = values.double() if rounded is None else values
        outputs = function(inputs) if rounded is None else rounded
        # The first half of the batch are the pictures, the second half their baselines.
        x, baseline = widened(inputs).chunk(2)
        y, baseline_output = widened(outputs).chunk(2)
        difference = x - baseline
        near = difference.abs() <= (0 if exact else 1e-6) * torch.maximum(x.abs(), baseline.abs())
        slopes = (y - baseline_output) / torch.where(near, 1.0, difference)
        if bool(near.any()):
            middle = ((x + baseline) / 2).to(inputs.dtype)
            slopes = torch.where(near, slope_of(function, torch.cat([middle, middle])).chunk(2)[0].to(slopes), slopes)
        return (multipliers * torch.cat([slopes, slopes]).float(),)

    return replaced(output, backward, operation.args[0])


def _max_pool(operation: Operation) -> Tensor | None:
    """The multiplier of a maximum goes to one place: that of the picture's maximum or the baseline's, the larger one.

    There the inputs differ at least as much as the maxima do, so the multiplier is between zero and one.
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
    maxima = output.clone()

    def backward(multipliers: Tensor) -> tuple[Tensor]:
        maximum, baseline_maximum = maxima.float().chunk(2)
        half = len(values) // 2
        differences = (values.float()[:half] - values.float()[half:]).flatten(2)
        place, baseline_place = places.chunk(2)
        winner = torch.where(maximum >= baseline_maximum, place, baseline_place).flatten(2)
        difference = differences.gather(2, winner)
        equal = difference == 0
        slopes = torch.where(equal, 1.0, (maximum - baseline_maximum).flatten(2) / torch.where(equal, 1.0, difference))
        first = multipliers.float().chunk(2)[0].flatten(2)
        result = torch.zeros_like(differences).scatter_add(2, winner, first * slopes).view_as(values[:half])
        # Finally only the pictures' multipliers are read.
        return (torch.cat([result, torch.zeros_like(result)]),)

    return replaced(output, backward, operation.args[0])


def _product(operation: Operation) -> Tensor | None:
    """A product of two activations: each factor's difference counts times the other's mean, which is complete."""
    arguments = operation.bound("input", "other")
    first, second = arguments["input"], arguments["other"]
    if not all(isinstance(factor, Tensor) and factor.requires_grad for factor in (first, second)):
        return None
    cofactors = [factor.detach().clone() for factor in (second, first)]
    shapes = [factor.shape for factor in (first, second)]

    def backward(multipliers: Tensor) -> tuple[Tensor, ...]:
        results = []
        for cofactor, shape in zip(cofactors, shapes, strict=True):
            halves = cofactor.float().chunk(2)
            mean = (halves[0] + halves[1]) / 2
            results.append((multipliers * torch.cat([mean, mean])).sum_to_size(shape))
        return tuple(results)

    return replaced(operation(first.detach()), backward, first, second)


_RULES = Rules(
    "deeplift",
    dict.fromkeys(ELEMENTWISE, _rescale)
    | dict.fromkeys(("max_pool1d", "max_pool2d", "adaptive_max_pool2d"), _max_pool)
    | {"mul": _product},
    is_linear,
)


@method("deeplift", family="rule", forwards="2", backwards="2", fine=True)
class DeepLIFT(Explainer):
    r"""DeepLIFT with the rescale rule: the difference to a baseline's score, distributed by the difference of each
    activation to the baseline's.

    .. math:: C_i = m_i \, (x_i - x'_i), \qquad \sum_i C_i = S(x) - S(x'), \qquad
              m_i = \sum_j m_{ij} m_j, \quad m_{f(z)} = \frac{f(z) - f(z')}{z - z'}

    These are the paper's summation to delta, chain rule for multipliers and rescale rule. Linear operations have their
    ordinary gradient (the linear rule without the separation of signs, which only matters for RevealCancel). S is the
    logit (with a contrast, the difference of two), not the probability. If z and z' are almost equal, m is the slope
    between them. The picture x and its baseline x' run through the model in one batch, so every nonlinearity sees both,
    however it is called.

    Beyond the paper: the multiplier of max pooling goes to the place of the larger of the two maxima. In a product of
    two activations (a gate), each factor's difference is multiplied by the mean of the other factor over x and x';
    these are the Shapley values of the two factors. Both preserve completeness. Completeness is checked: models whose
    operations violate it are refused, and so are models with softmax attention, layer norm or group norm.

    The standard deviation of ``baseline="blur"`` is a tenth of the picture's shorter side.
    """

    sums: ClassVar[bool] = True

    baseline: Annotated[
        PlainBaseline,
        Field(description=f"Baseline to compare the picture with. {PLAIN}"),
    ] = "zero"
    sign: Annotated[
        Sign, Field(description="Contributions for and against the class, for it only, or their magnitudes.")
    ] = "signed"

    def origins(self, images: Tensor, model: AnyModel) -> Tensor:
        """Return the baselines (N, C, H, W), in float32 at least."""
        return baseline_of(images, self.baseline, model)

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back, of picture and baseline together."""
        size = max(1, chunk_size(question.module, question.images, backward=True) // 2)
        total = len(question.images)
        maps, objectives, outputs = [], [], []
        for rows in chunks(total, size, question.progress):
            contributions, objective, scores = self._contributions(question.part(rows))
            maps.append(self.project(contributions))
            objectives.append(objective)
            outputs.append(scores)
        return self.answer(torch.cat(maps), Objective.joined(objectives), torch.cat(outputs))

    def _contributions(self, question: Question) -> tuple[Tensor, Objective, Tensor]:
        """Return the contributions (N, C, H, W) float32, the objective, and the outputs (N, ...) of the pictures.

        Raises:
            UnsupportedOperationError: an operation has no rule, or the contributions do not add up.
        """
        count = len(question.images)
        baselines = self.origins(question.images, question.model).to(question.images.dtype)
        batch = torch.cat([question.images, baselines])
        multipliers, objective, outputs = propagate(question, batch, _RULES)
        contributions = multipliers[:count] * (batch[:count] - batch[count:]).float()
        expected = objective.scores(outputs[:count]) - objective.scores(outputs[count:])
        # A step that no rule sees, such as a number that the model reads from a tensor, would falsify the map.
        error = (contributions.sum(dim=(1, 2, 3)) - expected).abs()
        share = 1e-3 if question.is_precise else 0.1
        allowed = share * contributions.abs().sum(dim=(1, 2, 3)) + 1e-6 * outputs.abs().max()
        if bool((error > allowed).any()):
            raise UnsupportedOperationError(
                "The contributions do not sum to the difference of the scores, so the model does something that no "
                "rule of the method 'deeplift' covers; choose another method, such as saliency.",
                "unknown",
            )
        return contributions, objective, outputs[:count]
