"""What a tensor is like, in ten numbers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SQUARABLE = (1e-140, 1e140)
"""Between these the square of a float64, and a sum of many, neither underflows nor overflows."""
_SPREAD = 1e-4
"""Variance, as a share of the squared mean, below which the difference of two sums has too few digits of it."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor. NaN and infinity are counted, and left out of all other numbers.

    Attributes:
        shape, dtype: of the tensor.
        mean, std, min, max: of its finite values (the population's standard deviation); None where it has none.
            Those of a complex tensor are of its magnitudes.
        norm: Euclidean, over all finite values.
        zeros: share of values that are exactly zero, in [0, 1].
        nan, inf: how many values are NaN, or plus or minus infinity.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float
    zeros: float
    nan: int
    inf: int


def statistics(tensor: Tensor) -> Statistics:
    """Compute the statistics of a tensor of any shape and dtype. Sums are in float64."""
    found = tensor.detach()
    found = found.abs() if found.is_complex() else found
    if not found.is_floating_point():
        found = found.double()
    elif found.itemsize < 4:
        found = found.float()
    size, nan, inf = found.numel(), 0, 0
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    norm = zeros = 0.0
    if size:
        low, high = torch.stack(torch.aminmax(found)).tolist()
        if not (math.isfinite(low) and math.isfinite(high)):
            nan, inf = int(torch.isnan(found).sum()), int(torch.isinf(found).sum())
            found = found[torch.isfinite(found)]
            low, high = torch.stack(torch.aminmax(found)).tolist() if found.numel() else (None, None)
    if low is not None and high is not None:
        mean, std, norm, zeros = _moments(found, low, high)
    return Statistics(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        mean=mean,
        std=std,
        min=low,
        max=high,
        norm=norm,
        zeros=zeros / max(size, 1),
        nan=nan,
        inf=inf,
    )


def _moments(found: Tensor, low: float, high: float) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, norm and the number of zeros of finite values from `low` to `high`."""
    # Half zeros take several times as long to count as numbers than as booleans.
    count = torch.count_nonzero(found == 0).double()
    size, unit, largest = found.numel(), 1.0, max(abs(low), abs(high))
    if found.dtype == torch.float64 and largest and not _SQUARABLE[0] < largest < _SQUARABLE[1]:
        unit = largest
        found = found / unit
    total = found.sum(dtype=torch.float64)
    length = torch.linalg.vector_norm(found, dtype=torch.float64)
    summed, norm, zeros = torch.stack([total, length, count]).tolist()  # one transfer for all
    mean = min(max(summed / size, low / unit), high / unit)
    variance = norm * norm / size - mean * mean
    if variance < _SPREAD * mean * mean:
        variance = float(torch.linalg.vector_norm(found.double() - mean)) ** 2 / size
    return mean * unit, math.sqrt(variance) * unit, norm * unit, zeros
