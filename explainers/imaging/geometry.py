"""Geometry: the part of the uploaded picture that is the model's input, and how maps are laid back onto it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of a picture."""


@dataclass(frozen=True)
class Geometry:
    """The part of a picture that the model saw.

    Attributes:
        width, height: size of the upright picture, in pixels.
        box: left, top, right, bottom of the model's input, in pixels of the picture; may be fractional, and reaches
            beyond the picture where the preprocessing padded it.
        reach: left, top, right, bottom of a map's cells, as fractions of the box: from edge to edge unless the map's
            layer leaves out the picture's border. Beyond them the nearest cell counts.
    """

    width: int
    height: int
    box: Box
    reach: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

    def scaled(self, width: int, height: int) -> "Geometry":
        """Return the same geometry for the picture resized to `width` by `height` pixels."""
        across, down = width / self.width, height / self.height
        left, top, right, bottom = self.box
        return replace(self, width=width, height=height, box=(left * across, top * down, right * across, bottom * down))

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of the pixels whose centres lie in the box, at least one of each."""
        left, top, right, bottom = self.box
        return _centres(top, bottom, self.height), _centres(left, right, self.width)

    @property
    def pixels(self) -> int:
        """The number of pixels in the window."""
        rows, columns = self.window
        pixels: int = (rows.stop - rows.start) * (columns.stop - columns.start)
        return pixels

    def lay_back(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Resample a map of the model's input bilinearly onto the picture.

        Args:
            values: (h, w) float32, a map of any resolution, whose cells lie in the box as `reach` says.

        Returns:
            (height, width) float32; zero outside the box.
        """
        heatmap = np.zeros((self.height, self.width), dtype=np.float32)
        heatmap[self.window] = self.lay(values)
        return heatmap

    def lay(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the part of `lay_back` in `window`, read-only."""
        values = self.covering(values)
        rows, columns = self.window
        left, top, right, bottom = self.box
        map_height, map_width = values.shape
        per_column, per_row = map_width / (right - left), map_height / (bottom - top)
        # One replicated cell on each side, so that the outer half of an edge cell is interpolated like the rest.
        padded = Image.fromarray(np.pad(values, 1, mode="edge"))
        region = (
            1 + (columns.start - left) * per_column,
            1 + (rows.start - top) * per_row,
            1 + (columns.stop - left) * per_column,
            1 + (rows.stop - top) * per_row,
        )
        limits = (map_width + 2, map_height + 2) * 2
        region = tuple(min(max(edge, 0.0), limit) for edge, limit in zip(region, limits, strict=True))
        size = (columns.stop - columns.start, rows.stop - rows.start)
        return np.asarray(padded.resize(size, Image.Resampling.BILINEAR, box=region))

    def labelled(self, values: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
        """Return the part in `window` of a map of class indices, of any resolution: the cell in which each pixel lies.

        Args:
            values: (h, w), from edge to edge of the box.
        """
        left, top, right, bottom = self.box
        rows, columns = self.window
        height, width = values.shape
        down, across = _cells(rows, top, bottom, height), _cells(columns, left, right, width)
        cells: NDArray[np.unsignedinteger[Any]] = values[np.ix_(down, across)]
        return cells

    def cell(self, row: int, column: int, size: tuple[int, int]) -> Box:
        """Return left, top, right, bottom of a map's cell in pixels of the picture, without what lies beyond it.

        Args:
            row, column: position of the cell.
            size: rows and columns of the map.
        """
        left, top, right, bottom = self.box
        start, head, stop, foot = self.reach
        across, down = (right - left) * (stop - start) / size[1], (bottom - top) * (foot - head) / size[0]
        left, top = left + (right - left) * start + column * across, top + (bottom - top) * head + row * down
        columns, rows = (left, left + across), (top, top + down)
        (left, right), (top, bottom) = (
            [min(max(edge, 0.0), float(length)) for edge in edges]
            for edges, length in ((columns, self.width), (rows, self.height))
        )
        return left, top, right, bottom

    def covering(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a map (h, w) that covers the box from edge to edge, resampled to finer cells if necessary."""
        left, top, right, bottom = self.reach
        return _stretched(_stretched(values, top, bottom).T, left, right).T


_FINER = 4
"""New cells for each old one, so that the second interpolation hardly blurs."""


def _stretched(values: NDArray[np.float32], start: float, stop: float) -> NDArray[np.float32]:
    """Resample rows that lie from `start` to `stop` to rows from 0 to 1; beyond the ends the nearest row counts."""
    if (start, stop) == (0.0, 1.0):
        return values
    count = len(values)
    more = max(count, round(_FINER * count / (stop - start)))
    places = ((np.arange(more) + 0.5) / more - start) / (stop - start) * count - 0.5
    lower = np.clip(np.floor(places).astype(int), 0, count - 1)
    upper = np.minimum(lower + 1, count - 1)
    share = np.clip(places - lower, 0.0, 1.0).astype(np.float32)[:, None]
    stretched: NDArray[np.float32] = values[lower] * (1 - share) + values[upper] * share
    return stretched


def _cells(pixels: slice, start: float, stop: float, count: int) -> NDArray[np.intp]:
    """Return the cell, of `count` from `start` to `stop`, that contains the centre of each pixel."""
    places = (np.arange(pixels.start, pixels.stop) + 0.5 - start) / (stop - start) * count
    return np.clip(places.astype(np.intp), 0, count - 1)


def _centres(start: float, stop: float, size: int) -> slice:
    first = min(max(int(np.ceil(start - 0.5)), 0), size - 1)
    last = min(max(int(np.ceil(stop - 0.5)), first + 1), size)
    return slice(first, last)
