"""Gradients integrated along other paths: from blurred to sharp, and where the model's gradient is small."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.execution.chunks import chunk_size, chunks
from seewhy.explainers.methods.baselines import BASELINES, Baseline, Colour, baseline_of, blurred
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer, SignOption
from seewhy.explainers.methods.gradient.base import KINKS, Sample, input_gradients, maps_of_sums


@method("blur-ig", family="gradient", forwards="1 + steps", backwards="steps", fine=True, rounding=KINKS)
class BlurIG(Explainer):
    r"""Blur integrated gradients: gradients along the path from the blurred to the sharp picture, times the change in
    each step.

    .. math:: M_{ij} = \sum_c \int_{\sigma_{\max}}^{0}
              \frac{\partial y^t}{\partial x_{cij}}\Big|_{L(x, \sigma)}
              \frac{\partial L(x, \sigma)_{cij}}{\partial \sigma} d\sigma

    where L is the picture blurred by a Gaussian of standard deviation :math:`\sigma`, up to ``max_sigma`` pixels of the
    model's input. The method needs no baseline: with ``sign="signed"`` the map sums to the score of the picture minus
    that of the most blurred one.

    The path is divided into ``steps`` pieces. Each piece contributes the gradient at its middle times the change of the
    picture along the piece. The pieces add up to the whole path, so a linear model is explained exactly. The authors'
    code uses the gradient at the sharp end of a piece, and the change for a small step of :math:`\sigma`. Its pieces
    are equally long in :math:`\sigma`; here they are equally long in the square root of :math:`\sigma`, because the
    picture changes most where it is nearly sharp. It also pads with zeros outside the picture; here the picture is
    mirrored at its borders, so blurring adds no dark frame.
    """

    sign: SignOption = "signed"
    steps: Annotated[int, Field(ge=1, le=2000, description="Number of pieces of the path from blurred to sharp.")] = 50
    max_sigma: Annotated[
        float, Field(gt=0, le=500, description="Standard deviation of the strongest blur, in pixels of the input.")
    ] = 50.0

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per step."""
        return self.answer(*maps_of_sums(question, self._points(question), self.steps, self.project))

    def _points(self, question: Question) -> Iterator[Sample]:
        for number, image in enumerate(widened(question.images)):
            sharper = image
            for step in range(self.steps):
                middle, end = (self.max_sigma * (part / self.steps) ** 2 for part in (step + 0.5, step + 1))
                softer = blurred(image, end)
                yield Sample(number, blurred(image, middle), sharper - softer)
                sharper = softer


@method(
    "guided-ig",
    family="gradient",
    forwards="2 + steps",
    backwards="1 + steps",
    fine=True,
    rounding="which values the path changes first, and thereby the path and the map",
)
class GuidedIG(Explainer):
    r"""Guided integrated gradients: integrated gradients along a path that first changes the pixels to which the score
    is least sensitive.

    .. math:: M_{ij} = \sum_c \sum_k \tfrac{1}{2} \left( g^{k}_{cij} + g^{k+1}_{cij} \right)
              \left( x^{k+1}_{cij} - x^{k}_{cij} \right),
              \qquad g^{k} = \frac{\partial y^t}{\partial x}\Big|_{x^k}

    The path goes from a baseline :math:`x^0` to the picture :math:`x^n`. Each step covers the same part of the whole
    path, measured by the sum of magnitudes. It moves the ``fraction`` of the values whose gradients have the smallest
    magnitudes, and more values if these do not suffice. No value may be ahead of the straight line, or behind it, by
    more than ``max_dist`` of its path; with 0 the path is that of integrated gradients. (The bound and the defaults of
    both options are those of the authors' code; in the paper the path passes through anchors on the line.)

    The authors' code uses the gradient at the start of each step. Here it is the mean of the gradients at both ends,
    which costs no extra pass and brings the sum closer to the score of the picture minus that of the baseline. If
    values have nearly equal gradients, rounding decides which one moves first, so the details of maps differ between
    processors.
    """

    sums: ClassVar[bool] = True

    sign: SignOption = "signed"
    steps: Annotated[int, Field(ge=1, le=2000, description="Number of steps of the path.")] = 50
    fraction: Annotated[
        float,
        Field(
            ge=0.001,
            le=1,
            description="Share of the values, those with the smallest gradients, that are changed first.",
        ),
    ] = 0.25
    max_dist: Annotated[
        float,
        Field(ge=0, le=1, description="Maximum distance of a value from the straight line, as a share of its path."),
    ] = 0.02
    baseline: Annotated[Baseline, Field(description=BASELINES)] = "zero"
    value: Colour = ()

    def origins(self, images: Tensor, model: AnyModel) -> Tensor:
        """Return the baselines (N, C, H, W), in float32 at least."""
        return baseline_of(images, self.baseline, model, self.value)

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per step, one after the other."""
        baselines = self.origins(question.images, question.model)
        objective, outputs = question.plain()
        images = widened(question.images)
        size = chunk_size(question.module, question.images, backward=True)
        parts = torch.split(torch.arange(len(images), device=images.device), size)
        total = len(parts) * (self.steps + 1)
        reports = iter(chunks(total, 1, question.progress))  # each gradient of a part of the batch takes one
        contributions = torch.zeros_like(images, dtype=torch.float32)
        for rows in parts:
            for values in self._integrated(question, objective, images, baselines, rows, reports):
                contributions[rows] = values.view(len(rows), *images.shape[1:])
                question.progress.show(lambda: self.project(contributions))
        next(reports, None)
        return self.answer(self.project(contributions), objective, outputs)

    def _integrated(
        self,
        question: Question,
        objective: Objective,
        images: Tensor,
        baselines: Tensor,
        rows: Tensor,
        reports: Iterator[slice],
    ) -> Iterator[Tensor]:
        """Yield, after each step, the contributions (R, D) so far of some rows of the pictures."""
        target, start, part = images[rows].flatten(1), baselines[rows].flatten(1), objective.rows(rows)

        def gradient(values: Tensor) -> Tensor:
            next(reports)
            pictures = values.view(len(rows), *images.shape[1:]).to(question.images)
            return input_gradients(question, pictures, part)[0].flatten(1)

        point = start
        slope = gradient(point)
        contributions = torch.zeros_like(slope)
        for step in range(1, self.steps + 1):
            next_point = self._step(point, slope.abs(), start, target, step / self.steps)
            next_slope = gradient(next_point)
            contributions += (slope + next_slope) / 2 * (next_point - point)
            point, slope = next_point, next_slope
            yield contributions

    def _step(self, point: Tensor, steepness: Tensor, start: Tensor, target: Tensor, alpha: float) -> Tensor:
        """Return the next points (R, D), at `alpha` of the way from start to target.

        Args:
            point: (R, D), the last points.
            steepness: (R, D), the magnitudes of the gradients there.
            start, target: (R, D), the ends of the path.
            alpha: above 0, up to 1.
        """
        if alpha == 1:
            return target
        way = target - start
        low, high = max(alpha - self.max_dist, 0.0), min(alpha + self.max_dist, 1.0)
        floor, ceiling = start + low * way, start + high * way if high < 1 else target
        point = torch.where((floor - point) * way > 0, floor, point)  # values too far behind catch up first
        movable = (ceiling - point) * way > 0
        # By how much the point is still farther from the target than `alpha` allows: the way of this step.
        distance = way.abs().sum(dim=1, keepdim=True) * (1 - alpha)
        gaps = ((target - point).abs().double().sum(dim=1, keepdim=True) - distance).clamp_min(0)[:, 0]
        shares = self._shares(torch.where(movable, steepness, torch.inf), (ceiling - point).abs() * movable, gaps)
        return torch.where(shares < 1, point + shares * (ceiling - point), ceiling.where(movable, point))

    def _shares(self, steepness: Tensor, lengths: Tensor, gaps: Tensor) -> Tensor:
        """Return which share (R, D) of its length each value moves, the least steep ones first.

        Args:
            steepness: (R, D); infinite for values that cannot move.
            lengths: (R, D), how far each value can move.
            gaps: (R,), the sum of the moves of each row, if its lengths suffice.
        """
        rank = int(self.fraction * (steepness.shape[1] - 1)) + 1
        keys, order = steepness.sort(dim=1)
        sums = lengths.gather(1, order).double().cumsum(dim=1).cpu().numpy()
        ends = torch.searchsorted(keys, keys, right=True).cpu().numpy()
        counts = steepness.isfinite().sum(dim=1).tolist()
        shares = torch.zeros_like(keys)
        for row, (gap, count) in enumerate(zip(gaps.tolist(), counts, strict=True)):
            first, end, before, total = 0, 0, 0.0, 0.0
            # Whole groups of `rank` values, and all as steep as the last of each, until their sum exceeds the gap.
            while end < count and total <= gap:
                first, before = end, total
                end = min(int(ends[row, min(first + rank, count) - 1]), count)
                total = float(sums[row, end - 1])
            shares[row, :first] = 1
            shares[row, first:end] = min(1.0, (gap - before) / (total - before)) if total > before else 1.0
        return torch.zeros_like(shares).scatter(1, order, shares)
