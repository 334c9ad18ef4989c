"""What results have in common: they are saved as pictures, and displayed in notebooks."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
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


class Result(ABC):
    """Base of results that can be saved, as a picture or as numbers."""

    @abstractmethod
    def _file_picture(self, **drawing: Any) -> Image.Image:
        """Return the picture for a file."""

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        """The suffixes of files of numbers, and what makes the pieces of each."""
        return {}

    def save(self, path: str | os.PathLike[str], **drawing: Any) -> Path:
        """Write a file whose suffix names the format, and return its path.

        Args:
            path: the suffix is that of a picture, such as ``.png``; or of numbers, if the class names one.
            drawing: how to draw the picture: of a `Capture` or `Sweep` the arguments of `sheet`, else those of
                `render.Style`.

        Raises:
            OptionError: another suffix, a value out of bounds or an unknown name; or a drawing's arguments for numbers.
            LayerError, PictureError: as the method that draws.
        """
        path = Path(path)
        numbers = self._number_files
        if path.suffix.lower() not in numbers:
            return save_picture(path, lambda: self._file_picture(**drawing), *numbers)
        for name in drawing:
            raise OptionError(f"A {path.suffix} file holds no picture; leave {name!r} out.", field=name)
        pieces = numbers[path.suffix.lower()]()
        with path.open("wb") as file:
            file.writelines(pieces)
        return path


class Figure(Result):
    """Base of results that can be saved, and that notebooks display."""

    @abstractmethod
    def _preview(self) -> Image.Image:
        """Return the picture for a notebook."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._preview().save(png, "PNG", optimize=True)
        return png.getvalue()
