"""The heaps of the C library: few for all threads, and what is free in them goes back to the system after work.

A heap is one piece of memory. One small thing that stays keeps what is free around it, so that the most that was ever
needed at once would be kept for good.
"""

import ctypes
import os
import time
from typing import Any

REST_SECONDS = 2.0
"""Without work until memory is given back: taking it again costs some milliseconds."""

_ARENA_MAX = -8
"""`M_ARENA_MAX` of malloc.h."""


def share_heaps() -> None:
    """Let threads share two heaps. The GNU C library gives each one of its own, which keeps what it once took."""
    mallopt = _function("mallopt")
    if mallopt is not None and not {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & set(os.environ):
        mallopt(_ARENA_MAX, 2)


class Rest:
    """Gives free memory back once models have rested for a while."""

    def __init__(self) -> None:
        self._worked: float | None = None

    def look(self, idle: bool) -> None:
        """Be told, every second or so, whether all models rest."""
        if not idle:
            self._worked = time.monotonic()
        elif self._worked is not None and time.monotonic() - self._worked >= REST_SECONDS:
            self._worked = None
            trim = _function("malloc_trim")
            if trim is not None:
                trim(0)


def _function(name: str) -> Any:
    """Return a function of the C library, if it has it; it runs outside the interpreter's lock."""
    return getattr(ctypes.CDLL(None), name, None)
