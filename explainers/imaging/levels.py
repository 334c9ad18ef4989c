"""Levels: a normalised input as a picture, and whether numbers can be a normalised input."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def ends(mean: Sequence[float], std: Sequence[float]) -> tuple[float, float]:
    """Return the extremes of black and white after normalisation."""
    pairs = list(zip(mean, std, strict=True))
    return min(-middle / spread for middle, spread in pairs), max((1 - middle) / spread for middle, spread in pairs)


def levels_of(array: NDArray[np.float32], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Return normalised numbers (C, H, W) as levels, 0 for black and 1 for white."""
    middle, spread = (np.array(numbers, dtype=np.float32)[:, None, None] for numbers in (mean, std))
    return array * spread + middle


def are_unit_levels(array: NDArray[np.float32]) -> bool:
    """Whether numbers (C, H, W) look like levels: from 0 to 1, and not all of one colour, as in a blank picture."""
    varies = bool((array.min(axis=(1, 2)) < array.max(axis=(1, 2))).any())
    return varies and bool(array.min() >= 0 and array.max() <= 1)


def picture_of(levels: NDArray[np.float32]) -> Image.Image:
    """Return levels (C, H, W) as a picture, RGB; other than three channels as the grey of their mean."""
    colours = levels if len(levels) == 3 else levels.mean(axis=0, keepdims=True).repeat(3, axis=0)
    bytes_ = (colours.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(bytes_, 0, -1)))
