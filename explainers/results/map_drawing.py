"""Drawings of a map over its picture, without PyTorch: clients of the service have no model."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from cmap import Colormap
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import Scale
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.display import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from seewhy.explainers.core.task import Prediction
    from seewhy.explainers.results.widget import MapWidget
    from seewhy.explainers.results.widget_state import WidgetTraits

_LINE = 24
"""Height of a caption and of a colour bar, in pixels."""


class MapDrawing(Drawing):
    """Base of a map with its picture and its target; attributes as those of `Explanation`."""

    picture: Image.Image
    geometry: Geometry
    map: NDArray[np.float32]
    signed: bool
    target: "Prediction"
    predictions: "Sequence[Prediction]"
    method: str
    layers: tuple[str, ...]
    against: "Prediction | None"
    diagnostics: Sequence[Any]
    proof: Any

    @property
    def raw_heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32: the map in upload coordinates and its own units; zero outside the model's input."""
        return self.geometry.lay_back(self.map)

    @cached_property
    def heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32 in upload coordinates, divided by its maximum: [0, 1], or [-1, 1] when signed."""
        return render.normalize(self.raw_heatmap, self.signed)

    def draw(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in a style, RGB."""
        return self.draw_map(style)

    def draw_map(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in a style, RGB, whether or not there are regions."""
        return draw_map(self.picture, self.geometry, self.map, self.signed, style)

    @property
    def drawn_by(self) -> str:
        """Name of the method that drew the map: Grad-CAM in place of votes that cannot be counted."""
        return "gradcam" if any(note.code == "votes-unavailable" for note in self.diagnostics) else self.method

    @property
    def method_text(self) -> str:
        """The method, for people: ``gradcam in place of votes``."""
        return self.method if self.drawn_by == self.method else f"{self.drawn_by} in place of {self.method}"

    @property
    def caption(self) -> str:
        """One line: the target, its probability or value, its contrast, and the method."""
        against = f" against {self.against.label}" if self.against else ""
        return f"{self.target.label} {self.target.text}{against} by {self.method_text}"

    def plot(
        self,
        ax: "Axes | None" = None,
        colorbar: bool = True,
        *,
        title: str | None = None,
        view: Literal["overlay", "heatmap"] = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = 2048,
    ) -> "Axes":
        """Draw the heatmap with matplotlib, in pixels of the upload.

        Args:
            ax: where to draw, without importing pyplot; None for a new figure of pyplot.
            colorbar: whether to draw a colour bar, in the map's units, beside it.
            title: title of the axes; None for `caption`.
            view: the heatmap over the picture, or alone.
            colormap, alpha, scale, max_side: see `render.Style`.

        Returns:
            The axes.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        style = render.Style(view, colormap, alpha, scale, max_side)
        if ax is None:
            from matplotlib import pyplot  # matplotlib takes long to import

            ax = pyplot.subplots()[1]
        if not hasattr(ax, "imshow"):
            raise OptionError(f"ax is a {type(ax).__name__}; give one Axes, such as axes[0].", "ax")
        width, height = self.geometry.width, self.geometry.height
        ax.imshow(self.draw_map(style), extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        ax.set_title(self.caption if title is None else title)
        ax.set_axis_off()
        if colorbar:
            from matplotlib.cm import ScalarMappable
            from matplotlib.colors import Normalize

            name = style.colormap or render.default_colormap(self.signed)
            colours = ScalarMappable(Normalize(*_ends(self, style)), Colormap(name).to_mpl())
            against = f" rather than {self.against.label}" if self.against else ""
            ax.figure.colorbar(colours, ax=ax, label=f"evidence for {self.target.label}{against}")
        return ax

    def widget(
        self,
        *others: "MapDrawing",
        **traits: "Unpack[WidgetTraits]",
    ) -> "MapWidget":
        """Return a widget for notebooks, in which a pointer reads the map's values; it needs the extra `notebook`.

        Args:
            others: further maps of the same picture, shown beside this one; one pointer reads all.
            traits: initial values of the widget's `alpha`, `view`, `strongest` and `colormap`, see `MapWidget`.

        Raises:
            OptionError: an unknown name, or a value of the wrong type or out of bounds; or maps of several pictures.
            ImportError: anywidget is not installed.
        """
        try:
            from seewhy.explainers.results.widget import MapWidget  # an extra
        except ModuleNotFoundError as error:
            raise ImportError(f'widget needs the package {error.name}: pip install "seewhy[notebook]"') from error
        return MapWidget([self, *others], **traits)

    def _preview(self) -> Image.Image:
        """Return the drawing under its caption and above the colour bar."""
        style = render.Style(max_side=800)
        drawing = self.draw(style)
        bar = _colour_bar(self, style, drawing.width)
        whole = Image.new("RGB", (drawing.width, drawing.height + _LINE), "white")
        whole.paste(drawing, (0, 0))
        whole.paste(bar, (0, drawing.height))
        return render.panel([whole], [self.caption], bar=_LINE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.caption}, {self.geometry.width}x{self.geometry.height})"


def draw_map(
    picture: Image.Image, geometry: Geometry, values: NDArray[np.float32], signed: bool, style: render.Style
) -> Image.Image:
    """Return a raw map (h, w) drawn in a style, RGB; arguments as the attributes of `Explanation`."""
    small = render.fit(picture, style.max_side)
    placement = geometry.scaled(*small.size)
    heatmap = render.normalize(placement.lay(values), signed, render.ends(values, style.scale))
    return render.draw(small, heatmap, placement, signed, style)


def _ends(drawing: MapDrawing, style: render.Style) -> tuple[float, float]:
    """Return the values of the first and the last colour."""
    picture = render.fit(drawing.picture, style.max_side)
    values = drawing.geometry.scaled(*picture.size).lay(drawing.map)
    return render.value_range(values, drawing.signed, render.ends(drawing.map, style.scale))


def _colour_bar(drawing: MapDrawing, style: render.Style, width: int) -> Image.Image:
    low, high = (f"{value:.3g}" for value in _ends(drawing, style))
    bar = Image.new("RGB", (width, _LINE), "white")
    pen = ImageDraw.Draw(bar)
    font = render.font_for(low + high, _LINE * 0.62)
    margin = _LINE // 4
    left, right = margin, width - margin
    pen.text((left, _LINE / 2), low, "black", font, "lm")
    pen.text((right, _LINE / 2), high, "black", font, "rm")
    start, stop = left + int(font.getlength(low)) + margin, right - int(font.getlength(high)) - margin
    if stop > start:  # a picture of a few pixels has room for the numbers alone
        values = np.linspace(-1 if drawing.signed else 0, 1, stop - start, dtype=np.float32)
        strip = render.colour(np.tile(values, (_LINE // 2, 1)), drawing.signed, style.colormap)
        bar.paste(strip, (start, _LINE // 4))
    return bar
