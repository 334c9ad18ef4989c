"""How long a client may take to send a request and to read its answer; then its connection is shut.

A thread that reads from a client waits for its bytes, however slowly they come. gunicorn's main loop, which wakes every
second, shuts connections whose time is up: the thread finds the end of its input, and is free.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Patience:
    """Connections that a thread waits for, and until when."""

    def __init__(self) -> None:
        self._until: dict[int, tuple[float, socket.socket]] = {}
        self._lock = threading.Lock()

    def allow(self, connection: object, seconds: float) -> None:
        """Shut a connection that many seconds from now, unless `release` comes first; what is no socket stays."""
        if isinstance(connection, socket.socket):
            with self._lock:
                self._until[id(connection)] = (time.monotonic() + seconds, connection)

    def release(self, connection: object) -> None:
        """Leave a connection alone."""
        with self._lock:
            self._until.pop(id(connection), None)

    @contextmanager
    def allowing(self, connection: object, seconds: float) -> Iterator[None]:
        """Allow so long for what happens inside."""
        self.allow(connection, seconds)
        try:
            yield
        finally:
            self.release(connection)

    def shut_late(self) -> None:
        """Shut the connections whose time is up."""
        now = time.monotonic()
        with self._lock:
            late = [name for name, (until, _) in self._until.items() if until < now]
            for name in late:
                with suppress(OSError):  # closed by now
                    self._until.pop(name)[1].shutdown(socket.SHUT_RDWR)


patience = Patience()
"""Of this process."""

stopping = threading.Event()
"""Set once this process has been told to stop."""
