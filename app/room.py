"""Room for pictures that are being decoded: they take many times the memory of anything that is kept of them."""

import threading
from collections import deque
from collections.abc import Callable

_GLANCE = 0.1
"""Seconds between two looks at whether anybody still waits for an answer."""

_BESIDE = 8
"""Small pictures need no room. As many at a time as there are processors have this part of it, all together."""


class Room:
    """So many pixels may be decoded at a time; who finds no room waits, in the order of arrival.

    Args:
        pixels: at a time; one picture may always have as many, alone.
        processors: as many pictures are decoded at a time at the most.
    """

    def __init__(self, pixels: int, processors: int) -> None:
        self._all = self._free = pixels
        self._small = pixels // (_BESIDE * processors)
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self, pixels: int, check: Callable[[], None], aside: threading.Semaphore | None = None) -> int:
        """Wait until there is room for a picture, and return what it takes of it; `leave` gives it back.

        Args:
            pixels: that are to be decoded.
            check: is called while it waits; raises when nobody waits for the picture any more.
            aside: is held by the caller, and left to others while it waits, for who holds nothing else.
        """
        if pixels <= self._small:
            return 0
        taken = min(pixels, self._all)
        with self._changed:
            if not self._queue and taken <= self._free:
                self._free -= taken
                return taken
        if aside:
            aside.release()
        try:
            self._wait(taken, check)
        finally:
            if aside:
                aside.acquire()
        return taken

    def leave(self, taken: int) -> None:
        """Give room back."""
        if taken:
            with self._changed:
                self._free += taken
                self._changed.notify_all()

    def _wait(self, taken: int, check: Callable[[], None]) -> None:
        place = object()
        with self._changed:
            self._queue.append(place)
            try:
                while self._queue[0] is not place or taken > self._free:
                    self._changed.wait(_GLANCE)
                    check()
                self._free -= taken
            finally:
                self._queue.remove(place)
                self._changed.notify_all()
