"""How much two maps of one picture agree: the rank correlation of their values."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional


def rank_correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> float | None:
    """Return Spearman's rank correlation of two maps of one picture, in [-1, 1].

    It asks whether both put the same places first, whatever their units; equal values share their mean rank.

    Args:
        first, second: (h, w) float32, over the same part of the picture; the coarser one is resized to the grid of
            the finer one, bilinearly.

    Returns:
        The correlation; None where a map is constant, and so ranks nothing.
    """
    if any(one.min() == one.max() for one in (first, second)):  # resizing would round it to nearly constant
        return None
    finest = max(first.shape, second.shape, key=lambda shape: shape[0] * shape[1])
    ranks = [_ranks(_resized(one, finest)) for one in (first, second)]
    if any(one.std() == 0 for one in ranks):
        return None
    centred = [one - one.mean() for one in ranks]
    product = float((centred[0] * centred[1]).mean() / (centred[0].std() * centred[1].std()))
    return min(1.0, max(-1.0, product))


def _resized(values: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    if values.shape == shape:
        return values
    resized = functional.interpolate(
        torch.from_numpy(np.ascontiguousarray(values))[None, None], size=shape, mode="bilinear", align_corners=False
    )
    found: NDArray[np.float32] = resized[0, 0].numpy()
    return found


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[place.ravel()]
    return mean
