"""What results have in common: they are saved as pictures, and displayed in notebooks."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from seewhy.explainers.errors import OptionError, PictureError
from seewhy.explainers.imaging.geometry import Geometry

Canvas = tuple[Image.Image, Geometry]
"""An upright picture, and the part of it that the model saw."""


def picture_of(canvas: Canvas | None) -> Canvas:
    """Return the canvas of a sheet.

    Raises:
        PictureError: there is none.
    """
    if canvas is None:
        raise PictureError("There is no picture to draw over, only a tensor; start from a picture instead.")
    return canvas


def must_show(top: int) -> None:
    """Refuse a sheet of nothing.

    Raises:
        OptionError: fewer than one.
    """
    if top < 1:
        raise OptionError(f"top is {top}; it must be 1 or more.", field="top")


def must_be_plain(path: Path, options: Iterable[str]) -> None:
    """Refuse arguments of a drawing for a file of numbers.

    Raises:
        OptionError: there is such an argument.
    """
    for name in options:
        raise OptionError(f"A {path.suffix} file holds no picture; leave {name!r} out.", field=name)


def save_picture(path: Path, draw: Callable[[], Image.Image], *further: str) -> Path:
    """Write a picture to a file whose suffix names the format, and return its path.

    Args:
        path: of the file.
        draw: makes the picture; not called if the suffix is wrong.
        further: other suffixes that the caller accepts, for the error.

    Raises:
        OptionError: a suffix of no known format.
    """
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        suffixes = "".join(f"{suffix}, " for suffix in further)
        raise OptionError(
            f"The suffix {path.suffix!r} names no format for this; use {suffixes}.png or that of another picture.",
            field="path",
        )
    draw().save(path)
    return path


class Drawing(ABC):
    """Base of results that can be drawn."""

    @abstractmethod
    def _file_picture(self, **style: Any) -> Image.Image:
        """Return the picture for a file; see `render.Style`."""

    @abstractmethod
    def _preview(self) -> Image.Image:
        """Return the picture for a notebook."""

    def save(self, path: str | os.PathLike[str], **style: Any) -> Path:
        """Draw it into a file, and return the file's path.

        Args:
            path: its suffix names the format, such as ``.png``.
            style: see `render.Style`.

        Raises:
            OptionError: a value out of bounds, an unknown name, or a suffix of no known format.
        """
        return save_picture(Path(path), lambda: self._file_picture(**style))

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._preview().save(png, "PNG", optimize=True)
        return png.getvalue()
