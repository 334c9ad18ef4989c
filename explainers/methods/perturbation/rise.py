"""RISE: random masks, weighted by the scores of the masked pictures."""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.explainer import Seed, SignOption
from seewhy.explainers.methods.perturbation.base import Perturbation, Score, spread

MOST_CELLS = 20_000_000
"""Largest number of cells of all masks together."""


@method(
    "rise",
    family="perturbation",
    summary="Average of random masks, each weighted by the score of the picture that it shows, less the mean score.",
    paper=Paper(
        "Petsiuk, Das, Saenko",
        "RISE: Randomized Input Sampling for Explanation of Black-box Models",
        2018,
        "https://arxiv.org/abs/1806.07421",
    ),
    forwards="1 + samples",
    backwards="0",
    fine=True,
)
@dataclass(frozen=True, kw_only=True)
class RISE(Perturbation):
    r"""RISE: how much the expected score of a randomly masked picture rises when a pixel is shown.

    .. math:: S(\lambda) = \mathbb{E}\big[ f(I \odot M) \mid M(\lambda) = 1 \big] - \mathbb{E}\big[ f(I \odot M) \big]
              \approx \frac{\sum_i f_i\, M_i(\lambda)}{\sum_i M_i(\lambda)} - \frac{1}{N} \sum_i f_i,
              \qquad f_i = f(I \odot M_i)

    Section 3: f is the softmax probability. A mask is a grid of cells x cells, each shown with `probability`. The grid
    is enlarged bilinearly to one cell more than the picture along each side, and cropped at a random place. The size of
    a cell is rounded up, so that the enlarged grid covers the picture at any place.

    Deviations: the paper divides by the number of masks times :math:`\mathbb{E}[M(\lambda)]`, here by the sum of the
    masks. And the mean score is subtracted: the order of the pixels stays, and zero means that a pixel makes no
    difference. Where the scores differ by no more than rounding, the map is zero.
    """

    sign: SignOption = "positive"
    score: Score = "probability"
    samples: Annotated[int, Field(ge=1, le=20_000, description="How many masks are drawn.")] = 1000
    probability: Annotated[float, Field(ge=0.01, le=0.99, description="Of each cell of a mask to be shown.")] = 0.5
    cells: Annotated[int, Field(ge=1, le=64, description="Cells of a mask on each side.")] = 7
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per mask.

        Raises:
            OptionError: more than `MOST_CELLS` cells, or so few masks that some pixel is in none.
        """
        images = question.images
        if (total := self.samples * self.cells**2) > MOST_CELLS:
            raise OptionError(
                f"{self.samples} masks of {self.cells} by {self.cells} cells are {total} cells, and {MOST_CELLS} are "
                "allowed; draw fewer samples, or fewer cells.",
                "samples",
            )
        height, width = images.shape[2:]
        generator = torch.Generator().manual_seed(self.seed)
        grids = (torch.rand(self.samples, self.cells, self.cells, generator=generator) < self.probability).float()
        cell = [-(-side // self.cells) for side in (height, width)]
        tops, lefts = (torch.randint(size, (self.samples,), generator=generator).tolist() for size in cell)
        enlarged = [(self.cells + 1) * size for size in cell]

        def masks(_picture: int, part: slice) -> Tensor:
            large = functional.interpolate(grids[part][:, None].to(images.device), size=enlarged, mode="bilinear")
            places = zip(large[:, 0], tops[part], lefts[part], strict=True)
            return torch.stack([mask[top : top + height, left : left + width] for mask, top, left in places])

        objective, outputs = question.plain()
        sums = images.new_zeros(len(images), height, width, dtype=torch.float64)
        weights = torch.zeros_like(sums)
        history = torch.full((len(images), self.samples), torch.nan).to(sums)  # NaN: not run yet

        def maps() -> Tensor:
            covered = weights > 0
            means = torch.where(covered, sums / weights.where(covered, 1) - history.nanmean(dim=1)[:, None, None], 0)
            return self.project(torch.where(spreads()[:, None, None] > 0, means, 0.0)[:, None])

        def spreads() -> Tensor:
            runs = [scores[~scores.isnan()] for scores in history]
            return torch.stack([spread(scores) if len(scores) else scores.new_zeros(()) for scores in runs])

        for picture, rows, group, scores in self.probe(question, objective, [self.samples] * len(images), masks):
            sums[picture] += torch.einsum("r,rhw->hw", scores.double(), group.double())
            weights[picture] += group.double().sum(dim=0)
            history[picture, rows] = scores.double()
            question.progress.show(maps)
        if not bool((weights > 0).all()):
            raise OptionError("Some pixels are in no mask; draw more samples, or raise the probability.", "samples")
        return replace(self.answer(maps(), objective, outputs), change=spreads())
