"""gunicorn's threaded worker, with two changes: it waits when files run out, and closes its socket as it ends."""

import errno
import os
import time
from socket import socket

from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

from seewhy.app.server.readiness import State
from seewhy.app.system.stopping import stopping

PAUSE_SECONDS = 0.05
"""Seconds between two attempts to accept a connection while no file is free."""

WARNING_SECONDS = 60.0
"""Seconds between two log lines about that."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Transient errors of `accept`: no file or memory for a connection at the moment."""


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker that survives a lack of files, and leaves new connections to others once it should end."""

    state: State
    """State shared with the first process, which creates it before the fork."""

    next_warning = 0.0

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

    def _leave(self) -> None:
        """Accept no new connections, and soon close those that have sent no request.

        gunicorn would keep the socket open: clients would connect to it and be cut off once the process ends. It would
        also wait for the first request of a silent connection as long as usual.
        """
        self.alive = False  # gunicorn leaves it True if the first process is gone, and would keep connections long
        self.state.leaves = True
        for listener in self.sockets:
            if stopping.is_set():
                self._accept_waiting(listener)
            listener.close()
        soon = time.monotonic() + STOP_KEEPALIVE_LINGER
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, soon)

    def _accept_waiting(self, listener: socket) -> None:
        """Accept connections that the system has queued: the service stops, and `Admission` tells their clients."""
        while self.nr_conns < self.worker_connections:
            count = self.nr_conns
            self.accept(listener)
            if self.nr_conns == count:
                return
