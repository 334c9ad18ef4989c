"""Correlations of rows, and of the ranks of their values.

`scipy.stats` has them too, and takes 60 MB and a second to import.
"""

import torch
from torch import Tensor

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
    ordered = values.sort(dim=1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2
