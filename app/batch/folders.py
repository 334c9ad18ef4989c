"""Pictures in folders; without PyTorch and Parquet, because the command line uses this module."""

import os
import stat
from collections.abc import Iterator

READABLE = (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Suffixes of pictures that can be read."""

SUFFIXES = (*READABLE, ".dcm", ".heic", ".heif", ".jp2", ".jxl")
"""Suffixes of pictures in a folder; a named file is tried whatever its suffix. Those that cannot be read fail with the
reason, instead of being silently skipped."""


def below(folder: str) -> Iterator[str]:
    """Yield the pictures in a folder and below it, except hidden ones, in order."""
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(top, name)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".") and not is_special(path):
                yield path


def is_special(path: str) -> bool:
    """Whether a file is a folder, a pipe, a socket or a device: reading some of these never ends."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # such as a broken link, which fails with the reason when it is read
        return False
