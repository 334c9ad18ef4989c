"""Drawing a map: values to colours, colours over the picture, several targets in one panel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from cmap import Colormap
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from seewhy.explainers.errors import OptionError, near_matches
from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL, VIEWS, Scale, View
from seewhy.explainers.imaging.geometry import Geometry

_SYSTEM_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "NotoSans-Regular.ttf",
    "DejaVuSans.ttf",
    "LiberationSans-Regular.ttf",
    "Arial Unicode.ttf",
    "Arial.ttf",
)
_DIMMED = (0.3 * 0.299, 0.3 * 0.587, 0.3 * 0.114, 0.0)
"""Weights of red, green and blue in each colour of the grey outside the model's crop, at 0.3 of its brightness."""

_CAPTION_HEIGHT = 1 / 14  # of a tile's width

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Style:
    """How a heatmap is drawn.

    Attributes:
        view: the heatmap over the picture, the heatmap alone, or the picture beside the overlay.
        colormap: a name of `SEQUENTIAL` or `DIVERGING`; None for inferno, or icefire for signed maps.
        alpha: strength of the overlay, 0 to 1.
        scale: None to divide each map by its largest magnitude; ``robust`` to divide it by its 99th percentile, so that
            a few extreme pixels do not darken the rest of a fine map; (lo, hi) for fixed ends, so that pictures are
            comparable. A signed map runs from minus to plus the larger magnitude of the two, and zero stays zero.
        max_side: longest side of a drawn tile, in pixels; None for the picture's own size.

    Raises:
        OptionError: a value out of bounds, or an unknown name.
    """

    view: View = "overlay"
    colormap: str | None = None
    alpha: float = 0.5
    scale: Scale = None
    max_side: int | None = None

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise OptionError(f"There is no view {self.view!r}; choose from {', '.join(VIEWS)}.", field="view")
        if self.colormap is not None and self.colormap not in SEQUENTIAL + DIVERGING:
            names = SEQUENTIAL + DIVERGING
            hint = near_matches(self.colormap, names) or f"Choose from {', '.join(names)}."
            raise OptionError(f"There is no colormap {self.colormap!r}. {hint}", field="colormap")
        if not 0 <= self.alpha <= 1:
            raise OptionError(f"alpha is {self.alpha}; it must lie between 0 and 1.", field="alpha")
        if isinstance(self.scale, str):
            if self.scale != "robust":
                raise OptionError(f"There is no scale {self.scale!r}; use robust, or two numbers.", field="scale")
        elif self.scale is not None and not _is_range(*self.scale):
            raise OptionError(
                f"scale is {self.scale}; it must be two finite numbers lo,hi with lo < hi.", field="scale"
            )

    @property
    def across(self) -> int:
        """The number of pictures that a drawing has side by side."""
        return 2 if self.view == "side-by-side" else 1

    def of_tiles(self, columns: int, rows: int = 1, margin: float = 1.0) -> "Style":
        """Return the style of each tile of a grid whose longest side is this style's.

        Args:
            columns: columns of the grid.
            rows: rows of the grid.
            margin: the side of the grid with its text, relative to that of its tiles alone.
        """
        if self.max_side is None:
            return self
        pictures = max(columns * self.across, rows)
        return replace(self, max_side=max(16, int(self.max_side / pictures / margin)))


def value_range(
    values: NDArray[np.float32], signed: bool, scale: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the values of a map (h, w) that the first and the last colour stand for; see `normalize`."""
    low, high = scale or (0.0, magnitude(values) or 1.0)
    largest = max(abs(low), abs(high))
    return (-largest, largest) if signed else (low, high)


def normalize(
    values: NDArray[np.float32], signed: bool, scale: tuple[float, float] | None = None
) -> NDArray[np.float32]:
    """Scale a map to [0, 1], or to [-1, 1] when signed. An all-zero map stays all zero.

    Args:
        values: (H, W) float32.
        signed: whether negative values are drawn.
        scale: fixed ends, see `Style`; None for the map's own.
    """
    low, high = value_range(values, signed, scale)
    if signed:
        low = 0.0
    scaled = values - np.float32(low) if low else values
    scaled = np.divide(scaled, np.float32(high - low), out=scaled if low else None)
    return np.clip(scaled, -1.0 if signed else 0.0, 1.0, out=scaled)


def magnitude(values: NDArray[np.float32], scale: Scale = None) -> float:
    """Return a map's largest magnitude; with ``robust`` the 99th percentile, of non-zero values if it would be 0."""
    if scale == "robust" and values.any():
        sizes = np.abs(values)
        return float(np.percentile(sizes, 99)) or float(np.percentile(sizes[sizes > 0], 99))
    return max(float(values.max()), -float(values.min()))


def ends(values: NDArray[np.float32], scale: Scale) -> tuple[float, float] | None:
    """Return the fixed ends of a scale for a raw map (h, w); None for the map's own."""
    return (0.0, magnitude(values, scale) or 1.0) if isinstance(scale, str) else scale


def default_colormap(signed: bool) -> str:
    """Return the name of the default colour map."""
    return "icefire" if signed else "inferno"


def colour(heatmap: NDArray[np.float32], signed: bool, colormap: str | None = None) -> Image.Image:
    """Return the colours of a normalised heatmap (H, W) as an RGB image."""
    position = (heatmap + 1) / 2 if signed else heatmap
    levels = position * np.float32(255)
    levels += np.float32(0.5)
    coloured = Image.fromarray(levels.astype(np.uint8))
    coloured.putpalette(palette(colormap or default_colormap(signed)))
    return coloured.convert("RGB")


def draw(
    picture: Image.Image,
    heatmap: NDArray[np.float32],
    geometry: Geometry,
    signed: bool,
    style: Style,
) -> Image.Image:
    """Draw a heatmap over, instead of, or beside its picture; dim the picture outside the model's input.

    Args:
        picture: RGB, H by W.
        heatmap: (h, w) float32, normalised, as `Geometry.lay` returns it.
        geometry: geometry of this picture at this size.
        signed: whether the heatmap runs from -1.
        style: view, colours and strength; its scale and size are already applied.
    """
    return compose(picture, colour(heatmap, signed, style.colormap), geometry, style.view, style.alpha)


def compose(picture: Image.Image, colours: Image.Image, geometry: Geometry, view: View, alpha: float) -> Image.Image:
    """Lay colours over, instead of, or beside a picture; dim the picture outside the model's input.

    Args:
        picture: RGB, H by W.
        colours: RGB, of the window of the geometry.
        geometry: geometry of this picture at this size.
        view: where to lay them.
        alpha: their opacity, 0 to 1.
    """
    rows, columns = geometry.window
    box = (columns.start, rows.start, columns.stop, rows.stop)
    drawing = colours if view == "heatmap" else Image.blend(picture.crop(box), colours, alpha)
    if drawing.size != picture.size:
        drawing = _framed(picture, drawing, box)
    if view != "side-by-side":
        return drawing
    pair = Image.new("RGB", (2 * picture.width, picture.height))
    pair.paste(picture, (0, 0))
    pair.paste(drawing, (picture.width, 0))
    return pair


def _framed(picture: Image.Image, drawing: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Return a drawing of the model's input in a frame of the rest of the picture, grey and dim."""
    left, top, right, bottom = box
    width, height = picture.size
    framed = Image.new("RGB", picture.size)
    framed.paste(drawing, (left, top))
    for strip in ((0, 0, width, top), (0, bottom, width, height), (0, top, left, bottom), (right, top, width, bottom)):
        if strip[0] < strip[2] and strip[1] < strip[3]:
            framed.paste(picture.crop(strip).convert("RGB", _DIMMED * 3), strip[:2])
    return framed


def fitted(width: int, height: int, max_side: int | None) -> tuple[int, int]:
    """Return the size of a picture after `fit`."""
    if max_side is None or max(width, height) <= max_side:
        return width, height
    ratio = max_side / max(width, height)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def fit(picture: Image.Image, max_side: int | None, size: tuple[int, int] | None = None) -> Image.Image:
    """Return the picture, reduced if its longest side exceeds `max_side` pixels.

    Args:
        picture: picture of any mode.
        max_side: the limit; None for no limit.
        size: size of the upload, if `picture` is a smaller copy; the result has the size that the upload would have.
    """
    result = fitted(*(size or picture.size), max_side)
    return picture if result == picture.size else picture.resize(result, Image.Resampling.LANCZOS, reducing_gap=2.0)


def enlarged(picture: Image.Image, least: int, most: int) -> Image.Image:
    """Return a small picture enlarged by a whole factor.

    Args:
        picture: picture of any mode.
        least: the width to reach, in pixels.
        most: longest side that an enlarged picture may have, in pixels.
    """
    factor = min(ceil(least / picture.width), most // max(picture.size))
    if factor < 2:
        return picture
    return picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.LANCZOS)


def panel_columns(tiles: int) -> int:
    """Return the number of columns of a panel of this many tiles."""
    return ceil(sqrt(tiles))


def panel(
    tiles: Sequence[Image.Image],
    captions: Sequence[str],
    columns: int | None = None,
    *,
    width: int = 0,
    bar: int | None = None,
    title: Sequence[str] = (),
    wraps: bool = False,
) -> Image.Image:
    """Lay out tiles of one size in a near-square grid, each under its caption.

    Args:
        tiles: the pictures.
        captions: one for each tile.
        columns: number of columns; None for a near-square grid.
        width: least width of a column, in pixels.
        bar: height of a line of text, in pixels; None for a share of the tile's width.
        title: lines above all tiles.
        wraps: whether long captions take several lines; otherwise they are shortened.
    """
    height = tiles[0].height
    bar = bar or max(14, round(tiles[0].width * _CAPTION_HEIGHT))
    width = max(width, tiles[0].width)
    columns = columns or panel_columns(len(tiles))
    rows = ceil(len(tiles) / columns)
    head = len(title) * bar
    fonts = [font_for(caption, bar * 0.62) for caption in captions]
    texts = [
        _wrapped(caption, font, width - bar / 2) if wraps else [caption]
        for caption, font in zip(captions, fonts, strict=True)
    ]
    above = bar * max(map(len, texts))
    sheet = Image.new("RGB", (columns * width, head + rows * (height + above)), "white")
    pen = ImageDraw.Draw(sheet)

    def write(text: str, font: Font, left: int, top: int, width: int) -> None:
        pen.text((left + bar * 0.25, top + bar / 2), _shorten(text, font, width - bar / 2), "black", font, "lm")

    for number, line in enumerate(title):
        write(line, font_for(line, bar * 0.62), 0, number * bar, sheet.width)
    for place, (tile, font, lines) in enumerate(zip(tiles, fonts, texts, strict=True)):
        left, top = (place % columns) * width, head + (place // columns) * (height + above)
        for number, line in enumerate(lines):
            write(line, font, left, top + number * bar, width)
        sheet.paste(tile, (left, top + above))
    return sheet


def _wrapped(text: str, font: Font, width: float) -> list[str]:
    """Return a text in lines of a width; a word that is wider is broken."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines += _broken(word, font, width)
    return [line for line in lines if line] or [""]


def _broken(word: str, font: Font, width: float) -> list[str]:
    """Return a word in parts of a width, each of at least one letter."""
    parts = []
    while word:
        end = next((end for end in range(len(word), 1, -1) if font.getlength(word[:end]) <= width), 1)
        parts.append(word[:end])
        word = word[end:]
    return parts


def font_for(text: str, size: float) -> Font:
    """Return Pillow's font for ASCII, the only text that it covers, and a font of the system for other text."""
    for name in () if text.isascii() else _SYSTEM_FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size=size)


def _shorten(text: str, font: Font, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _is_range(low: float, high: float) -> bool:
    ends = np.clip([low, high], -1e38, 1e38).astype(np.float32)  # maps are float32: the ends must differ there
    return bool(np.isfinite([low, high]).all() and ends[0] < ends[1] and ends[1] - ends[0] > 1e-30)


@lru_cache(maxsize=32)
def palette(name: str) -> bytes:
    """Return the 256 colours of a colour map, three bytes each: red, green, blue."""
    lookup: NDArray[np.uint8] = (Colormap(name).lut(256)[:, :3] * 255 + 0.5).astype(np.uint8)
    return lookup.tobytes()
