"""The memory budget of all requests of a process: bodies, pixels, tensors and answers count before they are allocated.

A model's outputs count once their pass is over and they belong to a request. Each pass has memory of its own (`limit`).

Work that does not fit at present is refused with 503, after idle models have been dropped; work that could never fit,
with 413. Requests wait only for pixels, which are held briefly; an answer may be held as long as its client reads.
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
"""Free memory may be trimmed before this many bytes are reserved at once, if this many have been released."""

_BESIDE = 8
"""Pictures may pass the queue if one for each processor fits into this fraction of the budget."""

_BUSY = "The requests in progress leave too little memory for this one at present; try again in a few seconds."


@dataclass(frozen=True)
class Purpose:
    """A purpose of memory.

    Attributes:
        subject: subject of the sentence of a refusal.
        error: raised if the bytes could never fit.
        advice: what to do then.
    """

    subject: str
    error: type[Exception]
    advice: str


BODY = Purpose("The body", BodyTooLargeError, "send a smaller one")
PIXELS = Purpose("The picture", PictureTooLargeError, "use a smaller one")
CAPTURE = Purpose("The capture", CaptureTooLargeError, "name fewer layers or kinds")
OUTPUTS = Purpose("The model's output", AnswerTooLargeError, "use fewer classes or pictures")
ANSWER = Purpose("The answer", AnswerTooLargeError, "use fewer classes or values, or a smaller picture")


class MemoryBudget:
    """Bytes that all requests of a process may take together. Thread-safe.

    Args:
        size: size of the budget, before anything is set aside.
        changed: called after each change with the bytes in use and the size of the budget.
        trim: returns free memory to the system; called before much is taken after much was given back.
        least: bytes that always remain for requests.

    `spare` drops the least recently used idle model and returns whether there was one. It is called before a refusal of
    bytes that would fit without models, and without the lock, because dropping a model gives memory back.
    """

    def __init__(
        self,
        size: int,
        changed: Callable[[int, int], None] = lambda occupancy, size: None,
        trim: Callable[[], None] = lambda: None,
        least: int = 0,
    ) -> None:
        self._whole = size
        self._least = least
        self._aside = 0
        self._lasting = 0
        """Bytes set aside permanently."""
        self.spare: Callable[[], bool] = lambda: False
        self._changed = changed
        self._trim = trim
        self._freed = 0
        """Bytes released since the last trim."""
        self._queue: deque[object] = deque()
        self._brief = 0
        """Bytes taken by `wait`, which are held only briefly."""
        self._condition = threading.Condition()
        self.occupancy = 0

    @property
    def size(self) -> int:
        """Bytes that requests may take together: all except those set aside."""
        return max(self._least, self._whole - self._aside)

    @property
    def most(self) -> int:
        """Bytes that requests could take together if all droppable models were dropped."""
        return max(self._least, self._whole - self._lasting)

    @property
    def most_aside(self) -> int:
        """Bytes that could be set aside for a model if all droppable ones were dropped."""
        return max(0, self._whole - self._least - self._lasting)

    def set_aside(self, size: int, lasts: bool = False) -> None:
        """Reserve bytes for something other than requests, such as a model, dropping idle models if necessary.

        Args:
            lasts: whether the reservation is permanent; it then counts even if it does not fit.

        Raises:
            OutOfMemoryError: the bytes are in use, or too little would be left for requests.
        """
        while not self._set_aside(size, lasts):
            # In vain if the bytes would not fit even without all droppable models.
            is_vain = not lasts and max(self.occupancy, self._least) + size > self._whole - self._lasting
            if is_vain or not self.spare():
                if lasts:  # cannot be refused: it counts, however little that leaves for requests
                    self._set_aside(size, lasts, must_fit=False)
                    break
                raise OutOfMemoryError(
                    "The models in memory and the requests in progress leave too little memory for another model; try "
                    "again in a few seconds, or use a model that is already loaded."
                )
        self._changed(self.occupancy, self.size)

    def take_back(self, size: int, lasts: bool = False) -> None:
        """Return bytes that were set aside to requests."""
        with self._condition:
            self._aside -= size
            self._lasting -= size if lasts else 0
            self._condition.notify_all()
        self._changed(self.occupancy, self.size)

    def take(self, size: int, holdings: int, purpose: Purpose) -> None:
        """Take bytes; see `Account.take`."""
        self._tidy(size)
        while not self._try_take(size, holdings, purpose):
            if self.occupancy + size > self.most or not self.spare():
                raise OutOfMemoryError(_BUSY)
        self._changed(self.occupancy, self.size)

    def give(self, size: int) -> None:
        """Give bytes back."""
        if size:
            with self._condition:
                self.occupancy -= size
                self._freed += size
                self._condition.notify_all()
            self._changed(self.occupancy, self.size)

    def wait(
        self,
        size: int,
        holdings: int,
        purpose: Purpose,
        check: Callable[[], None],
        share: int,
        aside: threading.Semaphore | None,
    ) -> None:
        """Take bytes once earlier waiters leave enough; see `Account.wait`."""
        self._tidy(size)
        # Pixels of others are freed soon. Models are dropped only if long-lived bytes, answers and bodies, are in the
        # way.
        while self.size < self.occupancy - self._brief + size <= self.most and self.spare():
            pass
        with self._condition:
            self._must_fit(size, holdings, purpose)
            # Small pictures pass the queue: one panorama at its head would hold up everybody.
            fits = self.occupancy + size <= self.size and (not self._queue or size * share * _BESIDE <= self.size)
            if fits:
                self.occupancy += size
                self._brief += size
        if not fits and aside is not None:
            # Waiters ahead in the queue may need this processor, and would otherwise wait for this thread forever.
            aside.release()
            try:
                self._queued(size, check)
            finally:
                aside.acquire()
        elif not fits:
            self._queued(size, check)
        self._changed(self.occupancy, self.size)

    def leave(self, size: int, remainder: int) -> None:
        """Give back bytes of `wait`, except a remainder, which stays for longer."""
        with self._condition:
            self._brief -= size
            self._condition.notify_all()
        self.give(size - remainder)

    def _queued(self, size: int, check: Callable[[], None]) -> None:
        place = object()
        with self._condition:
            self._queue.append(place)
            try:
                while self._queue[0] is not place or self.occupancy + size > self.size:
                    # Answers may be held for minutes; only bytes that are held briefly are worth a wait.
                    if self.occupancy - self._brief + size > self.size:
                        raise OutOfMemoryError(_BUSY)
                    self._condition.wait(_GLANCE)
                    check()
                self.occupancy += size
                self._brief += size
            finally:
                self._queue.remove(place)  # also after an error, or all behind it would wait forever
                self._condition.notify_all()

    def _set_aside(self, size: int, lasts: bool, must_fit: bool = True) -> bool:
        with self._condition:
            if must_fit and max(self.occupancy, self._least) + size > self._whole - self._aside:
                return False
            self._aside += size
            self._lasting += size if lasts else 0
            return True

    def _try_take(self, size: int, holdings: int, purpose: Purpose) -> bool:
        with self._condition:
            self._must_fit(size, holdings, purpose)
            if self.occupancy + size > self.size:
                return False
            self.occupancy += size
            return True

    def _tidy(self, size: int) -> None:
        """Trim free memory before much is taken: the allocator may hold it in pieces that are too small.

        Trimmed pages are faulted in again by the next requests, some milliseconds for each. So this waits until the
        released bytes, if the allocator still held them all, would not fit into the budget beside those in use.
        """
        if size >= _LARGE and self._freed >= max(_MUCH, self.size - self.occupancy - size):
            self._freed = 0
            self._trim()

    def _must_fit(self, size: int, holdings: int, purpose: Purpose) -> None:
        if holdings + size > self.most:
            raise purpose.error(
                f"{purpose.subject} would take {holdings + size:,} bytes of memory, more than the {self.most:,} "
                f"allowed for all requests together (SEEWHY_MEMORY_BYTES); {purpose.advice}."
            )
