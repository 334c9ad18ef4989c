"""The widget of notebooks: maps over their picture, for Jupyter, VS Code, Colab and marimo, by anywidget."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import anywidget
import traitlets

from seewhy.explainers.results.widget_state import PictureMap, WidgetTraits, must_be_usable, palettes, state_of

_FOLDER = Path(__file__).parent


class MapWidget(anywidget.AnyWidget):
    """Maps of one picture, side by side, whose values a pointer or the arrow keys read. Traits can be set and observed.

    Attributes:
        alpha: strength of the overlay, 0 to 1.
        view: ``overlay``; ``clear``, one whose low values are clear; ``contour`` and ``mask``: the strongest part.
        strongest: percent of the map that a contour or a mask shows, 1 to 99.
        colormap: a name of `SEQUENTIAL` or `DIVERGING`; None for that of each map.
        pixel: the pixel under the pointer: ``x`` and ``y`` in pixels of the upload, ``map``, the map's index, and its
            ``value`` there, that of `raw_heatmap`; None if the pointer is elsewhere. The browser sets it.
    """

    _esm = _FOLDER / "widget.js"
    _css = _FOLDER / "widget.css"

    alpha = traitlets.Float(0.5).tag(sync=True)
    view = traitlets.Unicode("overlay").tag(sync=True)
    strongest = traitlets.Int(25).tag(sync=True)
    colormap = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    pixel = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)

    _picture = traitlets.Bytes().tag(sync=True)
    """PNG."""
    _values = traitlets.Bytes().tag(sync=True)
    """The maps one after the other, row after row, float32 in little-endian order."""
    _palettes = traitlets.Bytes().tag(sync=True)
    """The 256 colours of each map, 3 bytes each."""
    _maps: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    """Further properties of each map."""

    def __init__(self, maps: Sequence[PictureMap], **traits: Unpack[WidgetTraits]) -> None:
        """Show maps.

        Args:
            maps: maps of one picture, at least one.
            traits: initial values of `alpha`, `view`, `strongest` and `colormap`.

        Raises:
            OptionError: an unknown name, or a value of the wrong type or out of bounds; or maps of several pictures.
        """
        for name, value in traits.items():
            must_be_usable(name, value)
        self._signed = [drawing.signed for drawing in maps]
        super().__init__(**state_of(maps), **traits)

    def __repr__(self) -> str:
        titles = "; ".join(drawing["title"] for drawing in self._maps)
        return f"MapWidget({titles}; {self.view}, alpha {self.alpha:g})"

    @traitlets.validate("alpha", "view", "strongest", "colormap")
    def _check(self, proposal: Any) -> Any:
        must_be_usable(proposal["trait"].name, proposal["value"])
        return proposal["value"]

    @traitlets.default("_palettes")
    def _colours(self) -> bytes:
        return palettes(self._signed, self.colormap)

    @traitlets.observe("colormap")
    def _colour(self, change: Any) -> None:
        self._palettes = self._colours()
