"""Pictures in the terminal: kitty's graphics protocol, iTerm2's inline images, sixels, or coloured half blocks."""

import base64
import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from PIL import Image

Protocol = Literal["kitty", "iterm2", "sixel", "blocks"]

_COLUMNS = 80
"""Widest picture, in characters."""
_CELL = (10, 20)
"""Width and height of a character, in pixels: a guess where nobody asks the terminal."""
_CHUNK = 4096
"""Most characters of base64 that kitty takes at once."""


def protocol(environ: Mapping[str, str] = os.environ) -> Protocol | None:
    """Return how the terminal shows pictures, by what its environment says of it; None where it cannot.

    A multiplexer passes only text on. Half blocks are text in colour, so NO_COLOR forbids them.
    """
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if term in ("", "dumb", "linux"):
        return None
    if not (environ.get("TMUX") or environ.get("STY") or term.startswith(("tmux", "screen"))):
        if "KITTY_WINDOW_ID" in environ or term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
            return "kitty"
        if program in ("iTerm.app", "WezTerm", "mintty") or environ.get("LC_TERMINAL") == "iTerm2":
            return "iterm2"
        if term.startswith(("foot", "mlterm", "contour", "yaft")):
            return "sixel"
    return None if environ.get("NO_COLOR") else "blocks"


def show(picture: Image.Image, how: Protocol, environ: Mapping[str, str] = os.environ) -> None:
    """Show a picture on the standard output, which is a terminal."""
    size = shutil.get_terminal_size()
    columns, lines = min(size.columns - 1, _COLUMNS), max(size.lines - 3, 4)
    sys.stdout.write(drawn(picture, how, columns, lines, environ.get("COLORTERM") in ("truecolor", "24bit")))
    sys.stdout.flush()


def drawn(picture: Image.Image, how: Protocol, columns: int, lines: int, truecolour: bool = True) -> str:
    """Return what shows a picture in a terminal.

    Args:
        picture: RGB.
        how: the protocol.
        columns, lines: most characters that it may take up.
        truecolour: whether half blocks may have any colour, or those of a palette of 256.
    """
    if how == "blocks":
        return "".join(_blocks(_fitted(picture, columns, 2 * lines), truecolour))
    fitted = _fitted(picture, columns * _CELL[0], lines * _CELL[1])
    if how == "sixel":
        return f"{_sixel(fitted)}\n"
    across, down = (max(1, round(side / cell)) for side, cell in zip(fitted.size, _CELL, strict=True))
    png = io.BytesIO()
    fitted.save(png, "PNG")
    encoded = base64.b64encode(png.getvalue()).decode("ascii")
    if how == "iterm2":
        size = f"size={len(png.getvalue())};width={across};height={down}"
        return f"\033]1337;File=inline=1;{size}:{encoded}\a\n"
    parts = [encoded[start : start + _CHUNK] for start in range(0, len(encoded), _CHUNK)]
    first, *others = [f"m={int(number < len(parts))};{part}" for number, part in enumerate(parts, start=1)]
    commands = [f"a=T,f=100,q=2,c={across},r={down},{first}", *others]
    return "".join(f"\033_G{command}\033\\" for command in commands) + "\n"


def _fitted(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Return the picture within this size, and no larger than it is."""
    ratio = min(1.0, width / picture.width, height / picture.height)
    size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
    return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


def _blocks(picture: Image.Image, truecolour: bool) -> Iterator[str]:
    """Yield lines whose characters are two pixels each: the upper half in the one colour, the lower in the other."""
    pixels = np.asarray(picture).astype(int)
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        pairs = zip(upper.tolist(), lower.tolist(), strict=True)
        cells = (f"\033[38;{_colour(one, truecolour)};48;{_colour(two, truecolour)}m▀" for one, two in pairs)
        yield "".join(cells) + "\033[0m\n"


def _colour(rgb: list[int], truecolour: bool) -> str:
    if truecolour:
        return "2;" + ";".join(map(str, rgb))
    red, green, blue = (round(level / 255 * 5) for level in rgb)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def _sixel(picture: Image.Image) -> str:
    """Return a picture as sixels: bands of six rows, drawn colour by colour."""
    reduced = picture.quantize(256, dither=Image.Dither.FLOYDSTEINBERG)
    indices = np.asarray(reduced)
    palette = np.round(np.array(reduced.getpalette(), dtype=float).reshape(-1, 3) / 255 * 100).astype(int)
    parts = [f'\033P0;1q"1;1;{picture.width};{picture.height}']
    parts += [f"#{colour};2;{red};{green};{blue}" for colour, (red, green, blue) in enumerate(palette.tolist())]
    for top in range(0, picture.height, 6):
        band = indices[top : top + 6]
        weights = 1 << np.arange(len(band))[:, None]
        rows = []
        for colour in np.unique(band):
            bits = ((band == colour) * weights).sum(axis=0)
            rows.append(f"#{colour}{_runs(bits)}")
        parts.append("$".join(rows) + "-")
    return "".join(parts) + "\033\\"


def _runs(bits: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> str:
    """Return a row of sixels, repeated ones counted."""
    starts = np.flatnonzero(np.concatenate([[True], bits[1:] != bits[:-1]]))
    lengths = np.diff(np.append(starts, len(bits)))
    return "".join(
        f"!{length}{chr(63 + bits[start])}" if length > 3 else chr(63 + bits[start]) * length
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
