"""Numbered boxes over a picture, each number in its own colour."""

from collections import Counter
from collections.abc import Sequence

from PIL import Image, ImageDraw

from seewhy.explainers.imaging.geometry import Box
from seewhy.explainers.imaging.render import font_for

COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#ffffff")
"""The palette of Okabe and Ito, for colour-blind eyes too, and bright enough for black numbers."""

_LINE = 2
_TAG = 13
"""Height of a number, in pixels."""


def draw_boxes(picture: Image.Image, boxes: Sequence[Box]) -> None:
    """Draw boxes onto a picture, numbered from 1; boxes of the same place lie inside each other.

    Args:
        picture: RGB.
        boxes: in its pixels.
    """
    pen = ImageDraw.Draw(picture)
    places: Counter[Box] = Counter()
    tags = []
    for number, box in enumerate(boxes, start=1):
        depth = places[box]
        places[box] += 1
        colour = COLOURS[(number - 1) % len(COLOURS)]
        left, top, right, bottom = _inner(box, depth * (_LINE + 1))
        pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline="black", width=_LINE + 2)
        pen.rectangle((left, top, right, bottom), outline=colour, width=_LINE)
        tags.append((number, colour, box, depth))
    for number, colour, box, depth in tags:  # above all boxes
        _draw_tag(pen, picture.size, number, colour, box, depth)


def tag_width(text: str) -> int:
    """Return the width of a tag, in pixels."""
    return round(font_for(text, _TAG).getlength(text)) + 6


def draw_tag(pen: ImageDraw.ImageDraw, left: int, top: int, text: str, colour: str) -> None:
    """Draw a number on its colour, with the upper left corner at a place."""
    right, bottom = left + tag_width(text), top + _TAG + 3
    pen.rectangle((left, top, right, bottom), fill=colour, outline="black")
    pen.text(((left + right) / 2 + 0.5, (top + bottom) / 2 + 0.5), text, "black", font_for(text, _TAG), "mm")


def _draw_tag(pen: ImageDraw.ImageDraw, size: tuple[int, int], number: int, colour: str, box: Box, depth: int) -> None:
    """Draw the number of a box at its upper left corner, beside and below those of others in the same place."""
    text = str(number)
    across, down = tag_width(text) + 1, _TAG + 4
    row, column = divmod(depth, max(1, int((box[2] - box[0]) / across)))
    left, top = round(box[0]) + column * across, round(box[1]) - _TAG // 2 + row * down
    draw_tag(pen, max(0, min(left, size[0] - across)), max(0, min(top, size[1] - down)), text, colour)


def _inner(box: Box, margin: int) -> Box:
    """Return a box with a margin inside it, of one pixel at least."""
    left, top, right, bottom = box
    across, down = (min(margin, max(0, (length - 1) / 2)) for length in (right - left, bottom - top))
    return left + across, top + down, max(left + across, right - across - 1), max(top + down, bottom - down - 1)
