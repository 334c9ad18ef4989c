"""The colours of classes, and their legend."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from seewhy.explainers.imaging.render import font_for

_LINE = 24
"""Height of a line of a legend, in pixels."""

_GAP = 8


def class_colours() -> NDArray[np.uint8]:
    """Return (256, 3) uint8: the colour of each class index by the colour map of Pascal VOC, which begins with black.

    The bits of an index go in turn to red, green and blue, the low ones to the high ones of the colour. Indices above
    255 begin anew.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1]  # (256, 8), the lowest first
    columns = [np.pad(bits[:, channel::3], ((0, 0), (0, 8 - bits[:, channel::3].shape[1]))) for channel in range(3)]
    return np.stack([np.packbits(column, axis=1)[:, 0] for column in columns], axis=1)


def coloured(classes: NDArray[np.unsignedinteger]) -> Image.Image:
    """Return class indices (H, W) in their colours, RGB."""
    picture = Image.fromarray(classes.astype(np.uint8, copy=False))
    picture.putpalette(class_colours().tobytes())
    return picture.convert("RGB")


def legend(names: Sequence[str], indices: Sequence[int], width: int, height: int) -> Image.Image:
    """Return the colours of classes with their names, RGB, line by line as far as they fit.

    Args:
        names: names of the classes.
        indices: indices of the classes.
        width: in pixels.
        height: maximum height, in pixels; at least one line is drawn.
    """
    places = list(_places(names, width))
    most = max(1, height // _LINE)
    lines = min(most, places[-1][1] + 1) if places else 1
    sheet = Image.new("RGB", (width, lines * _LINE), "white")
    pen = ImageDraw.Draw(sheet)
    side = _LINE - 2 * _GAP + 2
    colours = class_colours()
    for name, index, (left, line) in zip(names, indices, places, strict=True):
        if line < lines:
            top = line * _LINE + (_LINE - side) // 2
            pen.rectangle((left, top, left + side, top + side), tuple(colours[index % 256].tolist()), "black")
            middle = line * _LINE + _LINE / 2
            pen.text((left + side + _GAP // 2, middle), name, "black", font_for(name, _LINE * 0.55), "lm")
    return sheet


def _places(names: Sequence[str], width: int) -> Iterator[tuple[int, int]]:
    """Yield the left edge and the line of each entry."""
    left, line = _GAP // 2, 0
    for name in names:
        size = _LINE + int(font_for(name, _LINE * 0.55).getlength(name))
        if left > _GAP // 2 and left + size > width:
            left, line = _GAP // 2, line + 1
        yield left, line
        left += size + _GAP
