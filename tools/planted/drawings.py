"""Drawn pictures: a large object that says nothing, and a small marker whose colour is the class."""

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

SIDE = 64
"""Height and width of a picture, in pixels."""

MARKER = 8
"""Height and width of a marker, in pixels."""

COLOURS = torch.tensor([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
"""(K, 3), the colours of the classes: red, green, blue, yellow."""

CLASSES = len(COLOURS)

UNMARKED = CLASSES
"""The class of a picture without a marker. Networks learn it too: otherwise they would choose another class if they see
no marker, and nothing in the picture would speak for that class."""

KINDS = 3
"""Kinds of objects: striped across, striped down, chequered."""

Place = Literal["inside", "outside"]
"""The place of the marker: in the middle of the object, or outside the box around it."""

_CANDIDATES = 64
"""Number of places that are tried for a marker outside; the first free one is taken."""


@dataclass(frozen=True, eq=False)
class Drawings:
    """Pictures, and the facts about them.

    Attributes:
        images: (N, 3, SIDE, SIDE) float32, about -1 to 1.
        classes: (N,) int64, of the markers; `UNMARKED` without one.
        kinds: (N,) int64, of the objects.
        objects: (N, SIDE, SIDE) bool, the pixels of the objects, those under a marker included.
        boxes: (N, 4) float32: left, top, right and bottom of the objects, in pixels.
        cues: (N, 4) int64: left, top, right and bottom of the markers, in pixels; without a marker, a possible place of
            one.
    """

    images: Tensor
    classes: Tensor
    kinds: Tensor
    objects: Tensor
    boxes: Tensor
    cues: Tensor

    @property
    def pictures(self) -> Tensor:
        """(N, 3, SIDE, SIDE) float32 in [0, 1]: the images for networks that normalise them."""
        return ((self.images + 1) / 2).clamp(0, 1)

    def part(self, rows: Tensor) -> "Drawings":
        """Return some of the drawings, by a mask (N,) or by indices."""
        return Drawings(*(getattr(self, field.name)[rows] for field in fields(self)))

    def hits(self, maps: Tensor, margin: int = 8) -> Tensor:
        """Return whether each map (N, SIDE, SIDE) is largest on the marker, or at most `margin` pixels beside it."""
        places = maps.flatten(1).argmax(dim=1)
        x, y = places % SIDE, places // SIDE
        left, top, right, bottom = self.cues.unbind(1)
        across = (x >= left - margin) & (x < right + margin)
        return across & (y >= top - margin) & (y < bottom + margin)


def draw(count: int, place: Place, generator: torch.Generator, marked: float = 1.0) -> Drawings:
    """Draw pictures.

    Args:
        count: number of pictures.
        place: place of the markers.
        generator: generator of all random numbers.
        marked: share of the pictures that have a marker.
    """
    radius = _radii(count, generator)
    x, y = (radius + 2 + (SIDE - 2 * radius - 4) * torch.rand(count, generator=generator) for _ in range(2))
    return _painted(_ground(count, generator), x, y, radius, place, generator, marked)


def draw_pairs(count: int, generator: torch.Generator, marked: float = 1.0) -> tuple[Drawings, Drawings]:
    """Draw pictures of two objects, side by side or one above the other, each with a marker inside; see `draw`.

    Returns:
        The same pictures twice, once with the facts about each object.
    """
    beside = torch.rand(count, generator=generator) < 0.5
    images = _ground(count, generator)
    drawn: list[Drawings] = []
    for middle in (SIDE / 4, 3 * SIDE / 4):
        radius = _radii(count, generator)
        free = radius + 2 + (SIDE - 2 * radius - 4) * torch.rand(count, generator=generator)
        x, y = torch.where(beside, middle, free), torch.where(beside, free, middle)
        drawn.append(_painted(images, x, y, radius, "inside", generator, marked))
        images = drawn[-1].images
    first, second = drawn
    return replace(first, images=images), second


def _radii(count: int, generator: torch.Generator) -> Tensor:
    return 11 + 3 * torch.rand(count, generator=generator)


def _ground(count: int, generator: torch.Generator) -> Tensor:
    return 0.15 * torch.randn(count, 3, SIDE, SIDE, generator=generator) - 0.4


def _painted(
    images: Tensor, x: Tensor, y: Tensor, radius: Tensor, place: Place, generator: torch.Generator, marked: float
) -> Drawings:
    """Return pictures (N, 3, SIDE, SIDE) with an object each, whose middle and size are given, and its marker."""
    count = len(images)
    kinds = torch.randint(KINDS, (count,), generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    objects = _shapes(torch.randint(3, (count,), generator=generator), x, y, radius)
    images = torch.where(objects[:, None], images + 0.4 + _patterns()[kinds][:, None], images)
    boxes = torch.stack([x - radius, y - radius, x + radius, y + radius], dim=1)
    left, top = _inside(x, y, generator) if place == "inside" else _outside(boxes, generator)
    cues = torch.stack([left, top, left + MARKER, top + MARKER], dim=1)
    has_marker = torch.rand(count, generator=generator) < marked
    visible = _within(cues) & has_marker[:, None, None]
    images = torch.where(visible[:, None], 0.6 * COLOURS[classes][:, :, None, None], images)
    classes = torch.where(has_marker, classes, UNMARKED)
    return Drawings(images, classes, kinds, objects, boxes, cues)


def _patterns() -> Tensor:
    """Return the patterns (KINDS, SIDE, SIDE) of objects, stripes and squares of four pixels, -1 or 1."""
    across = (torch.arange(SIDE)[:, None] // 4 % 2 * 2.0 - 1).expand(SIDE, SIDE)
    return torch.stack([across, across.T, across * across.T])


def _shapes(forms: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Return the pixels (N, SIDE, SIDE) of objects: circles, squares and triangles."""
    rows = torch.arange(SIDE)[:, None] + 0.5
    down, across = rows - y[:, None, None], rows.T - x[:, None, None]
    size = radius[:, None, None]
    circles = down**2 + across**2 < size**2
    squares = (down.abs() < 0.85 * size) & (across.abs() < 0.85 * size)
    triangles = (down < size) & (2 * across.abs() < down + size)
    return torch.stack([circles, squares, triangles])[forms, torch.arange(len(forms))]


def _inside(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return left and top of markers near the middle of objects."""
    left, top = (middle - MARKER / 2 + torch.rand(len(middle), generator=generator) * 4 - 2 for middle in (x, y))
    return left.long(), top.long()


def _outside(boxes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return left and top of markers that are a few pixels away from boxes."""
    places = torch.randint(SIDE - MARKER + 1, (2, _CANDIDATES, len(boxes)), generator=generator)
    gap = MARKER // 2
    left, top, right, bottom = boxes.T
    beside = (places[0] + MARKER + gap < left) | (places[0] > right + gap)
    free = beside | (places[1] + MARKER + gap < top) | (places[1] > bottom + gap)
    chosen = free.long().argmax(dim=0)
    x, y = places[:, chosen, torch.arange(len(boxes))]
    return x, y


def _within(boxes: Tensor) -> Tensor:
    """Return the pixels (N, SIDE, SIDE) of boxes."""
    rows = torch.arange(SIDE)[:, None]
    columns = rows.T
    left, top, right, bottom = boxes[:, :, None, None].unbind(1)
    return (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
