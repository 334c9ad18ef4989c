"""One budget of bytes for all requests of a process: bodies, pixels, tensors and answers are counted before they exist.

What does not fit at present is refused with 503, once idle models have made room; what could never fit, with 413.
Only pixels are waited for: they are held for moments, while an answer may be held as long as its client reads.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from seewhy.app.errors import AnswerTooLargeError, BodyTooLargeError, OutOfMemoryError
from seewhy.explainers.errors import CaptureTooLargeError, PictureTooLargeError

_GLANCE = 0.1
"""Seconds between two checks that a client still waits."""

_LARGE, _MUCH = 2**22, 2**27
"""Free memory goes back to the system before so many bytes are taken at once, if so many were given back."""

_BESIDE = 8
"""Pictures pass the queue if as many of them as there are processors fit into this part of the budget."""

_BUSY = (
    "The requests that are being answered leave too little memory for this one at present; try again in a few seconds."
)


@dataclass(frozen=True)
class Purpose:
    """What memory is taken for.

    Attributes:
        subject: of the sentence that refuses it.
        error: raised where it could never fit.
        advice: what to do then.
    """

    subject: str
    error: type[Exception]
    advice: str


BODY = Purpose("The body", BodyTooLargeError, "send a smaller one")
PIXELS = Purpose("The picture", PictureTooLargeError, "send a smaller one")
CAPTURE = Purpose("The capture", CaptureTooLargeError, "name fewer layers or kinds")
ANSWER = Purpose("The answer", AnswerTooLargeError, "ask for fewer classes or numbers, or send a smaller picture")


class MemoryBudget:
    """Bytes that all requests of a process may take together. Safe for threads.

    Args:
        size: of the budget, before anything is set aside.
        changed: called after each change with the bytes in use and the size of the budget.
        trim: gives memory that is free back to the system; called before much is taken where much was given back.
        least: bytes that are left to requests whatever is set aside.

    `spare` drops the least recently used idle model and returns whether there was one. It is called without the lock,
    for dropping a model gives memory back, before a refusal of something that would fit without models.
    """

    def __init__(
        self,
        size: int,
        changed: Callable[[int, int], None] = lambda used, size: None,
        trim: Callable[[], None] = lambda: None,
        least: int = 0,
    ) -> None:
        self._whole = size
        self._least = least
        self._aside = 0
        self._lasting = 0
        """Bytes of those set aside that never make room for others."""
        self.spare: Callable[[], bool] = lambda: False
        self._changed = changed
        self._trim = trim
        self._freed = 0
        """Bytes given back since free memory last went back to the system."""
        self._queue: deque[object] = deque()
        self._brief = 0
        """Bytes that were waited for: held for moments only."""
        self._condition = threading.Condition()
        self.used = 0

    @property
    def size(self) -> int:
        """Bytes that requests may take together: all but those set aside."""
        return max(self._least, self._whole - self._aside)

    @property
    def most(self) -> int:
        """Bytes that requests could take together if all models that can make room had done so."""
        return max(self._least, self._whole - self._lasting)

    @property
    def most_aside(self) -> int:
        """Bytes that could be set aside for a model if all others had made room."""
        return max(0, self._whole - self._least - self._lasting)

    def set_aside(self, size: int, lasts: bool = False) -> None:
        """Keep bytes for something other than requests, such as a model; idle models make room for it.

        Args:
            size: in bytes.
            lasts: whether it never makes room; it is counted even where it does not fit.

        Raises:
            OutOfMemoryError: they are in use, or too little would be left for requests.
        """
        while not self._set_aside(size, lasts):
            if self._is_vain(size, lasts) or not self.spare():
                if lasts:
                    self._set_aside(size, lasts, must_fit=False)
                    break
                raise OutOfMemoryError(
                    "The models in memory and the requests that are being answered leave too little memory for another "
                    "model; try again in a few seconds, or ask for one that is in memory."
                )
        self._changed(self.used, self.size)

    def take_back(self, size: int, lasts: bool = False) -> None:
        """Leave bytes that were set aside to requests again."""
        with self._condition:
            self._aside -= size
            self._lasting -= size if lasts else 0
            self._condition.notify_all()
        self._changed(self.used, self.size)

    def take(self, size: int, held: int, purpose: Purpose) -> None:
        """Take bytes; see `Account.take`.

        Args:
            size: in bytes.
            held: by the same request already.
            purpose: for what.
        """
        self._tidy(size)
        while not self._try_take(size, held, purpose):
            if self.used + size > self.most or not self.spare():
                raise OutOfMemoryError(_BUSY)
        self._changed(self.used, self.size)

    def give(self, size: int) -> None:
        """Give bytes back."""
        if size:
            with self._condition:
                self.used -= size
                self._freed += size
                self._condition.notify_all()
            self._changed(self.used, self.size)

    def wait(
        self,
        size: int,
        held: int,
        purpose: Purpose,
        check: Callable[[], None],
        share: int,
        aside: threading.Semaphore | None,
    ) -> None:
        """Take bytes once others that have waited leave enough; see `Account.wait`."""
        self._tidy(size)
        # Others' pixels are gone in a moment. Models make room only if what stays, answers and bodies, is in the way.
        while self.size < self.used - self._brief + size <= self.most and self.spare():
            pass
        with self._condition:
            self._must_fit(size, held, purpose)
            fits = self.used + size <= self.size and (not self._queue or size * share * _BESIDE <= self.size)
            if fits:
                self.used += size
                self._brief += size
        if not fits and aside is not None:
            # Those ahead in the queue may need this processor, and would otherwise wait for this thread for ever.
            aside.release()
            try:
                self._queued(size, check)
            finally:
                aside.acquire()
        elif not fits:
            self._queued(size, check)
        self._changed(self.used, self.size)

    def leave(self, size: int, kept: int) -> None:
        """Give bytes back that were waited for, but for some that are kept for longer."""
        with self._condition:
            self._brief -= size
            self._condition.notify_all()
        self.give(size - kept)

    def _queued(self, size: int, check: Callable[[], None]) -> None:
        place = object()
        with self._condition:
            self._queue.append(place)
            try:
                while self._queue[0] is not place or self.used + size > self.size:
                    # Answers may be held for minutes: only those that are held for moments are worth a wait.
                    if self.used - self._brief + size > self.size:
                        raise OutOfMemoryError(_BUSY)
                    self._condition.wait(_GLANCE)
                    check()
                self.used += size
                self._brief += size
            finally:
                self._queue.remove(place)  # also after an error, or all behind it would wait in vain
                self._condition.notify_all()

    def _set_aside(self, size: int, lasts: bool, must_fit: bool = True) -> bool:
        with self._condition:
            if must_fit and max(self.used, self._least) + size > self._whole - self._aside:
                return False
            self._aside += size
            self._lasting += size if lasts else 0
            return True

    def _is_vain(self, size: int, lasts: bool) -> bool:
        """Whether bytes would not fit even if all models made room that can."""
        return not lasts and max(self.used, self._least) + size > self._whole - self._lasting

    def _try_take(self, size: int, held: int, purpose: Purpose) -> bool:
        with self._condition:
            self._must_fit(size, held, purpose)
            if self.used + size > self.size:
                return False
            self.used += size
            return True

    def _tidy(self, size: int) -> None:
        """Give free memory back before much is taken: the allocator may hold it in pieces too small for that."""
        if size >= _LARGE and self._freed >= _MUCH:
            self._freed = 0
            self._trim()

    def _must_fit(self, size: int, held: int, purpose: Purpose) -> None:
        if held + size > self.most:
            raise purpose.error(
                f"{purpose.subject} would take {held + size:,} bytes of memory, more than the {self.most:,} that all "
                f"requests may take together (SEEWHY_MEMORY_BYTES); {purpose.advice}."
            )
