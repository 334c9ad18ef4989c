"""The heaps of the C library: few for all threads, and trimmed after work.

A heap is one piece of memory, in which a single small object keeps the free memory around it from the system: without
trimming the process would stay as large as it ever was.
"""

import ctypes
import math
import os
import time
from typing import Any

from PIL import _imaging

REST_SECONDS = 2.0
"""Idle time before memory is given back: taking it again costs some milliseconds."""

PIECE_BYTES = 2**30
"""Pillow's block: a picture up to this size is one piece of memory, and goes back at once where that is a large one."""

_ARENA_MAX = -8
"""`M_ARENA_MAX` of malloc.h."""


def share_heaps() -> None:
    """Let threads share two heaps, and keep large pictures out of them.

    The GNU C library gives each thread a heap of its own, which keeps what it once took, and Pillow cuts a picture into
    pieces of 16 MB, which come from there.
    """
    _imaging.set_block_size(PIECE_BYTES)
    mallopt = _function("mallopt")
    if mallopt is not None and not {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & set(os.environ):
        mallopt(_ARENA_MAX, 2)


class Rest:
    """Gives free memory back once models have rested for a while."""

    def __init__(self) -> None:
        self._trimmed = -math.inf

    def look(self, last_work: float) -> None:
        """Trim if models have rested; called every second or so with when one last worked, by `time.monotonic`."""
        if last_work > self._trimmed and time.monotonic() - last_work >= REST_SECONDS:
            self._trimmed = last_work
            trim()


def trim() -> None:
    """Give the memory that is free in the heaps back to the system, where the C library can."""
    give = _function("malloc_trim")
    if give is not None:
        give(0)


def _function(name: str) -> Any:
    """Return a function of the C library, if it has it; it runs outside the interpreter's lock."""
    return getattr(ctypes.CDLL(None), name, None)
