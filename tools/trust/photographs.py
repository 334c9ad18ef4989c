"""Photographs in a folder, each in several crops."""

from pathlib import Path

from PIL import Image

from seewhy import read_picture
from seewhy.app.batch.folders import READABLE

CROPS = ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.8, 0.8), (0.2, 0.2, 1.0, 1.0))
"""Left, top, right and bottom of the crops, as fractions of a photograph."""


def photographs(folder: Path) -> list[Image.Image]:
    """Return the photographs of a folder, by name."""
    return [read_picture(path) for path in sorted(folder.iterdir()) if path.suffix.lower() in READABLE]


def crops(pictures: list[Image.Image]) -> list[Image.Image]:
    """Return all pictures in one crop, then in the next, so that neighbours are different photographs."""
    return [_cropped(picture, crop) for crop in CROPS for picture in pictures]


def _cropped(picture: Image.Image, crop: tuple[float, float, float, float]) -> Image.Image:
    left, top, right, bottom = crop
    width, height = picture.size
    return picture.crop((round(left * width), round(top * height), round(right * width), round(bottom * height)))
