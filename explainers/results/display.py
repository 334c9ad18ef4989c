"""Common behaviour of results: they are saved as pictures and displayed in notebooks."""

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.errors import OptionError, PictureError
from seewhy.explainers.imaging.choices import PICTURE_SUFFIXES, Scale, View
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import Style

_PREVIEW_SIDE = 1200
"""Longest side of a drawing in a notebook, in pixels."""

QUALITY: Mapping[str, dict[str, Any]] = MappingProxyType(
    {".jpg": {"quality": 90}, ".jpeg": {"quality": 90}, ".webp": {"quality": 90, "method": 2}}
)
"""How pictures are encoded, by the suffix of the file."""

Canvas = tuple[Image.Image, Geometry]
"""An upright picture, and the part of it that the model saw."""


def picture_of(canvas: Canvas | None) -> Canvas:
    """Return the canvas of a sheet.

    Raises:
        PictureError: there is none.
    """
    if canvas is None:
        raise PictureError("There is no picture to draw over, only a tensor; explain a picture instead.")
    return canvas


def must_show(top: int) -> None:
    """Refuse an empty sheet.

    Raises:
        OptionError: the number is less than 1, or not whole.
    """
    if not isinstance(top, Integral) or top < 1:
        raise OptionError(f"top is {top!r}; it must be a whole number, 1 or more.", field="top")


class Result(ABC):
    """Base of results that can be saved, as a picture or as numbers."""

    @abstractmethod
    def _file_picture(self, **drawing: Any) -> Image.Image:
        """Return the picture for a file."""

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        """The suffixes of files of numbers, with the functions that yield their pieces."""
        return {}

    def save(self, path: str | os.PathLike[str], **drawing: Any) -> Path:
        """Write a file whose suffix names the format, and return its path.

        Args:
            path: the suffix is ``.png``, ``.jpg``, ``.jpeg`` or ``.webp``; or a suffix of numbers, if the class has
                one.
            drawing: how to draw the picture: for a `Capture` or `Sweep`, the arguments of `sheet`; otherwise those of
                `render.Style`.

        Raises:
            OptionError: another suffix, a value out of bounds or an unknown name; or arguments of a drawing for
                numbers.
            LayerError, PictureError: as in the method that draws.
        """
        path, numbers = Path(path), self._number_files
        suffix = path.suffix.lower()
        if suffix in numbers:
            for name in drawing:
                raise OptionError(f"A {path.suffix} file is not drawn by options; leave {name!r} out.", field=name)
            pieces = numbers[suffix]()
            with path.open("wb") as file:
                file.writelines(pieces)
        elif suffix in PICTURE_SUFFIXES:
            self._file_picture(**drawing).save(path, **QUALITY.get(suffix, {}))
        else:
            raise OptionError(
                f"The suffix {path.suffix!r} is not an output format; use {', '.join((*PICTURE_SUFFIXES, *numbers))}.",
                field="path",
            )
        return path


class Figure(Result):
    """Base of results that notebooks display."""

    @abstractmethod
    def _preview(self) -> Image.Image:
        """Return the picture for a notebook."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._preview().save(png, "PNG", optimize=True)
        return png.getvalue()


class Document(Figure):
    """Base of results that have a document and arrays; `save` writes these as ``.json`` and ``.npz``."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return everything but pictures, for JSON."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz."""

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {
            ".json": lambda: [json.dumps(self.document(), ensure_ascii=False).encode()],
            ".npz": lambda: [_npz(self.arrays())],
        }


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # none is named as one of its arguments
    return file.getvalue()


class Drawing(Document):
    """Base of documents of maps, which are drawn over a picture in a style."""

    @abstractmethod
    def draw(self, style: Style) -> Image.Image:
        """Return the drawing in a style, RGB."""

    def overlay(
        self,
        view: View = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = None,
    ) -> Image.Image:
        """Return the maps drawn over their pictures, RGB, as `draw` does.

        Args:
            view, colormap, alpha, scale: see `render.Style`.
            max_side: longest side in pixels; None for the pictures' own.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        return self.draw(Style(view, colormap, alpha, scale, max_side))

    def _file_picture(self, **drawing: Any) -> Image.Image:
        return self.overlay(**drawing)

    def _preview(self) -> Image.Image:
        return self.overlay(max_side=_PREVIEW_SIDE)
