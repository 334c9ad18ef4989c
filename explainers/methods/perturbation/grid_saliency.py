"""Grid saliency: the least context that keeps a class in its region."""

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.execution.chunks import chunk_size
from seewhy.explainers.methods.baselines import PLAIN, PlainBaseline, baseline_of
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.base import input_gradients
from seewhy.explainers.methods.perturbation.base import cells_of, masked

MOMENTUM = 0.5
"""Momentum of the gradient descent."""

START = 0.5
"""Value of all cells before the first step."""

_NO_CONTEXT = Diagnostic(
    "blank-map",
    "The map is zero everywhere: the class keeps its region without any context, or no single cell of its context is "
    "worth the sparsity. Try a smaller sparsity, or fewer cells.",
)


@method(
    "grid-saliency",
    family="perturbation",
    forwards="1 + steps",
    backwards="steps",
    rounding="which of several equally good parts of the context is kept",
)
class GridSaliency(Explainer):
    r"""Grid saliency: the smallest context that keeps a class in its region.

    .. math:: m^* = \arg\min_{m \in [0,1]^{h \times w}} \; \lambda \lVert m \rVert_1 + \frac{1}{|R|} \sum_{u \in R}
              \max\bigl(0,\, p_u(x) - p_u(M \odot x + (1 - M) \odot a)\bigr), \qquad
              M = \max\bigl(\mathbb{1}_R,\, \mathrm{up}(m)\bigr)

    Section 3: p is the probability of the class at each position of the region R, M the mask m of a coarse grid,
    enlarged bilinearly, and a the baseline that replaces hidden pixels. The region itself stays visible, so m describes
    only the context. A cell stays visible if hiding it lowers the probability, averaged over the region, by more than
    :math:`\lambda`; raising the probability gains nothing. The map is m.

    Gradient descent starts at one half everywhere, with a momentum of 0.5, and keeps cells between 0 and 1. Start,
    momentum, step size and number of steps are those of an independent implementation, herbat/segmentation_xai on
    GitHub, where the mask is summed too, with a :math:`\lambda` of 0.02. It also shrinks the enlarged mask by a pixel,
    and as baseline it uses the one of several greys that preserves the class least. The :math:`\lambda` of 0.05 and the
    number of cells are our choice, the latter in proportion to the input's sides. The probability of a contrast is
    subtracted from that of the class. Nothing is random.

    Context is hidden if each of its cells alone matters less than :math:`\lambda`. If the map is zero, lower
    :math:`\lambda` or use fewer cells. The map is also zero if no context is needed.
    """

    reads: ClassVar[tuple[str, ...]] = ("region",)

    sign: Annotated[Sign, Field(description="No effect: a mask is never negative.")] = "positive"
    baseline: Annotated[PlainBaseline, Field(description=f"Replacement of hidden pixels. {PLAIN}")] = "zero"
    sparsity: Annotated[
        float, Field(ge=0, le=10, description="Cost of each visible cell, as a difference of the mean probability.")
    ] = 0.05
    steps: Annotated[
        int, Field(ge=1, le=2000, description="Number of steps of the gradient descent, with a backward pass each.")
    ] = 100
    rate: Annotated[float, Field(gt=0, le=100, description="Step size, in units of the mask.")] = 0.2
    cells: Annotated[
        int, Field(ge=1, le=64, description="Number of cells of the mask along the picture's shorter side.")
    ] = 8

    def attribute(self, question: Question) -> Attribution:
        """One forward pass of the pictures, and a forward and a backward pass per step."""
        images = question.images
        objective, outputs = question.plain()
        visible = functional.interpolate(objective.region[:, None].float(), size=images.shape[2:], mode="nearest") > 0
        baseline = baseline_of(images, self.baseline, question.model).to(images.dtype)
        masks = torch.full((len(images), 1, *cells_of(images, self.cells)), START, device=images.device)
        speeds = torch.zeros_like(masks)
        groups = torch.arange(len(images), device=images.device).split(  # type: ignore[no-untyped-call]
            chunk_size(question.module, images, backward=True)
        )
        for step in range(self.steps):
            question.progress.at(step, self.steps)
            for part in groups:
                gradient = self._gradient(
                    replace(question, images=images[part]),
                    masks[part],
                    visible[part],
                    baseline[part],
                    objective.rows(part),
                    outputs[part],
                )
                speeds[part] = MOMENTUM * speeds[part] + gradient + self.sparsity
            masks = (masks - self.rate * speeds).clamp_(0, 1)
            question.progress.show(partial(self.project, masks))
        question.progress.at(self.steps, self.steps)
        maps = self.project(masks)
        notes = tuple(() if any_visible else (_NO_CONTEXT,) for any_visible in maps.any(dim=2).any(dim=1).tolist())
        return replace(self.answer(maps, objective, outputs), diagnostics=notes)

    def _gradient(
        self,
        question: Question,
        masks: Tensor,
        visible: Tensor,
        baseline: Tensor,
        objective: Objective,
        outputs: Tensor,
    ) -> Tensor:
        """Return (R, 1, h, w): the gradient of the loss in the region with respect to masks (R, 1, h, w).

        Args:
            question: about the pictures of one pass.
            masks: masks of these pictures, as are all other arguments.
            visible: (R, 1, H, W) bool, the regions.
            baseline: (R, C, H, W).
            objective: whose region and probabilities count.
            outputs: outputs of the pictures as they are.
        """
        images = question.images
        with torch.enable_grad():
            leaf = masks.detach().requires_grad_()
            large = functional.interpolate(leaf, size=images.shape[2:], mode="bilinear")
            copies = masked(images, baseline, torch.where(visible, 1.0, large)[:, 0])
            # Two backward passes save memory: the model's graph is freed before that of the mask is used.
            slope, _, _ = input_gradients(question, copies, objective, lambda part, now: part.loss(now, outputs))
            (gradient,) = torch.autograd.grad(copies, leaf, slope.to(copies.dtype))
        return gradient
