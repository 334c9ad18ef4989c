"""Three statistics of a heatmap, whose distribution shows drift of pictures or models."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.imaging.geometry import Geometry

CELLS = 16
"""Finer maps are averaged over this many cells per side, so that maps of all methods are comparable and cheap."""


class Spread(NamedTuple):
    """Spread and position of a map on its picture.

    Attributes:
        entropy: entropy of the map's magnitudes as a distribution, relative to the uniform one: 0 for a point, 1 for
            a uniform map.
        x, y: centre of mass of the magnitudes, as shares of the picture's width and height.
    """

    entropy: float
    x: float
    y: float


def spread(values: NDArray[np.float32], geometry: Geometry) -> Spread | None:
    """Return the spread of a map (h, w) on its picture; None if it is zero everywhere."""
    weights = np.abs(values)
    if max(weights.shape) > CELLS:
        size = min(weights.shape[1], CELLS), min(weights.shape[0], CELLS)
        weights = np.asarray(Image.fromarray(weights).resize(size, Image.Resampling.BOX))
    total = float(weights.sum(dtype=np.float64))
    if not total > 0:
        return None
    shares = weights.astype(np.float64) / total
    positive = shares[shares > 0]
    entropy = -float(positive @ np.log(positive)) / math.log(shares.size) if shares.size > 1 else 0.0
    left, top, right, bottom = geometry.box
    across, down = _centre(shares.sum(axis=0)), _centre(shares.sum(axis=1))
    x = (left + across * (right - left)) / geometry.width
    y = (top + down * (bottom - top)) / geometry.height
    return Spread(min(max(entropy, 0.0), 1.0), min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))


def _centre(shares: NDArray[np.float64]) -> float:
    return float(shares @ (np.arange(len(shares)) + 0.5)) / len(shares)
