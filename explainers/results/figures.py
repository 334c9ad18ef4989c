"""An explanation with its caption and its colour bar: as one picture for notebooks, and as a figure of matplotlib."""

from typing import TYPE_CHECKING

import numpy as np
from cmap import Colormap
from PIL import Image, ImageDraw

from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging.render import Style, colour, default_colormap, ends, fit, font_for, panel, value_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from seewhy.explainers.results.explanation import Explanation

_LINE = 24
"""Height of a caption and of a colour bar, in pixels."""


def captioned(explanation: "Explanation", style: Style) -> Image.Image:
    """Draw an explanation under its caption and, where it is one map, above the colours' meaning."""
    drawn = explanation.drawn(style)
    if explanation.regions:  # these are labelled, and each has a scale of its own
        return drawn
    bar = _colour_bar(explanation, style, drawn.width)
    whole = Image.new("RGB", (drawn.width, drawn.height + _LINE), "white")
    whole.paste(drawn, (0, 0))
    whole.paste(bar, (0, drawn.height))
    return panel([whole], [explanation.caption], bar=_LINE)


def plot(explanation: "Explanation", ax: "Axes | None", colorbar: bool, title: str | None, style: Style) -> "Axes":
    """Draw an explanation with matplotlib; see `Explanation.plot`."""
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots()[1]
    if not hasattr(ax, "imshow"):
        raise OptionError(f"ax is a {type(ax).__name__}; give one Axes, such as axes[0].", "ax")
    width, height = explanation.geometry.width, explanation.geometry.height
    ax.imshow(explanation.drawn_map(style), extent=(-0.5, width - 0.5, height - 0.5, -0.5))
    ax.set_title(explanation.caption if title is None else title)
    ax.set_axis_off()
    if colorbar:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        name = style.colormap or default_colormap(explanation.signed)
        colours = ScalarMappable(Normalize(*_ends(explanation, style)), Colormap(name).to_mpl())
        against = f" rather than {explanation.against.label}" if explanation.against else ""
        ax.figure.colorbar(colours, ax=ax, label=f"evidence for {explanation.target.label}{against}")
    return ax


def _ends(explanation: "Explanation", style: Style) -> tuple[float, float]:
    """Return the values of the first and the last colour."""
    picture = fit(explanation.picture, style.max_side)
    laid = explanation.geometry.scaled(*picture.size).lay(explanation.map)
    return value_range(laid, explanation.signed, ends(explanation.map, style.scale))


def _colour_bar(explanation: "Explanation", style: Style, width: int) -> Image.Image:
    low, high = (f"{value:.3g}" for value in _ends(explanation, style))
    bar = Image.new("RGB", (width, _LINE), "white")
    pen = ImageDraw.Draw(bar)
    font = font_for(low + high, _LINE * 0.62)
    margin = _LINE // 4
    left, right = margin, width - margin
    pen.text((left, _LINE / 2), low, "black", font, "lm")
    pen.text((right, _LINE / 2), high, "black", font, "rm")
    start, stop = left + int(font.getlength(low)) + margin, right - int(font.getlength(high)) - margin
    if stop > start:  # a picture of a few pixels has room for the numbers alone
        values = np.linspace(-1 if explanation.signed else 0, 1, stop - start, dtype=np.float32)
        strip = colour(np.tile(values, (_LINE // 2, 1)), explanation.signed, style.colormap)
        bar.paste(strip, (start, _LINE // 4))
    return bar
