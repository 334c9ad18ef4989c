"""Statistics of a tensor, robust against NaN, infinity, overflow and cancellation."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SQUARABLE = (1e-140, 1e140)
"""Between these magnitudes the square of a float64, and a sum of many, neither underflows nor overflows."""
_SPREAD = 1e-4
"""Variance, as a share of the squared mean, below which the difference of two sums loses too many digits."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor. NaN and infinity are counted, and left out of all other numbers.

    Attributes:
        shape, dtype: shape and dtype of the tensor.
        mean, std, min, max: those of the finite values, or of the magnitudes of complex ones; None without any. The
            standard deviation is the population's.
        norm: Euclidean norm of the finite values.
        zeros: share of exact zeros, in [0, 1].
        nan, inf: number of values that are NaN, and plus or minus infinity.
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
    values = tensor.detach()
    values = values.abs() if values.is_complex() else values
    if not values.is_floating_point():
        values = values.double()
    elif values.itemsize < 4:
        values = values.float()
    shape, dtype, nan, inf = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), 0, 0
    low, high = torch.stack(torch.aminmax(values)).tolist() if values.numel() else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        nan, inf = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
        values = values[torch.isfinite(values)]
        low, high = torch.stack(torch.aminmax(values)).tolist() if values.numel() else (0.0, 0.0)
    if not values.numel():
        return Statistics(shape, dtype, None, None, None, None, 0.0, 0.0, nan, inf)
    mean, std, norm, zeros = _moments(values, low, high)
    return Statistics(shape, dtype, mean, std, low, high, norm, zeros / tensor.numel(), nan, inf)


def _moments(values: Tensor, low: float, high: float) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, norm and the number of zeros of finite values from `low` to `high`."""
    # Counting a boolean tensor is several times faster than counting half-precision numbers.
    count = torch.count_nonzero(values == 0).double()
    size, unit, largest = values.numel(), 1.0, max(abs(low), abs(high))
    if values.dtype == torch.float64 and largest and not _SQUARABLE[0] < largest < _SQUARABLE[1]:
        unit = largest
        values = values / unit
    total = values.sum(dtype=torch.float64)
    length = torch.linalg.vector_norm(values, dtype=torch.float64)
    summed, norm, zeros = torch.stack([total, length, count]).tolist()  # one transfer for all
    mean = min(max(summed / size, low / unit), high / unit)
    variance = norm * norm / size - mean * mean
    # Small beside the mean, the variance needs a second look at the values.
    if variance < _SPREAD * mean * mean:
        variance = float(torch.linalg.vector_norm(values.double() - mean)) ** 2 / size
    return mean * unit, math.sqrt(variance) * unit, norm * unit, zeros
