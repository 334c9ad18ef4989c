"""What one request holds of the memory that all requests share; see `seewhy.app.memory.budget`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seewhy.app.memory.budget import MemoryBudget, Purpose


class Account:
    """What one request holds of a budget, until it is closed.

    Args:
        budget: None for one without bounds.
    """

    def __init__(self, budget: MemoryBudget | None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self.held = 0

    def take(self, size: int, purpose: Purpose) -> None:
        """Hold so many bytes more.

        Raises:
            OutOfMemoryError: they do not fit at present.
            ServiceError, PictureError: they could never fit; `purpose` has the class.
        """
        with self._lock:
            if self._budget is not None:
                self._budget.take(size, self.held, purpose)
                self.held += size

    def give(self, size: int) -> None:
        """Hold so many bytes less."""
        with self._lock:
            if self._budget is not None:
                self.held -= size
                self._budget.give(size)

    def keep(self, size: int, purpose: Purpose) -> None:
        """Hold so many bytes in all, for the rest is freed; errors as `take`."""
        more = size - self.held
        if more > 0:
            self.take(more, purpose)
        else:
            self.give(-more)

    @contextmanager
    def holding(self, size: int, purpose: Purpose) -> Iterator[None]:
        """Hold so many bytes more for what happens inside; errors as `take`."""
        self.take(size, purpose)
        try:
            yield
        finally:
            self.give(size)

    def wait(
        self,
        size: int,
        purpose: Purpose,
        check: Callable[[], None],
        share: int,
        aside: threading.Semaphore | None = None,
    ) -> None:
        """Hold more bytes for a moment, as soon as there is room: first come, first served, but small pictures pass.

        `leave` gives them back.

        Args:
            size: in bytes.
            purpose: for what.
            check: called while this waits; raises once the client has left or the deadline has passed.
            share: how many small pictures may pass at a time.
            aside: held by the caller, and released while this waits.

        Raises:
            OutOfMemoryError: answers and bodies of others leave too little.
            ServiceError, PictureError: they could never fit.
        """
        if self._budget is not None:
            self._budget.wait(size, self.held, purpose, check, share, aside)
            with self._lock:
                self.held += size

    def leave(self, size: int, kept: int = 0) -> None:
        """Give back what `wait` has taken, except for bytes that are kept for longer."""
        with self._lock:
            if self._budget is not None:
                self.held -= size - kept
                self._budget.leave(size, kept)

    def close(self) -> None:
        """Give everything back, and count no more."""
        with self._lock:
            if self._budget is not None:
                self._budget.give(self.held)
                self._budget, self.held = None, 0


_account: ContextVar[Account | None] = ContextVar("account", default=None)


def begin(account: Account) -> None:
    """Make an account that of the request which this thread answers from now on."""
    _account.set(account)


def current() -> Account:
    """Return the account of the request that this thread answers; without one, an account without bounds."""
    return _account.get() or Account(None)
