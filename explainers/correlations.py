"""Correlations of rows, of the ranks of their values, and of two maps of one picture.

`scipy.stats` has them too, but takes 60 MB and a second to import.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

ROUNDING = 1e-7
"""Deviations up to this share of the largest value count as rounding."""


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlations (N,) float32 of rows (N, P); 0 where a row is constant."""
    rows = [values.double() - values.double().mean(dim=1, keepdim=True) for values in (first, second)]
    lengths = [values.norm(dim=1) for values in rows]
    scales = [values.double().abs().amax(dim=1) * values.shape[1] ** 0.5 for values in (first, second)]
    varies = (lengths[0] > ROUNDING * scales[0]) & (lengths[1] > ROUNDING * scales[1])
    product = (lengths[0] * lengths[1]).where(varies, 1)
    return torch.where(varies, (rows[0] * rows[1]).sum(dim=1) / product, 0).clamp(-1, 1).float()


def rank_correlations(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's correlations (N,) float32 of maps (N, h, w); 0 where a map is constant."""
    return correlations(mean_ranks(first.flatten(1)), mean_ranks(second.flatten(1)))


def mean_ranks(values: Tensor) -> Tensor:
    """Return the rank of each value in its row (N, P), float64; equal values share their mean rank."""
    values = values.contiguous()  # searchsorted warns about others, and copies them each time
    ordered = values.sort(dim=1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2


def rank_correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> float | None:
    """Return Spearman's rank correlation of two maps of one picture, in [-1, 1].

    It compares the order of places, whatever the maps' units; equal values share their mean rank.

    Args:
        first, second: (h, w) float32, over the same part of the picture; the coarser map is resized bilinearly to the
            grid of the finer one.

    Returns:
        The correlation; None if a map is constant, and so has no order.
    """
    if any(values.min() == values.max() for values in (first, second)):  # resizing would make it nearly constant
        return None
    finest = max(first.shape, second.shape, key=lambda shape: shape[0] * shape[1])
    rows = [torch.from_numpy(_resized(values, finest))[None] for values in (first, second)]
    return None if any(row.min() == row.max() for row in rows) else float(rank_correlations(*rows))


def _resized(values: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    if values.shape == shape:
        return values
    tensor = torch.from_numpy(np.ascontiguousarray(values))[None, None]
    resized: NDArray[np.float32] = functional.interpolate(tensor, size=shape, mode="bilinear")[0, 0].numpy()
    return resized
