"""gunicorn's worker of threads, for clients that are slow, many, or late; and the process that watches the workers.

A thread answers; it never waits for the head of a request, nor for a client to close its end. The main loop does, for
all connections at once.
"""

import atexit
import logging
import mmap
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ
from socket import SHUT_RD, SHUT_WR, socket
from typing import Any, NoReturn

from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from gunicorn.http import get_parser
from gunicorn.workers.gthread import TConn, ThreadWorker

from app.heaps import Rest
from app.patience import all_stop, answering, patience, stopping

HEADER_SECONDS = 5.0
"""That a client may take to send the head of a request, and a thread to parse it."""

HEADER_BYTES = 2**16
"""That a head may have; connections that send more without an end are shut."""

LINGER_SECONDS = 2.0
"""That a connection stays half open for what its client still sends, since the last of it came..."""

MOST_LINGER_SECONDS = 30.0
"""...and in all. A client that is refused while it sends reads the answer once it is through."""

LOOK_SECONDS = 0.25
"""Between two looks at all connections, at least; with each event they would take the time that requests need."""

NOTIFY_SECONDS = 1.0
"""Between two signs of life to the first process, at least; that one waits for a minute or longer."""

RETRY_SECONDS = 10.0
"""Between two attempts of a worker to get what it needs: its application, the default model."""

_WAITS = (0.0, 1.0, 2.0, 4.0, 8.0, RETRY_SECONDS)
"""Before another worker takes the place of the first, second, ... that was lost before it answered."""

_PIECE = 2**16
_UNREAD = 2**20  # bytes of a refused upload that are thrown away at a time: more, for fewer rounds of the main loop
_END = b"\r\n\r\n"


class Log(Logger):  # type: ignore[misc]
    """gunicorn's log, without its line for each request, which it would make up for nobody."""

    def access(self, *_: Any) -> None:
        """Leave it to the application."""


class _Told:
    """One byte that the first process and a worker share."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, worker: "PatientWorker", _: type | None = None) -> bool:
        return bool(worker.shared[self._place])

    def __set__(self, worker: "PatientWorker", told: bool) -> None:
        worker.shared[self._place] = told


class PatientWorker(ThreadWorker):  # type: ignore[misc]
    """A connection gets a thread once its client has sent the head of a request, and a client has so long for the rest.

    While the service stops, its workers go on accepting until what they have accepted is answered: `Admission` refuses
    the rest. A worker that stops alone leaves new connections to the others.
    """

    answers = _Told(0)
    """Whether it has the default model, and takes new requests; the first process sees it too."""

    others_answer = _Told(1)
    """Whether other workers do; the first process says so."""

    leaves = _Told(2)
    """Whether it is to end; the first process says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # in the first process, before the fork
        self.shared = mmap.mmap(-1, 3)
        self._lingering: deque[TConn] = deque()
        self._rest = Rest()
        self._next_try = 0.0
        self._next_look = 0.0
        self._next_notify = 0.0
        self.wsgi: Any = None

    def load_wsgi(self) -> None:
        """Make the application, or else what says that there is none.

        The first process has made one: where none can be made any more, a file has been broken meanwhile, and other
        workers may still answer. So this one tries again until it is mended.
        """
        if not self._stays():
            self._exit(0)
        try:
            self.wsgi = self.app.wsgi()
        except Exception as error:
            from app.errors import EXPECTED  # imports PyTorch, which must wait for `share_processors`
            from app.stand_in import stand_in

            self.log.error("No worker can start: %s", error, exc_info=not isinstance(error, EXPECTED))
            self.wsgi = self.wsgi or stand_in()
            self._next_try = time.monotonic() + RETRY_SECONDS

    @property
    def _service(self) -> Any:
        """What the application answers with; None while there is none."""
        return self.wsgi.extensions.get("seewhy")

    def _stays(self) -> bool:
        """Find out whether to go on; a signal to stop is lost on a process that has just begun."""
        if self.leaves or self.ppid != os.getppid():
            self.alive = False
        return bool(self.alive)

    def enqueue_req(self, conn: TConn) -> None:
        """Wait for the head of a request in the main loop, and not in a thread."""
        if conn.parser is None:
            conn.parser = get_parser(self.cfg, conn.sock, conn.client)
        conn.head = bytearray(conn.parser.unreader.take_buffered())
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + HEADER_SECONDS
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self._read_head, conn))
        self._pass_on(conn)

    def _read_head(self, conn: TConn, connection: socket) -> None:
        """Read what has come of a head."""
        found = _received(connection, _PIECE)
        if found is not None:
            conn.head += found
            self._pass_on(conn, len(found))

    def _pass_on(self, conn: TConn, found: int | None = None) -> None:
        """Give a connection to a thread, if the head of a request is there, or nothing more can come."""
        whole = _END in conn.head[-(found or len(conn.head)) - len(_END) :]
        if not whole and len(conn.head) > HEADER_BYTES:
            with suppress(OSError):  # closed by now
                conn.sock.shutdown(SHUT_RD)  # the thread finds the end of its input
            whole = True
        if whole or found == 0:
            self.poller.unregister(conn.sock)
            self.pending_conns.remove(conn)
            conn.parser.unreader.unread(bytes(conn.head))
            conn.head = bytearray()
            conn.data_ready = True
            super().enqueue_req(conn)

    def handle(self, conn: TConn) -> Any:
        """Parse and answer a request; `Patient` gives it another time once it is parsed."""
        patience.allow(conn.sock, HEADER_SECONDS)
        try:
            return super().handle(conn)
        finally:
            patience.release(conn.sock)
            answering.request = None

    def finish_request(self, conn: TConn, fs: Any) -> None:
        """Keep a connection, or let go of it; gunicorn's main loop would wait for each client to close its end."""
        if not fs.cancelled() and not fs.exception() and fs.result():
            super().finish_request(conn, fs)
            return
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(SHUT_WR)
        except OSError:  # closed by now
            self._close(conn)
            return
        conn.until = time.monotonic() + MOST_LINGER_SECONDS
        conn.timeout = time.monotonic() + LINGER_SECONDS
        self._lingering.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self._drain, conn))

    def _drain(self, conn: TConn, connection: socket) -> None:
        """Read what a client still sends: with some of it unread, the system would take back the answer."""
        found = _received(connection, _UNREAD)
        if found:
            conn.timeout = min(time.monotonic() + LINGER_SECONDS, conn.until)
        elif found is not None:
            self._let_go(conn)

    def _let_go(self, conn: TConn) -> None:
        self.poller.unregister(conn.sock)
        self._lingering.remove(conn)
        self._close(conn)

    def _close(self, conn: TConn) -> None:
        self.nr_conns -= 1
        conn.close()

    def murder_pending(self) -> None:
        """Close connections that sent no head, shut those that are too slow; the main loop asks after each event."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        super().murder_pending()
        patience.shut_late()
        if self._service:
            self._rest.look(self._service.engine.worked)
        for conn in [one for one in self._lingering if one.timeout < now]:
            self._let_go(conn)
        if self._stays():
            self._prepare()
        self.set_accept_enabled(self.alive and self.nr_conns < self.worker_connections)

    def is_parent_alive(self) -> bool:
        """Find out whether the first process is there; without it connections are not kept while this one ends."""
        there = bool(super().is_parent_alive())
        self.alive = self.alive and there
        return there

    def notify(self) -> None:
        """Tell the first process that this one lives; the main loop asks before each event."""
        now = time.monotonic()
        if now >= self._next_notify:
            self._next_notify = now + NOTIFY_SECONDS
            super().notify()

    def _prepare(self) -> None:
        """Begin to get what is not there, the application or the default model; other workers may have it."""
        if time.monotonic() < self._next_try:
            return
        if not self._service:
            self.load_wsgi()
        if self._service:
            self._next_try = time.monotonic() + RETRY_SECONDS
            self._load_default()

    def _load_default(self) -> None:
        try:
            self._service.require_ready()
        except Exception as error:  # it has begun to load, or the log says why not
            from app.errors import EXPECTED  # imports PyTorch, which must wait for `share_processors`

            if not isinstance(error, EXPECTED):
                self.log.error("The default model cannot be loaded: %s", error)

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begin to accept once there is a model, where others answer until then; go on while the service stops."""
        if not self.alive:
            self.leaves = True  # also where the signal came from somebody else
        if not self.alive and all_stop[0]:
            stopping.set()
            super().set_accept_enabled(True)
            return
        self.answers = self.alive and self._service is not None and self._service.has_default
        super().set_accept_enabled(enabled and (self.answers or not self.others_answer))

    def run(self) -> None:
        """Serve until told to stop, or until a fault of this program, and end the process."""
        status = 0
        try:
            self._prepare()
            super().run()
        except SystemExit as end:
            status = int(end.code or 0)
        except Exception:
            self.log.exception("Exception in worker process")
            status = 1
        self.answers = False
        self._exit(status)

    def _exit(self, status: int) -> NoReturn:
        """End the process.

        As Python ends it waits for threads that answer, and kills those that are in the midst of something, such as
        loading a model; C++ takes that for a fault.
        """
        self.log.info("Worker exiting (pid: %s)", self.pid)
        atexit._run_exitfuncs()  # the collector of traces, among others
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _received(connection: socket, most: int) -> bytes | None:
    """Return at most so many bytes of what has come; none once the client has closed its end, None if more may come."""
    try:
        return connection.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Watcher(Arbiter):  # type: ignore[misc]
    """gunicorn's first process; it tells workers what the others do.

    That is whether one of them is to stop, or all of them, and whether others answer while one loads its model. A
    worker that cannot start ends none of the others.
    """

    WORKER_BOOT_ERROR = APP_LOAD_ERROR = -1  # no exit status is negative: gunicorn would end all workers

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._outdated = 0
        """The age of the youngest worker that is not to stay."""
        self._lost = 0
        """Workers that have ended one after another before they ever answered."""
        self._next_start = 0.0

    def tell(self, worker: PatientWorker) -> None:
        """Tell a worker whether others answer."""
        others = (other for other in self.WORKERS.values() if other is not worker and not other.leaves)
        worker.others_answer = any(other.answers for other in others)

    def manage_workers(self) -> None:
        """Start workers that are missing, and end those that are not to stay once those that stay answer."""
        there = [worker for worker in self.WORKERS.values() if not worker.leaves]
        current = [worker for worker in there if worker.age > self._outdated]
        current.sort(key=lambda worker: (worker.answers, worker.age))
        staying = current[max(0, len(current) - self.num_workers) :]
        if time.monotonic() >= self._next_start:
            for _ in range(self.num_workers - len(staying)):
                self.spawn_worker()
        is_whole = len(staying) == self.num_workers and all(worker.answers for worker in staying)
        if is_whole:
            self._lost = 0
        for worker in there:
            if worker not in staying and (is_whole or not worker.answers):
                self._end(worker)
        for worker in self.WORKERS.values():
            self.tell(worker)

    def reap_workers(self) -> None:
        """Forget those that have ended; wait longer and longer with the next one where they end before they answer."""
        before = dict(self.WORKERS)
        super().reap_workers()
        for pid in before.keys() - self.WORKERS.keys():
            if not before[pid].answers and not before[pid].leaves:
                self._next_start = time.monotonic() + _WAITS[min(self._lost, len(_WAITS) - 1)]
                self._lost += 1

    def reload(self) -> None:
        """Start as many workers anew; `manage_workers` ends those before them once these answer.

        gunicorn would wait for that, and hear no signal meanwhile. The settings, which it reads anew, are the same.
        """
        self._outdated = self.worker_age
        self.manage_workers()

    def stop(self, graceful: bool = True) -> None:
        """Stop all workers."""
        if not self.reexec_pid and not self.master_pid:  # another first process has workers at the same address
            all_stop[0] = 1
        for worker in self.WORKERS.values():
            worker.leaves = True
        super().stop(graceful)

    def _end(self, worker: PatientWorker) -> None:
        worker.leaves = True
        self.kill_worker(worker.pid, signal.SIGTERM)


def head_read(_worker: Any, request: Any) -> None:
    """gunicorn's `pre_request` hook: the head of a request has been read."""
    answering.request = request
