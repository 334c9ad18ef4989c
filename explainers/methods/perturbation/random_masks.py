"""RISE and D-RISE: random masks, weighted by the scores of the masked pictures."""

from dataclasses import dataclass as plain
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed, SignOption
from seewhy.explainers.methods.perturbation.base import Masking, Score, scored, spread

MOST_CELLS = 20_000_000
"""Largest number of cells of all masks together."""


@plain(frozen=True, eq=False)
class Moments:
    """Sums over the masks of each picture that have run.

    Attributes:
        sums: (N, 3, H, W) float64, of each mask times 1, its score and the square of that.
        squares: likewise, of the squares of masks.
        history: (N, samples) float64, the scores; NaN where a mask has not run.
    """

    sums: Tensor
    squares: Tensor
    history: Tensor

    @classmethod
    def zero(cls, images: Tensor, samples: int) -> "Moments":
        """Return the sums of pictures (N, C, H, W) before any mask has run."""
        count, _, height, width = images.shape
        sums = images.new_zeros(count, 3, height, width, dtype=torch.float64)
        return cls(sums, torch.zeros_like(sums), torch.full((count, samples), torch.nan).to(sums))

    def add(self, picture: int, rows: slice, masks: Tensor, scores: Tensor) -> None:
        """Count masks (R, H, W) of a picture with scores (R,)."""
        masks, scores = masks.double(), scores.double()
        powers = torch.stack([torch.ones_like(scores), scores, scores**2])
        self.sums[picture] += torch.einsum("kr,rhw->khw", powers, masks)
        self.squares[picture] += torch.einsum("kr,rhw->khw", powers, masks**2)
        self.history[picture, rows] = scores

    @property
    def covers(self) -> bool:
        """Whether each pixel is in some mask."""
        return bool((self.sums[:, 0] > 0).all())

    @property
    def means(self) -> Tensor:
        """(N, H, W): the mean score of the masks that show a pixel, minus that of all; 0 where none shows it."""
        coverage, scored, _ = self.sums.unbind(1)
        overall = self.history.nanmean(dim=1)[:, None, None]
        return torch.where(coverage > 0, scored / coverage.where(coverage > 0, 1) - overall, 0)

    @property
    def spreads(self) -> Tensor:
        """(N,): see `spread`."""
        runs = [scores[~scores.isnan()] for scores in self.history]
        return torch.stack([spread(scores) if len(scores) else scores.new_zeros(()) for scores in runs])

    @property
    def errors(self) -> Tensor:
        """(N, H, W): the standard errors of `means` of masks that have all run.

        To first order, mask i moves the mean by 1/n of
        psi_i = M_i (f_i - m) / mean(M) - (f_i - mean(f)), where m is the mean score of the masks that show the pixel,
        and the standard error is the square root of sum(psi_i^2) / n^2.
        """
        count = self.history.shape[1]
        coverage, scored, scored_twice = self.sums.unbind(1)
        share = coverage / count
        overall = self.history.mean(dim=1)[:, None, None]
        mean = scored / coverage
        shown_spread = (self.squares * torch.stack([mean**2, -2 * mean, torch.ones_like(mean)], dim=1)).sum(
            dim=1
        ) / share**2
        covariance = (scored_twice - (mean + overall) * scored + mean * overall * coverage) / share
        overall_spread = ((self.history - self.history.mean(dim=1, keepdim=True)) ** 2).sum(dim=1)[:, None, None]
        return (shown_spread - 2 * covariance + overall_spread).clamp_min(0).sqrt() / count


@dataclass(frozen=True, kw_only=True)
class RandomMasks(Masking):
    """Base of methods that draw random masks."""

    sign: SignOption = "positive"
    samples: Annotated[int, Field(ge=1, le=20_000, description="Number of masks.")] = 1000
    probability: Annotated[
        float, Field(ge=0.01, le=0.99, description="Probability that a cell of a mask is shown.")
    ] = 0.5
    cells: Annotated[int, Field(ge=1, le=64, description="Number of cells of a mask on each side.")] = 7
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per mask."""
        images = question.images
        if (total := self.samples * self.cells**2) > MOST_CELLS:
            raise OptionError(
                f"{self.samples} masks of {self.cells} by {self.cells} cells have {total} cells; at most {MOST_CELLS} "
                "are allowed. Use fewer samples, or fewer cells.",
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
        moments = Moments.zero(images, self.samples)

        def maps() -> Tensor:
            return self.project(torch.where(moments.spreads[:, None, None] > 0, moments.means, 0.0)[:, None])

        counts = [self.samples] * len(images)
        for picture, rows, group, scores in self.probe(question, objective, counts, masks, are_shared=True):
            moments.add(picture, rows, group, scores)
            question.progress.show(maps)
        if not moments.covers:
            raise OptionError("Some pixels are in no mask; draw more samples, or raise the probability.", "samples")
        return self.finished(replace(self.answer(maps(), objective, outputs), change=moments.spreads), moments)

    def finished(self, attribution: Attribution, moments: Moments) -> Attribution:
        """Return the attribution, with further results from the masks."""
        return attribution


@method("rise", family="perturbation", forwards="1 + samples", backwards="0", fine=True)
class RISE(RandomMasks):
    r"""RISE: average of random masks, weighted by the score of the masked picture minus the mean score.

    .. math:: S(\lambda) = \mathbb{E}\big[ f(I \odot M) \mid M(\lambda) = 1 \big] - \mathbb{E}\big[ f(I \odot M) \big]
              \approx \frac{\sum_i f_i\, M_i(\lambda)}{\sum_i M_i(\lambda)} - \frac{1}{N} \sum_i f_i,
              \qquad f_i = f(I \odot M_i)

    Section 3: f is the softmax probability. A mask is a grid of cells x cells, each shown with `probability`. The grid
    is enlarged bilinearly to one cell more than the picture along each side, and cropped at a random position. The size
    of a cell is rounded up, so the enlarged grid covers the picture at any position.

    Deviations: the paper divides by the number of masks times :math:`\mathbb{E}[M(\lambda)]`; here the sum of the masks
    is used. The mean score is subtracted, which preserves the order of the pixels; zero means that a pixel makes no
    difference. If the scores differ only by rounding, the map is zero.
    """

    score: Score = "probability"

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the scores (R,) float32 of outputs (R, ...)."""
        return scored(self.score, objective, outputs)


@method("drise", family="perturbation", forwards="1 + samples", backwards="0", fine=True)
class DRISE(RandomMasks):
    r"""D-RISE: average of random masks, weighted by the similarity of the boxes that a detector still finds; detectors
    only.

    .. math:: S(\lambda) \approx \frac{\sum_i w_i\, M_i(\lambda)}{\sum_i M_i(\lambda)} - \frac{1}{N} \sum_i w_i,
              \qquad w_i = \max_{d \in f(I \odot M_i)} \mathrm{IoU}(b, b_d)\, \frac{P \cdot P_d}{|P|\, |P_d|}\, O_d

    where b is the explained box and P the scores of its classes; :math:`b_d` and :math:`P_d` are those of a candidate
    of the masked picture, and :math:`O_d` is its objectness, or 1 if the detector has none. All candidates count,
    before thresholding and suppression. Masks are those of RISE, and several boxes of a picture share them and the
    passes. Results report the standard error of the estimate (``monte-carlo-error``).

    Deviations: as in RISE, the sum is divided by that of the masks, and the mean weight is subtracted; the paper uses
    5000 masks of 16 by 16 cells. Attributes of the box other than its score have no effect.
    """

    reads: ClassVar[tuple[str, ...]] = ("similarity",)

    cells: Annotated[int, Field(ge=1, le=64, description="Number of cells of a mask on each side.")] = 16

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the similarities (R,) float32 of outputs (R, ...)."""
        return objective.similarity(outputs)

    def finished(self, attribution: Attribution, moments: Moments) -> Attribution:
        """Return the attribution, with its Monte Carlo error."""
        largest = moments.means.abs().amax(dim=(1, 2))
        errors = moments.errors.amax(dim=(1, 2)) / largest.where(largest > 0, 1)
        return replace(attribution, diagnostics=tuple((self._error(share),) for share in errors.tolist()))

    def _error(self, share: float) -> Diagnostic:
        return Diagnostic(
            "monte-carlo-error",
            f"The map is an estimate from {self.samples} masks: the standard error of its values is at most "
            f"{share:.0%} of the largest. Four times the samples halve it.",
        )
