"""The account of one request in the memory budget; see `seewhy.app.memory.budget`."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seewhy.app.memory.budget import MemoryBudget, Purpose

UNLIMITED = MemoryBudget(sys.maxsize)
"""The budget of work without a request, and of memory that a request takes after its end."""


class Account:
    """The bytes that one request holds of a budget, until the account is closed."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self.holdings = 0

    def take(self, size: int, purpose: Purpose) -> None:
        """Take bytes.

        Raises:
            OutOfMemoryError: the bytes do not fit at present.
            ServiceError, PictureError: the bytes could never fit; `purpose` has the class.
        """
        with self._lock:
            self._budget.take(size, self.holdings, purpose)
            self.holdings += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.holdings -= size
            self._budget.give(size)

    def keep(self, size: int, purpose: Purpose) -> None:
        """Hold this many bytes in total, because the rest has been freed; errors as in `take`."""
        more = size - self.holdings
        if more > 0:
            self.take(more, purpose)
        else:
            self.give(-more)

    @contextmanager
    def holding(self, size: int, purpose: Purpose) -> Iterator[None]:
        """Hold bytes inside the context; errors as in `take`."""
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
        """Take bytes briefly, waiting until there is room: first come, first served, but small pictures may pass.

        `leave` gives them back.

        Args:
            check: called while this waits; raises once the client has left or the deadline has passed.
            share: number of small pictures that may pass at once.
            aside: semaphore held by the caller, released while this waits.

        Raises:
            OutOfMemoryError: answers and bodies of others leave too little.
            ServiceError, PictureError: the bytes could never fit.
        """
        self._budget.wait(size, self.holdings, purpose, check, share, aside)
        with self._lock:
            self.holdings += size

    def leave(self, size: int, remainder: int = 0) -> None:
        """Give back the bytes of `wait`, except a remainder, which stays for longer."""
        with self._lock:
            self.holdings -= size - remainder
            self._budget.leave(size, remainder)

    def close(self) -> None:
        """Give everything back and stop counting."""
        with self._lock:
            self._budget.give(self.holdings)
            self._budget, self.holdings = UNLIMITED, 0


_account: ContextVar[Account | None] = ContextVar("account", default=None)


def begin(account: Account) -> None:
    """Set the account of this thread's request."""
    _account.set(account)


def current() -> Account:
    """Return the account of this thread's request; without one, an account without limit."""
    return _account.get() or Account(UNLIMITED)
