"""What results have in common: they are saved as pictures, and show themselves in notebooks."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from seewhy.explainers.errors import OptionError, PictureError
from seewhy.explainers.imaging.geometry import Geometry

Seen = tuple[Image.Image, Geometry]
"""An upright picture, and where in it the model saw what."""


def picture_of(seen: Seen | None) -> Seen:
    """Return what a sheet is drawn over.

    Raises:
        PictureError: there is nothing.
    """
    if seen is None:
        raise PictureError("There is no picture to draw over: this was made of a tensor. Start from a picture instead.")
    return seen


def must_show(top: int) -> None:
    """Refuse a sheet of nothing.

    Raises:
        OptionError: fewer than one.
    """
    if top < 1:
        raise OptionError(f"top is {top}; it must be 1 or more.", field="top")


def must_be_plain(path: Path, options: Iterable[str]) -> None:
    """Refuse options of a sheet for a file that holds none.

    Raises:
        OptionError: there is one.
    """
    for name in options:
        raise OptionError(f"A {path.suffix} file holds no sheet; leave {name!r} out.", field=name)


def save_picture(path: Path, draw: Callable[[], Image.Image], *others: str) -> Path:
    """Write a picture to a file whose suffix names the format, and return its path.

    Args:
        path: where to.
        draw: makes the picture; not called where the suffix is that of no picture.
        others: suffixes that the caller could have written, for the error.

    Raises:
        OptionError: a suffix of no known format.
    """
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        known = "".join(f"{one}, " for one in others)
        raise OptionError(
            f"{path.suffix!r} is no format that this can be written in; use {known}.png or that of another picture.",
            field="path",
        )
    draw().save(path)
    return path


class Shown(ABC):
    """Something that can be drawn."""

    @abstractmethod
    def _saved(self, **style: Any) -> Image.Image:
        """Return the picture that a file of it holds; see `render.Style`."""

    @abstractmethod
    def _shown(self) -> Image.Image:
        """Return the picture that a notebook shows."""

    def save(self, path: str | os.PathLike[str], **style: Any) -> Path:
        """Draw it into a file whose suffix names the format; return the file's path.

        Args:
            path: where to.
            style: see `render.Style`.

        Raises:
            OptionError: a value out of bounds, an unknown name, or a suffix of no known format.
        """
        return save_picture(Path(path), lambda: self._saved(**style))

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._shown().save(png, "PNG", optimize=True)
        return png.getvalue()
