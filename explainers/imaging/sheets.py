"""Sheets: several maps in one drawing, each over the picture, ranked and labelled."""

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import Style, draw, ends, fit, normalize, panel, panel_columns

_TILE = 320 * 240
"""Number of pixels of a tile, whatever its proportions; fewer if the sheet's longest side would exceed its limit."""
_COLUMN = 144
"""Least width of a column, for its captions."""
_BAR = 20
"""Height of a line of text."""


def sheet(
    maps: Sequence[NDArray[np.float32]],
    captions: Sequence[str],
    title: str,
    picture: Image.Image,
    geometry: Geometry,
    style: Style,
) -> Image.Image:
    """Draw maps, each with its caption, over the part of the picture that the model saw.

    Args:
        maps: each (h, w) float32; the first one is drawn first.
        captions: one for each map.
        title: title of the sheet.
        picture: the upright upload, or a smaller copy of it.
        geometry: geometry of the upload.
        style: its `max_side` is that of the sheet.
    """
    size, columns, width = _layout(len(maps), picture.size, style)
    small = picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    scaled = geometry.scaled(*size)
    tiles = []
    for values in maps:
        signed = bool((values < 0).any())
        heatmap = normalize(scaled.lay(values), signed, ends(values, style.scale))
        tiles.append(draw(small, heatmap, scaled, signed, style))
    reference = "99th percentile" if style.scale == "robust" else "maximum"
    scale_note = "all maps to one scale" if isinstance(style.scale, tuple) else f"each map to its own {reference}"
    return fit(panel(tiles, captions, columns, width=width, bar=_BAR, title=(title, scale_note)), style.max_side)


def _layout(count: int, size: tuple[int, int], style: Style) -> tuple[tuple[int, int], int, int]:
    """Return the picture's size in a tile, the number of columns that makes tiles largest, and a column's width."""
    width, height = size
    across = width * style.across
    limit = style.max_side
    column = _COLUMN if limit is None else min(_COLUMN, limit // panel_columns(count))
    options = []
    for columns in range(1, count + 1):
        rows = ceil(count / columns)
        scale = sqrt(_TILE / (width * height))
        if limit is not None:
            scale = min(scale, limit / columns / across, ((limit - 2 * _BAR) / rows - _BAR) / height)
        longest = max(columns * max(scale * across, column), rows * (scale * height + _BAR))
        if columns == 1 or limit is None or columns * column <= limit:
            options.append((-scale, longest, columns))
    scale, _, columns = min(options)
    return (max(1, int(-scale * width)), max(1, int(-scale * height))), columns, column
