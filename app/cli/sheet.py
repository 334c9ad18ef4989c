"""The contact sheet of a command's results."""

from pathlib import Path

from PIL import Image, ImageOps

from seewhy.app.answers.documents import encode
from seewhy.app.cli.files import suffixes_of, write
from seewhy.app.pipeline.choices import DRAWINGS
from seewhy.explainers.imaging.render import panel

_TILE = (320, 240)
_GAP = 4
_LINE = 20
_PAGE = 100
"""Maximum results on a sheet; further ones go onto SHEET-2 and so on, so that memory stays bounded."""


class Sheet:
    """Small copies of drawings, each under its caption.

    Args:
        path: path of the first sheet; its suffix is the format, one of a picture.
        title: title above the copies.
    """

    def __init__(self, path: Path, title: str) -> None:
        self._path = path
        self._form = suffixes_of(DRAWINGS)[path.suffix.lower()]
        self._title = title
        self._tiles: list[Image.Image] = []
        self._captions: list[str] = []
        self._pages = 0

    @staticmethod
    def tile(drawing: Image.Image) -> Image.Image:
        """Return the small copy of a drawing."""
        small = ImageOps.pad(drawing.convert("RGB"), _TILE, Image.Resampling.LANCZOS, color="white")
        return ImageOps.expand(small, _GAP, "white")

    def add(self, tile: Image.Image, caption: str) -> None:
        """Add a small copy to the sheet; write the sheet if it is full."""
        self._tiles.append(tile)
        self._captions.append(caption)
        if len(self._tiles) == _PAGE:
            self.close()

    def close(self) -> None:
        """Write the remaining copies."""
        if not self._tiles:
            return
        self._pages += 1
        name = self._path.name if self._pages == 1 else f"{self._path.stem}-{self._pages}{self._path.suffix}"
        page = panel(self._tiles, self._captions, bar=_LINE, title=(self._title,))
        write(self._path.with_name(name), encode(page, self._form))
        self._tiles, self._captions = [], []
