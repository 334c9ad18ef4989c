"""Where the model's input lies in the uploaded picture, so that a map can be laid back onto it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True)
class Geometry:
    """The part of a picture that the model saw.

    Attributes:
        width, height: of the upright picture, in pixels.
        box: left, top, right, bottom of what the model saw, in the picture's pixels; fractions count,
            and a box that reaches beyond the picture is one that the preprocessing padded.
    """

    width: int
    height: int
    box: tuple[float, float, float, float]

    def scaled(self, width: int, height: int) -> "Geometry":
        """Return the same geometry for the picture resized to `width` by `height` pixels."""
        across, down = width / self.width, height / self.height
        left, top, right, bottom = self.box
        return Geometry(width, height, (left * across, top * down, right * across, bottom * down))

    @property
    def seen(self) -> tuple[slice, slice]:
        """Rows and columns of the pixels whose centres the model saw, at least one of each."""
        left, top, right, bottom = self.box
        return _centres(top, bottom, self.height), _centres(left, right, self.width)

    def lay_back(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Resample a map of the model's input bilinearly onto the picture.

        Args:
            values: (h, w) float32, a map that covers `box`, of any resolution.

        Returns:
            (height, width) float32; zero where the model saw nothing.
        """
        laid = np.zeros((self.height, self.width), dtype=np.float32)
        laid[self.seen] = self.lay(values)
        return laid

    def lay(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what `lay_back` has in the rows and columns that the model saw, read-only and without the zeros."""
        rows, columns = self.seen
        left, top, right, bottom = self.box
        map_height, map_width = values.shape
        per_column, per_row = map_width / (right - left), map_height / (bottom - top)
        # One replicated cell on each side lets the border half of an edge cell be interpolated like the rest.
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


def _centres(start: float, stop: float, size: int) -> slice:
    first = min(max(int(np.ceil(start - 0.5)), 0), size - 1)
    last = min(max(int(np.ceil(stop - 0.5)), first + 1), size)
    return slice(first, last)
