"""Extremal perturbation: the smooth mask of a fixed area that keeps the score highest."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution import chunks
from seewhy.explainers.execution.chunks import chunk_size
from seewhy.explainers.methods.baselines import PLAIN, PlainBaseline, baseline_of
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.gradient.base import input_gradients
from seewhy.explainers.methods.perturbation.base import Perturbation, cells_of, masked

RATE = 0.05
"""Step size of the optimiser, in units of the mask."""

WEIGHTS = (1.0, 300.0)
"""Weight of the area constraint at the first and the last step; it grows by a constant factor from step to step."""

SHARPNESS = 20.0
"""Inverse temperature of the smooth maximum."""

MOST_VALUES = 2**24
"""Largest number of values in the smooth maximum of one picture: cells of the mask times cells of the Gaussian."""

BYTES = 24
"""Bytes for each of these values, with the copies that autograd keeps."""


@method(
    "extremal-perturbation",
    family="perturbation",
    forwards="3 + steps",
    backwards="1 + steps",
    rounding="which of several equally good parts the optimiser finds",
)
class ExtremalPerturbation(Perturbation):
    r"""Extremal perturbation: the smooth mask of a fixed area that keeps the score highest.

    .. math:: m_a = \arg\max_m \; S(m \otimes x) - \lambda \lVert \mathrm{vecsort}(m) - r_a \rVert^2, \qquad
              m(u) = \mathrm{smax}_v \; k(u - v)\, \bar m(v)

    Section 3: :math:`m \otimes x` blends the picture with its baseline, :math:`r_a` is a share a of ones after zeros,
    and m is the smooth maximum of the parameters :math:`\bar m` (between 0 and 1) around each position, weighted by a
    Gaussian k. The map is m, on its own grid.

    Deviations: the picture is blended with one blurred copy (or another baseline); in the paper the mask says how much
    each pixel is blurred. The mask is computed on a grid of cells and enlarged bilinearly. The score is divided by the
    difference between picture and baseline, and the norm by the number of cells, so that a single :math:`\lambda` works
    for all models; it grows from 1 to 300. The optimiser is Adam. The parameters start at one half plus a tenth of the
    normalised gradient, because equal values have no order. Nothing is random.

    With few steps the area is only approximate. Rounding, which differs between processors, can lead the optimiser to
    another part of the picture that works equally well; rely on what several areas have in common.
    """

    sign: Annotated[Sign, Field(description="No effect: a mask is never negative.")] = "positive"
    baseline: Annotated[PlainBaseline, Field(description=f"Replacement of hidden pixels. {PLAIN}")] = "blur"
    area: Annotated[float, Field(ge=0.01, le=0.9, description="Area of the mask, as a share of the picture's.")] = 0.1
    steps: Annotated[
        int, Field(ge=1, le=2000, description="Number of steps of the optimiser, with a backward pass each.")
    ] = 150
    cells: Annotated[
        int, Field(ge=2, le=64, description="Number of cells of the mask along the picture's shorter side.")
    ] = 28
    width: Annotated[
        float, Field(ge=0.01, le=0.5, description="Standard deviation of the Gaussian, as a share of the shorter side.")
    ] = 0.08

    def attribute(self, question: Question) -> Attribution:
        """One forward pass of the pictures, one of their baselines, and a forward and a backward pass per step."""
        images = question.images
        values = self._values(images)
        baseline = baseline_of(images, self.baseline, question.model).to(images.dtype)
        objective, outputs = question.plain()
        size = min(chunk_size(question.module, images, backward=True), max(1, chunks.MEMORY // (BYTES * values)))
        groups = torch.arange(len(images), device=images.device).split(size)  # type: ignore[no-untyped-call]
        maps: list[Tensor] = []
        for number, rows in enumerate(groups):
            empty = self.scores(objective.rows(rows), question.predict(baseline[rows]))
            fall = (self.scores(objective, outputs)[rows] - empty).abs()
            scale = torch.where(fall > 0, fall, 1.0)
            start, total = number * (self.steps + 1), len(groups) * (self.steps + 1)

            def show(masks: Callable[[], Tensor], before: tuple[Tensor, ...] = tuple(maps)) -> None:
                # Pictures of later groups have empty masks so far.
                rest = torch.zeros(len(images), *cells_of(images, self.cells), device=images.device)
                question.progress.show(lambda: self.project(torch.cat([*before, masks(), rest])[: len(images), None]))

            part = replace(question, images=images[rows], progress=replace(question.progress, show=show))
            maps.append(self._optimise(part, baseline[rows], objective.rows(rows), scale, (start, total)))
        question.progress.at(total, total)
        return self.answer(self.project(torch.cat(maps)[:, None]), objective, outputs)

    def _values(self, images: Tensor) -> int:
        """Return the number of values in the smooth maximum of a picture.

        Raises:
            OptionError: there are more than `MOST_VALUES`.
        """
        rows, columns = cells_of(images, self.cells)
        values = rows * columns * (2 * reach(self.width * self.cells) + 1) ** 2
        if values > MOST_VALUES:
            raise OptionError(
                f"A Gaussian of width {self.width:g} on a mask of {rows} by {columns} cells takes {values} values; at "
                f"most {MOST_VALUES} are allowed. Use a smaller width, or fewer cells.",
                "width",
            )
        return values

    def _optimise(
        self, question: Question, baseline: Tensor, objective: Objective, scale: Tensor, place: tuple[int, int]
    ) -> Tensor:
        """Return the masks (R, h, w) of the pictures of one pass.

        Args:
            question: about these pictures.
            baseline: (R, C, H, W), their baselines.
            objective: objective of these pictures.
            scale: (R,), the divisors of their scores.
            place: the number of the first step, and how many there are in all.
        """
        images = question.images

        def scaled(objective: Objective, outputs: Tensor) -> Tensor:
            return self.scores(objective, outputs) / scale

        sides = cells_of(images, self.cells)
        template = torch.zeros(sides[0] * sides[1], device=images.device)
        template[len(template) - max(1, round(self.area * len(template))) :] = 1
        parameters = torch.full((len(images), *sides), 0.5, device=images.device)
        optimiser = torch.optim.Adam([parameters], lr=RATE)
        for step in range(self.steps + 1):
            question.progress.at(place[0] + step, place[1])
            weight = WEIGHTS[0] * (WEIGHTS[1] / WEIGHTS[0]) ** (step / self.steps) if step else 0.0
            with torch.enable_grad():
                leaf = parameters.detach().requires_grad_()
                masks = smooth_maximum(leaf, self.width * self.cells)
                large = functional.interpolate(masks[:, None], size=images.shape[2:], mode="bilinear")[:, 0]
                copies = masked(images, baseline, large)
                excess = (masks.flatten(1).sort(dim=1).values - template).square().mean(dim=1)
                # Two backward passes save memory: the model's graph is freed before that of the mask is used, which
                # carries on the gradient of the score by the masked pictures.
                rise = input_gradients(question, copies, objective, scaled)[0].to(copies.dtype)
                (gradient,) = torch.autograd.grad((weight * excess.sum(), copies), leaf, (None, -rise))
            # Step 0 only finds the start of the parameters.
            if step:
                parameters.grad = gradient
                optimiser.step()
            else:
                parameters -= 0.1 * gradient / gradient.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-30)
            parameters.clamp_(0, 1)
            question.progress.show(partial(smooth_maximum, parameters, self.width * self.cells))
        return smooth_maximum(parameters, self.width * self.cells)


def reach(deviation: float) -> int:
    """Return how many cells a Gaussian reaches to each side."""
    return ceil(2.5 * deviation)


def smooth_maximum(values: Tensor, deviation: float) -> Tensor:
    """Return (R, h, w): at each position the smooth maximum of the values around it, weighted by a Gaussian.

    Args:
        values: (R, h, w), between 0 and 1; beyond the border they are zero.
        deviation: standard deviation of the Gaussian, in cells.
    """
    radius = reach(deviation)
    offsets = torch.arange(-radius, radius + 1, device=values.device, dtype=values.dtype)
    kernel = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * deviation**2))
    around = functional.unfold(values[:, None], kernel.shape[0], padding=radius) * kernel.reshape(-1, 1)
    maxima: Tensor = (around * (SHARPNESS * around).softmax(dim=1)).sum(dim=1)
    return maxima.reshape(values.shape)
