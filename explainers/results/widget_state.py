"""The state that the widget of notebooks gives its front end, `widget.js`; without anywidget."""

import io
from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import WIDGET_VIEWS, WidgetView
from seewhy.explainers.imaging.geometry import Box, Geometry

_MAX_SIDE = 800
"""Longest side of the picture that the browser gets, in pixels."""

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "alpha": ((float, int), "a float"),
    "view": ((str,), "a string"),
    "strongest": ((int, np.integer), "an integer"),
    "colormap": ((str, type(None)), "a string or None"),
}
"""Types of the values of `WidgetTraits`, and their names in errors."""


class WidgetTraits(TypedDict, total=False):
    """The traits of `MapWidget` that users set; see there."""

    alpha: float
    view: WidgetView
    strongest: int
    colormap: str | None


class PictureMap(Protocol):
    """A map with its picture, as `MapDrawing` has them."""

    picture: Image.Image
    geometry: Geometry
    map: NDArray[np.float32]
    signed: bool
    proof: Any

    @property
    def raw_heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32, in upload coordinates and the map's own units."""

    @property
    def caption(self) -> str:
        """One line: the target and the method."""


def state_of(maps: Sequence[PictureMap]) -> dict[str, Any]:
    """Return the traits of `MapWidget` that hold the picture and its maps.

    Raises:
        OptionError: the maps are of several pictures.
    """
    first = maps[0].picture
    if any(drawing.picture is not first and drawing.picture != first for drawing in maps):
        raise OptionError("A widget shows maps of one picture; make a widget for each picture.", field="others")
    cells = [_cells(drawing) for drawing in maps]
    return {
        "_picture": _png(render.fit(first, _MAX_SIDE)),
        "_values": b"".join(values.astype("<f4").tobytes() for values, _ in cells),
        "_maps": [_description(drawing, values.shape, box) for drawing, (values, box) in zip(maps, cells, strict=True)],
    }


def palettes(signed: Sequence[bool], colormap: str | None) -> bytes:
    """Return the 256 colours of each map, 3 bytes each; without a colour map those of its default."""
    return b"".join(render.palette(colormap or render.default_colormap(is_signed)) for is_signed in signed)


def must_be_usable(name: str, value: Any) -> None:
    """Refuse an unknown trait, and a value of the wrong type, out of bounds or unknown.

    Raises:
        OptionError: the trait is unknown, or its value is not allowed; the message says what is.
    """
    if name not in _TYPES:
        raise OptionError(f"A widget has no {name!r}; it has {', '.join(_TYPES)}.", field=name)
    types, noun = _TYPES[name]
    if type(value) is bool or not issubclass(type(value), types):
        raise OptionError(f"{name} is {value!r}; it must be {noun}.", field=name)
    if name == "view" and value not in WIDGET_VIEWS:
        raise OptionError(f"There is no view {value!r}; choose from {', '.join(WIDGET_VIEWS)}.", field="view")
    if name == "strongest" and not 1 <= value <= 99:
        raise OptionError(f"strongest is {value}; it must lie between 1 and 99 (percent).", field="strongest")
    if name in ("alpha", "colormap"):
        render.Style(**{name: value})


def _cells(drawing: PictureMap) -> tuple[NDArray[np.float32], Box]:
    """Return a map's values, no finer than the upload's pixels, and the box of these pixels that they cover.

    The browser interpolates between the values; it would have to average finer ones, as `Geometry.lay` does.
    """
    values, box = drawing.geometry.covering(drawing.map), drawing.geometry.box
    left, top, right, bottom = box
    if values.shape[0] <= bottom - top and values.shape[1] <= right - left:
        return values, box
    rows, columns = drawing.geometry.window
    return drawing.geometry.lay(drawing.map), (columns.start, rows.start, columns.stop, rows.stop)


def _description(drawing: PictureMap, size: tuple[int, ...], box: Box) -> dict[str, Any]:
    low, high = render.value_range(drawing.raw_heatmap, drawing.signed)
    return {
        "title": drawing.caption,
        "proof": drawing.proof.sentence if drawing.proof else None,
        "size": size,
        "shape": (drawing.geometry.height, drawing.geometry.width),
        "box": box,
        "low": low,
        "high": high,
    }


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()
