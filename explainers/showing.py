"""What explanations and interventions have in common: they are saved as pictures, and show themselves in notebooks."""

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from PIL import Image


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
