"""What a tensor is like, in ten numbers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SQUARABLE = (1e-12, 1e12)
"""Between these the square of a float32, and a sum of many, neither underflows nor overflows."""


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
    """Compute the statistics of a tensor of any shape and dtype, in float32 where its values allow, or in float64."""
    found = tensor.detach().reshape(-1)
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
        largest = max(abs(low), abs(high))
        if largest and not _SQUARABLE[0] < largest < _SQUARABLE[1]:
            found = found.double()
        # In float32 the norm, unlike the mean, loses digits where values are many.
        norm_of = torch.linalg.vector_norm(found, dtype=torch.float64)
        parts = [*torch.std_mean(found, correction=0), norm_of, (found == 0).sum()]
        std, mean, norm, zeros = torch.stack([part.double() for part in parts]).tolist()  # one transfer for all
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
