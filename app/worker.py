"""gunicorn's worker of threads, for clients that are slow, many, or late."""

import threading
import time
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

from app.patience import patience, stopping

HEADER_SECONDS = 5.0
"""That a client may take to send the head of a request, once it has begun."""


class PatientWorker(ThreadWorker):  # type: ignore[misc]
    """A connection gets a thread once its client has sent something, and a client has so long for the rest.

    While the process stops, it goes on accepting until what it has accepted is answered: `Admission` refuses the rest.
    """

    def enqueue_req(self, conn: TConn) -> None:
        """Wait for the first bytes of a new connection in the main loop, and not in a thread."""
        if conn.initialized or conn.data_ready:
            super().enqueue_req(conn)
            return
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + HEADER_SECONDS
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def handle(self, conn: TConn) -> Any:
        """Read and answer a request; `head_read` comes in between."""
        patience.allow(conn.sock, HEADER_SECONDS)
        _reading.connection = conn.sock
        try:
            return super().handle(conn)
        finally:
            patience.release(conn.sock)

    def murder_pending(self) -> None:
        """Close connections that sent nothing, shut those that are too slow; the main loop does it every second."""
        super().murder_pending()
        patience.shut_late()

    def set_accept_enabled(self, enabled: bool) -> None:
        """Go on accepting while the process stops."""
        if enabled or self.alive:
            super().set_accept_enabled(enabled)
        else:
            stopping.set()


_reading = threading.local()
"""The connection that this thread reads the head of a request from."""


def head_read(_worker: Any, _request: Any) -> None:
    """gunicorn's `pre_request` hook: the head of a request has been read."""
    patience.release(getattr(_reading, "connection", None))
