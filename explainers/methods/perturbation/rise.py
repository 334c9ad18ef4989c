"""RISE: random masks, weighted by what the model says of the pictures that they show."""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import Seed
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.perturbation.base import Perturbation, Score, varies

MOST_DRAWN = 20_000_000
"""Most cells of all masks together."""


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

    Section 3: f is the softmax probability. A mask is a grid of cells x cells, each shown with `probability`, enlarged
    bilinearly by whole cells to one cell more than the picture on each side, and cropped at a random place. Where the
    paper divides by the number of masks times :math:`\mathbb{E}[M(\lambda)]`, the masks' own sum is taken, and
    the mean score is subtracted, which the paper does not do: the order of the pixels stays, and zero means that a
    pixel makes no difference. Where the scores differ by no more than rounding, the map is zero. Cells have their size
    rounded up, that the enlarged grid covers the picture at any place.
    """

    sign: Annotated[
        Sign, Field(description="Keep the evidence for the class, also that against it, or magnitudes.")
    ] = "positive"
    score: Annotated[Score, Field(description="What of the class is watched: its `logit` or its `probability`.")] = (
        "probability"
    )
    samples: Annotated[int, Field(ge=1, le=20_000, description="How many masks are drawn.")] = 1000
    probability: Annotated[float, Field(ge=0.01, le=0.99, description="Of each cell of a mask to be shown.")] = 0.5
    cells: Annotated[int, Field(ge=1, le=64, description="Cells of a mask on each side.")] = 7
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per mask."""
        images = question.images
        if (drawn := self.samples * self.cells**2) > MOST_DRAWN:
            raise OptionError(
                f"{self.samples} masks of {self.cells} by {self.cells} cells are {drawn} cells, and {MOST_DRAWN} are "
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
            return torch.stack([one[top : top + height, left : left + width] for one, top, left in places])

        objective, outputs = question.plain()
        total = images.new_zeros(len(images), height, width, dtype=torch.float64)
        shown, watched = torch.zeros_like(total), torch.full((len(images), self.samples), torch.nan).to(total)

        def maps() -> Tensor:
            seen = shown > 0
            found = torch.where(seen, total / shown.where(seen, 1) - watched.nanmean(dim=1)[:, None, None], 0)
            known = [scores[~scores.isnan()] for scores in watched]
            found[[len(scores) < 2 or not varies(scores) for scores in known]] = 0
            return self.project(found[:, None])

        for picture, rows, kept, scores in self.probe(question, objective, [self.samples] * len(images), masks):
            total[picture] += torch.einsum("r,rhw->hw", scores.double(), kept.double())
            shown[picture] += kept.double().sum(dim=0)
            watched[picture, rows] = scores.double()
            question.progress.show(maps)
        if not bool((shown > 0).all()):
            raise OptionError("Some pixels are in no mask; draw more samples, or raise the probability.", "samples")
        return self.answer(maps(), objective, outputs)
