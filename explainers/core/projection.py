"""From contributions of channels to one map: the sum over channels, or their first principal component."""

from typing import Literal

import torch
from torch import Tensor

from seewhy.explainers.errors import NonFiniteError

Sign = Literal["positive", "signed", "absolute"]
"""The part of a signed attribution to keep: max(x, 0), x, or |x|."""

Smooth = Literal["none", "eigen", "tta"]


def keep_sign(values: Tensor, sign: Sign) -> Tensor:
    """Return max(x, 0), x or |x|, elementwise."""
    if sign == "positive":
        return values.clamp_min(0)
    return values.abs() if sign == "absolute" else values


def principal_component(values: Tensor) -> Tensor:
    """Return the projection (N, h, w) of each position's channels onto their first principal component.

    The component is the first right singular vector of the uncentred positions-by-channels matrix. Its sign makes the
    projection agree with the sum over channels.

    Args:
        values: (N, C, h, w).

    Raises:
        NonFiniteError: they hold NaN or infinity.
    """
    projection, _ = first_component(values)
    sums = values.double().sum(dim=1)
    sign = torch.where((projection * sums).sum(dim=(1, 2), keepdim=True) < 0, -1.0, 1.0)
    return (projection * sign).to(values.dtype)


def first_component(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projection (N, h, w) float64 of `principal_component`, of any sign, and its certainty.

    Args:
        values: (N, C, h, w).

    Returns:
        The projection; and the gap (N,) between the two largest squared singular values, as a share of the largest.

    Raises:
        NonFiniteError: they hold NaN or infinity.
    """
    if not bool(torch.isfinite(values).all()):  # read at once: eigh waits for the device anyway
        raise NonFiniteError("The contributions contain NaN or infinity; use a float32 model, or another layer.")
    count, channels, rows, columns = values.shape
    matrix = values.double().reshape(count, channels, rows * columns)
    # Both Gram matrices give the same projection; the smaller one costs less.
    if channels <= rows * columns:
        strengths, vectors = torch.linalg.eigh(matrix @ matrix.mT)
        projection = (vectors[:, :, -1:].mT @ matrix)[:, 0]
    else:
        strengths, vectors = torch.linalg.eigh(matrix.mT @ matrix)
        projection = vectors[:, :, -1] * strengths[:, -1:].clamp_min(0).sqrt()
    return projection.reshape(count, rows, columns), gap_of(strengths)


def gap_of(strengths: Tensor) -> Tensor:
    """Return the gap (...) between the two largest of ascending eigenvalues (..., K), as a share of the largest."""
    if strengths.shape[-1] < 2:
        return torch.ones_like(strengths[..., 0])
    largest = strengths[..., -1]
    return torch.where(largest > 0, (largest - strengths[..., -2]) / torch.where(largest > 0, largest, 1.0), 1.0)
