"""The agreement of two maps of one picture: the rank correlation of their values."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from seewhy.explainers.correlations import rank_correlations


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
