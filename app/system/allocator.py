"""The C library's heaps: few for all threads, trimmed after work.

A single small object in a heap keeps the free memory around it from the system: without trimming, the process would
stay at its peak size.
"""

import ctypes
import math
import os
import time
from typing import Any

from PIL import _imaging

REST_SECONDS = 2.0
"""Idle seconds before memory is returned: allocating it again takes some milliseconds."""

PIECE_BYTES = 2**30
"""Pillow's block size: a picture up to it is one allocation, which is returned at once if it is large."""

_ARENA_MAX = -8
"""`M_ARENA_MAX` of malloc.h."""


def limit_arenas() -> None:
    """Let threads share two heaps, and keep large pictures out of them.

    The GNU C library gives each thread its own heap, which keeps its memory, and Pillow splits a picture into blocks of
    16 MB, which are allocated there.
    """
    _imaging.set_block_size(PIECE_BYTES)
    mallopt = _function("mallopt")
    if mallopt is not None and not {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & set(os.environ):
        mallopt(_ARENA_MAX, 2)


class Rest:
    """Returns free memory once models have been idle for a while."""

    def __init__(self) -> None:
        self._trimmed = -math.inf

    def look(self, last_work: float) -> None:
        """Trim if models have been idle; called about every second with the time of the last work (monotonic)."""
        if last_work > self._trimmed and time.monotonic() - last_work >= REST_SECONDS:
            self._trimmed = last_work
            trim()


def trim() -> None:
    """Return free memory in the heaps to the system, if the C library can."""
    give = _function("malloc_trim")
    if give is not None:
        give(0)


def _function(name: str) -> Any:
    """Return a function of the C library, if it exists; it runs without the interpreter's lock."""
    return getattr(ctypes.CDLL(None), name, None)
