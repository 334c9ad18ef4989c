"""Gradients at the picture and at noisy copies of it: saliency, input times gradient, SmoothGrad, VarGrad."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign, keep_sign
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer, Noise, Seed, SignOption
from seewhy.explainers.methods.gradient.base import KINKS, Sample, gradient_terms, input_gradients, maps_of_sums


@method("saliency", family="gradient", fine=True)
class Saliency(Explainer):
    r"""Saliency: largest gradient of the class score over the colour channels of each pixel.

    .. math:: M_{ij} = \max_c \left| \frac{\partial y^t}{\partial x_{cij}} \right|

    Section 3.1; the gradient is that of the normalised input. ``sign="signed"`` keeps the sign of the channel with the
    largest magnitude (of two equal ones, the positive one), so the absolute value of that map is the paper's.
    ``"positive"`` keeps only the places where that sign is positive. ``smooth="eigen"`` uses the first principal
    component over the channels instead of the largest channel.
    """

    sign: Annotated[
        Sign,
        Field(description="Magnitude of the gradient (as in the paper), the signed gradient, or its positive part."),
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        gradients, objective, outputs = input_gradients(question, question.images)
        return self.answer(self.project(gradients), objective, outputs)

    def project(self, values: Tensor) -> Tensor:
        """Return the value of the largest magnitude over the channels, instead of their sum."""
        if self.smooth == "eigen":
            return super().project(values)
        # On a processor an argmax over so few channels takes many times as long as a maximum and a minimum.
        highest, lowest = values.amax(dim=1), values.amin(dim=1)
        return keep_sign(torch.where(highest >= -lowest, highest, lowest), self.sign)


MOST_SAMPLES = 10_000


@method("input-x-gradient", family="gradient", fine=True)
class InputXGradient(Explainer):
    r"""Input times gradient: gradient of the class score times the input, summed over the colour channels.

    .. math:: M_{ij} = \sum_c x_{cij} \frac{\partial y^t}{\partial x_{cij}}

    The input is the normalised picture, so a pixel of the data set's mean colour always gets zero. For a linear model
    without bias the map sums to the score.
    """

    sign: SignOption = "signed"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        gradients, objective, outputs = input_gradients(question, question.images)
        return self.answer(self.project(gradients * question.images.float()), objective, outputs)


def noisy_copies(question: Question, samples: int, noise: float, seed: int) -> Iterator[Sample]:
    """Yield noisy copies of one picture after the other; all get the same noise, scaled by their range of values."""
    for number, image in enumerate(widened(question.images)):
        generator = torch.Generator().manual_seed(seed)
        deviation = noise * (image.max() - image.min())
        for _ in range(samples):
            unit = torch.randn(image.shape, generator=generator).to(image)
            yield Sample(number, image + deviation * unit)


@method("smoothgrad", family="gradient", forwards="1 + samples", backwards="samples", fine=True, rounding=KINKS)
class SmoothGrad(Saliency):
    r"""SmoothGrad: largest gradient over the colour channels, averaged over noisy copies of the picture.

    .. math:: M_{ij} = \max_c \left| \frac{1}{n} \sum_{k=1}^{n}
              \frac{\partial y^t}{\partial x_{cij}}\Big|_{x + \varepsilon_k} \right|,
              \qquad \varepsilon_k \sim \mathcal{N}(0, \sigma^2), \quad
              \sigma = s \, (x_{\max} - x_{\min})

    where n is the option ``samples``, s is ``noise``, and the range is that of the normalised picture. The signed
    gradients are averaged before the channels are reduced as in ``Saliency``, so one sample without noise equals
    saliency. With the same seed, all pictures get the same noise, scaled by the range of each.
    """

    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES, description="Number of noisy copies of the picture.")] = 25
    noise: Annotated[Noise, Field(ge=0)] = 0.15
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per noisy copy."""
        copies = noisy_copies(question, self.samples, self.noise, self.seed)
        parts = maps_of_sums(question, copies, self.samples, lambda sums: self.project(sums / self.samples))
        return self.answer(*parts)


@method("vargrad", family="gradient", forwards="1 + samples", backwards="samples", fine=True, rounding=KINKS)
class VarGrad(Explainer):
    r"""VarGrad: variance of the gradient over noisy copies of the picture, summed over the colour channels.

    .. math:: M_{ij} = \sum_c \frac{1}{n} \sum_{k=1}^{n} \left( g^k_{cij} - \bar g_{cij} \right)^2,
              \qquad g^k = \frac{\partial y^t}{\partial x}\Big|_{x + \varepsilon_k}, \quad
              \varepsilon_k \sim \mathcal{N}(0, \sigma^2), \quad \sigma = s \, (x_{\max} - x_{\min})

    The noise is SmoothGrad's. The variances of the channels add up to that of the pixel's gradient as a vector. No
    value is negative, so every ``sign`` gives the same map. If the model is linear around the picture, the map is
    blank.
    """

    samples: Annotated[int, Field(ge=2, le=MOST_SAMPLES, description="Number of noisy copies of the picture.")] = 25
    noise: Annotated[Noise, Field(gt=0)] = 0.15
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per noisy copy."""
        objective, outputs = question.plain()
        copies = noisy_copies(question, self.samples, self.noise, self.seed)
        mean = torch.zeros_like(question.images, dtype=torch.float32)
        squares = torch.zeros_like(mean)
        counts = [0] * len(mean)
        total = len(mean) * self.samples
        # Welford's update: the difference of two large sums would lose a small variance.
        for picture, gradient in gradient_terms(question, objective, copies, total):
            counts[picture] += 1
            difference = gradient - mean[picture]
            mean[picture] += difference / counts[picture]
            squares[picture] += difference * (gradient - mean[picture])
            question.progress.show(lambda: self.project(squares / self.samples))
        return self.answer(self.project(squares / self.samples), objective, outputs)
