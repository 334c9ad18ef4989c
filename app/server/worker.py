"""gunicorn's threaded worker, which waits when files run out, and never for clients that are silent or stay."""

import errno
import os
import time
from contextlib import suppress
from socket import SHUT_RDWR, SHUT_WR, socket
from typing import Any

from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from seewhy.app.server.readiness import State
from seewhy.app.system.stopping import stopping

PAUSE_SECONDS = 0.05
"""Seconds between two attempts to accept a connection while no file is free."""

WARNING_SECONDS = 60.0
"""Seconds between two log lines about that."""

LINGER_SECONDS, STOP_LINGER_SECONDS = 2.0, 1.0
"""Seconds in which clients may close their connections: after an answer; after the last call, once the worker ends."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Transient errors of `accept`: no file or memory for a connection at the moment."""


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker that survives a lack of files, and leaves new connections to others once it should end."""

    state: State
    """State shared with the first process, which creates it before the fork."""

    next_warning = 0.0

    last_call: float | None = None
    """Time (monotonic) until which connections may send a request, once the worker ends."""

    def accept(self, listener: socket) -> None:
        """Accept a connection, or wait a little if no file is free; gunicorn would end the process."""
        try:
            super().accept(listener)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            if time.monotonic() >= self.next_warning:
                self.next_warning = time.monotonic() + WARNING_SECONDS
                self.log.warning("Connections wait: %s. Allow more open files (ulimit -n).", error.strerror)
            time.sleep(PAUSE_SECONDS)  # the listener stays readable: the main loop would retry without a pause

    def set_accept_enabled(self, enabled: bool) -> None:
        """Start or stop accepting connections; gunicorn's main loop stops before it drains."""
        super().set_accept_enabled(enabled)
        if not enabled and (not self.alive or self.ppid != os.getppid()):
            self._leave()

    def handle(self, conn: TConn) -> Any:
        """Handle a request; once the worker ends, close a connection on which none arrives in time.

        gunicorn would give each silent connection a thread for five seconds, however many wait for one.
        """
        if (
            self.last_call is None
            or conn.initialized
            or conn.wait_for_data(max(0.0, self.last_call - time.monotonic()))
        ):
            stays = super().handle(conn)
            if not stays:
                self._linger(conn)
            return stays
        with suppress(OSError):  # its client has closed it
            conn.sock.shutdown(SHUT_RDWR)  # or the main loop would wait two seconds for its client to do so
        return False

    def _linger(self, conn: TConn) -> None:
        """Wait until the client has closed a connection too, so that it reads its last answer whole (RFC 9112, 9.6).

        gunicorn waits in its main loop, which holds up everybody two seconds for each client that never closes.
        """
        until = time.monotonic() + LINGER_SECONDS
        if self.last_call is not None:
            until = min(until, self.last_call + STOP_LINGER_SECONDS)
        with suppress(OSError):
            conn.sock.shutdown(SHUT_WR)
            while (remaining := until - time.monotonic()) > 0:
                conn.sock.settimeout(remaining)
                if not conn.sock.recv(2**12):
                    break
        with suppress(OSError):
            conn.sock.shutdown(SHUT_RDWR)  # so that the main loop has nothing to wait for

    def _leave(self) -> None:
        """Accept no new connections, and soon close those that have sent no request.

        gunicorn would keep the socket open: clients would connect to it and be cut off once the process ends. It would
        also wait for the first request of a silent connection as long as usual.
        """
        self.alive = False  # gunicorn leaves it True if the first process is gone, and would keep connections long
        self.state.leaves = True
        for listener in self.sockets:
            if stopping.value:
                self._accept_waiting(listener)
            listener.close()
        self.last_call = time.monotonic() + STOP_KEEPALIVE_LINGER
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, self.last_call)

    def _accept_waiting(self, listener: socket) -> None:
        """Accept connections that the system has queued while the service stops; `Admission` informs their clients."""
        while self.nr_conns < self.worker_connections:
            count = self.nr_conns
            self.accept(listener)
            if self.nr_conns == count:
                return
