"""Gradients integrated along straight lines: from one baseline, or from many random ones."""

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.baselines import BASELINES, Baseline, Colour, baseline_of, blurred
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer, Seed, SignOption
from seewhy.explainers.methods.gradient.base import KINKS, Sample, maps_of_sums


def points_of_lines(images: Tensor, baselines: Tensor, steps: int) -> Iterator[Sample]:
    """Yield the points of a Gauss-Legendre rule on the lines from baselines to images, both (N, C, H, W).

    The terms of a picture's points sum to its integrated gradients.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for number, (image, baseline) in enumerate(zip(images, baselines, strict=True)):
        line = image - baseline
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            yield Sample(number, baseline + (node + 1) / 2 * line, weight / 2 * line)


@method("integrated-gradients", family="gradient", forwards="1 + steps", backwards="steps", fine=True, rounding=KINKS)
class IntegratedGradients(Explainer):
    r"""Integrated gradients: gradients along the line from a baseline to the picture, times the difference of the two.

    .. math:: M_{ij} = \sum_c (x_{cij} - x'_{cij}) \int_0^1
              \frac{\partial y^t}{\partial x_{cij}}\Big|_{x' + \alpha (x - x')} d\alpha

    Section 3, equation 1, summed over the channels, which keeps the method complete: with ``sign="signed"`` the map
    sums to the score of the picture minus that of the baseline x'.

    A Gauss-Legendre rule with ``steps`` points replaces the paper's Riemann sum: for smooth scores it is nearly exact
    with few points. The gradients of rectified models jump, especially near the baseline, and every rule converges
    slowly there: for EfficientNet-Lite0, 50 points leave errors of a tenth to a third of the score. Compare the map's
    sum with the difference of the scores to see whether there are enough points.

    The paper's baseline is black. Here the default is zero in the units of the normalised input, a grey near the mean
    colour of the training pictures, which does not require knowing the normalisation.
    """

    sums: ClassVar[bool] = True

    sign: SignOption = "signed"
    steps: Annotated[
        int, Field(ge=1, le=2000, description="Number of points on the line where gradients are computed.")
    ] = 50
    baseline: Annotated[Baseline, Field(description=BASELINES)] = "zero"
    value: Colour = ()

    def origins(self, images: Tensor, model: AnyModel) -> Tensor:
        """Return the baselines (N, C, H, W), in float32 at least."""
        return baseline_of(images, self.baseline, model, self.value)

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per step."""
        return self.answer(*self.contributions(question, self.project))

    def contributions(self, question: Question, maps: Callable[[Tensor], Tensor]) -> tuple[Tensor, Objective, Tensor]:
        """Return maps of the contributions of the input's values, the objective, and the outputs (N, ...).

        Args:
            question: its pictures are explained.
            maps: makes maps of the contributions (N, C, H, W) float32.
        """
        baselines = self.origins(question.images, question.model)
        points = points_of_lines(widened(question.images), baselines, self.steps)
        return maps_of_sums(question, points, self.steps, maps)


@method("expected-gradients", family="gradient", forwards="1 + samples", backwards="samples", fine=True, rounding=KINKS)
class ExpectedGradients(Explainer):
    r"""Expected gradients: gradients at random points between the picture and random baselines, times the difference of
    the two.

    .. math:: M_{ij} = \sum_c \mathbb{E}_{x' \sim D,\ \alpha \sim U(0, 1)} \left[ (x_{cij} - x'_{cij})
              \frac{\partial y^t}{\partial x_{cij}}\Big|_{x' + \alpha (x - x')} \right]

    The expectation is estimated from ``samples`` pairs of a baseline and an :math:`\alpha`. With ``sign="signed"`` the
    map sums, except for sampling error, to the score of the picture minus the mean score of the baselines.

    The paper draws the baselines from the training pictures, which are not available here. D therefore differs from the
    paper's: baselines are synthetic, and the map shows what distinguishes the picture from these, not from other
    pictures. With ``noise``, their values have mean 0 and standard deviation 1 in normalised units, like training
    pictures. With ``blur``, the standard deviation of the Gaussian is uniform up to a quarter of the shorter side. The
    :math:`\alpha` are stratified, one in each of ``samples`` equal parts of (0, 1), which preserves the mean and lowers
    the variance.
    """

    sign: SignOption = "signed"
    samples: Annotated[int, Field(ge=1, le=10_000, description="Number of random baselines, with one point each.")] = 50
    baselines: Annotated[
        Literal["shuffle", "noise", "blur"],
        Field(
            description="Replacement for training pictures, which are not available: `shuffle`, the picture's pixels "
            "in random order; `noise`, normal noise in normalised units; `blur`, the picture with random blur."
        ),
    ] = "shuffle"
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per sample."""
        return self.answer(*maps_of_sums(question, self._points(question), self.samples, self.project))

    def _points(self, question: Question) -> Iterator[Sample]:
        for number, image in enumerate(widened(question.images)):
            generator = torch.Generator().manual_seed(self.seed)
            for stratum in range(self.samples):
                alpha = (stratum + float(torch.rand((), generator=generator))) / self.samples
                baseline = self._baseline(image, generator)
                line = image - baseline
                yield Sample(number, baseline + alpha * line, line / self.samples)

    def _baseline(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random baseline (C, H, W) of a picture."""
        if self.baselines == "noise":
            return torch.randn(image.shape, generator=generator).to(image)
        if self.baselines == "blur":
            return blurred(image, float(torch.rand((), generator=generator)) * min(image.shape[1:]) / 4)
        order = torch.randperm(image[0].numel(), generator=generator).to(image.device)
        return image.flatten(1)[:, order].reshape(image.shape)
