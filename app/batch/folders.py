"""Pictures in folders. It imports neither PyTorch nor Parquet, because the command line uses it."""

import os
from collections.abc import Iterator

SUFFIXES = (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Suffixes of pictures in a folder; a named file is tried whatever its suffix."""


def below(folder: str) -> Iterator[str]:
    """Yield the pictures in a folder and below it, except hidden ones, in order."""
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(top, name)
