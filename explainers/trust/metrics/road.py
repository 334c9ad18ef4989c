"""ROAD: the probability when pixels are removed in a way that does not reveal their positions."""

from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.question import widened
from seewhy.explainers.trust.metrics.base import Metric, Seed, Subject, probability
from seewhy.explainers.trust.metrics.catalogue import metric

Imputation = Literal["fast", "exact"]

ImputationOption = Annotated[
    Imputation,
    Field(
        description="Replacement of removed pixels: `exact` solves the paper's linear system, which takes "
        "seconds per picture; `fast` approximates the solution from coarse to fine."
    ),
]

NoiseOption = Annotated[
    float, Field(ge=0, le=10, description="Standard deviation of the noise on removed pixels, in normalised units.")
]

SHARES = (0.2, 0.4, 0.6, 0.8)

SWEEPS = 8
"""Jacobi steps at each resolution of the fast imputation."""

_NEIGHBOURS = {
    (down, across): 1 / 6 if 0 in (down, across) else 1 / 12
    for down in (-1, 0, 1)
    for across in (-1, 0, 1)
    if (down, across) != (0, 0)
}
"""Weight of each neighbour of a pixel."""


@metric("road", aspect="faithfulness", better="higher", forwards="8")
class ROAD(Metric):
    r"""ROAD, remove and debias: difference between removing the least important and the most important pixels, in
    probability.

    .. math:: \frac{1}{2\,|S|} \sum_{s \in S} p\big(x \setminus L_s\big) - p\big(x \setminus M_s\big),
              \qquad S = \{0.2, 0.4, 0.6, 0.8\}

    where :math:`M_s` is the share s of pixels with the largest values, and :math:`L_s` that with the smallest. Each
    removed pixel becomes the weighted mean of its eight neighbours (1/6 for direct ones, 1/12 for diagonal ones), plus
    noise. This is one linear system for all removed pixels (section 4.2).
    """

    imputation: ImputationOption = "fast"
    noise: NoiseOption = 0.01
    seed: Seed = 0

    def curves(self, subject: Subject) -> Tensor:
        """Return the probabilities (N, 2, shares) without the least important and without the most important pixels."""
        images = subject.images
        positions = subject.ranks[0].numel()
        counts = torch.tensor([round(share * positions) for share in SHARES], device=images.device)
        generator = torch.Generator().manual_seed(self.seed)
        # The noise is the same for all pictures, so a value does not depend on the batch.
        noise = self.noise * torch.randn((2 * len(SHARES), *images.shape[1:]), generator=generator).to(images.device)

        def copies(pictures: Tensor, numbers: Tensor) -> Tensor:
            ranks, count = subject.ranks[pictures], counts[numbers % len(SHARES)][:, None, None]
            is_least = (numbers < len(SHARES))[:, None, None]
            removed = torch.where(is_least, ranks >= positions - count, ranks < count)
            filled = imputed(widened(images[pictures]), removed, self.imputation)
            return torch.where(removed[:, None], filled + noise[numbers], filled)

        return subject.probe(2 * len(SHARES), copies, probability).view(len(images), 2, -1)

    def score(self, subject: Subject) -> Tensor:
        """Return half of the mean difference (N,), in [-0.5, 0.5] for probabilities."""
        least, most = self.curves(subject).unbind(1)
        return (least - most).mean(dim=1) / 2


def imputed(images: Tensor, removed: Tensor, imputation: Imputation) -> Tensor:
    """Return images in which removed pixels are replaced according to their neighbours.

    Args:
        images: (N, C, H, W) float32 or wider.
        removed: (N, H, W) bool; at least one pixel of each picture must remain.
        imputation: see `ROAD`.
    """
    if imputation == "fast":
        return _smoothed(images, ~removed[:, None])
    rows = zip(images.double().cpu().numpy(), removed.cpu().numpy(), strict=True)
    return torch.from_numpy(np.stack([_solved(image, mask) for image, mask in rows])).to(images)


def _smoothed(images: Tensor, visible: Tensor) -> Tensor:
    """Fill pixels that `visible` (N, 1, H, W) omits: from the solution at half the resolution, then by Jacobi steps."""
    height, width = images.shape[2:]
    if height == width == 1:
        return images
    weights = visible.to(images)
    halves = [functional.avg_pool2d(values, 2, ceil_mode=True) for values in (images * weights, weights)]
    coarse_visible = halves[1] > 0
    coarse = _smoothed(halves[0] / halves[1].where(coarse_visible, 1), coarse_visible)
    filled = torch.where(visible, images, functional.interpolate(coarse, size=(height, width), mode="bilinear"))
    inside = _neighbours(torch.ones_like(images[:1, :1]))
    for _ in range(SWEEPS):
        filled = torch.where(visible, images, _neighbours(filled) / inside)
    return filled


def _neighbours(images: Tensor) -> Tensor:
    """Return the weighted sum of each pixel's neighbours inside the picture, with the weights of `_NEIGHBOURS`."""
    # The weights are the product of (1, 2, 1) down and across, except for the centre. Sums are faster than a
    # convolution.
    down = 2 * images
    down[..., 1:, :] += images[..., :-1, :]
    down[..., :-1, :] += images[..., 1:, :]
    both = 2 * down
    both[..., 1:] += down[..., :-1]
    both[..., :-1] += down[..., 1:]
    return both.sub_(images, alpha=4).div_(12)


def _solved(image: NDArray[np.float64], removed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a picture (C, H, W) with the removed pixels (H, W) from the paper's linear system."""
    if not removed.any():
        return image
    from scipy.sparse import csc_matrix  # slow to import
    from scipy.sparse.linalg import splu

    height, width = removed.shape
    down, across = np.nonzero(removed)
    numbers = np.full(removed.shape, -1)
    numbers[down, across] = unknowns = np.arange(len(down))
    diagonal = np.zeros(len(down))
    sides = np.zeros((len(down), len(image)))
    rows, columns, values = [unknowns], [unknowns], [diagonal]
    for (step_down, step_across), weight in _NEIGHBOURS.items():
        to_down, to_across = down + step_down, across + step_across
        inside = (to_down >= 0) & (to_down < height) & (to_across >= 0) & (to_across < width)
        here, there = unknowns[inside], (to_down[inside], to_across[inside])
        diagonal[here] += weight
        other = numbers[there]
        is_known = other < 0
        sides[here[is_known]] += weight * image[:, there[0][is_known], there[1][is_known]].T
        rows.append(here[~is_known])
        columns.append(other[~is_known])
        values.append(np.full((~is_known).sum(), -weight))
    matrix = csc_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))))
    # The matrix is symmetric and diagonally dominant, so pivoting is not needed.
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options={"SymmetricMode": True})
    filled = image.copy()
    filled[:, down, across] = factors.solve(sides).T
    return filled
