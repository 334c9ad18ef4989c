"""What results have in common: they are saved as pictures, and show themselves in notebooks."""

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from PIL import Image

from explainers.errors import OptionError, PictureError
from explainers.geometry import Geometry

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


def must_be_picture(path: Path, otherwise: str) -> None:
    """Refuse a path whose suffix is that of no picture.

    Raises:
        OptionError: it says what to do otherwise.
    """
    if path.suffix.lower() not in Image.registered_extensions():
        raise OptionError(f"{path.suffix!r} is no format that this can be written in; {otherwise}", field="path")


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
            OptionError: a value out of bounds, or an unknown name.
            ValueError: a suffix of no known format.
        """
        self._saved(**style).save(path)
        return Path(path)

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._shown().save(png, "PNG", optimize=True)
        return png.getvalue()
