"""How long a client may take to send a request and to read its answer; then its connection is shut.

A thread that reads from a client waits for its bytes, however slowly they come. gunicorn's main loop, which wakes every
second, shuts connections whose time is up: the thread finds the end of its input, and is free.
"""

import io
import mmap
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest, ClientDisconnected

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PIECE = 2**16
"""Bytes of a body that are read at a time."""


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
"""Set once this process has been told to stop, and all others of the service with it."""

all_stop = mmap.mmap(-1, 1)
"""Whether all processes of the service stop: not 0. It is shared by those that are forked from this one."""

answering = threading.local()
"""What this thread answers: `request`, as gunicorn has parsed it."""


class Patient:
    """WSGI middleware that gives clients a time to send a body, and to read each part of an answer.

    Args:
        inner: the application.
        upload_seconds: in all, for a body.
        download_seconds: for an answer, or each part of one that comes in parts.
    """

    def __init__(self, inner: "WSGIApplication", upload_seconds: float, download_seconds: float) -> None:
        self._inner = inner
        self._upload_seconds = upload_seconds
        self._download_seconds = download_seconds

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        connection = environ.get("gunicorn.socket")
        if connection is None:  # of other servers no connection is known
            return self._inner(environ, start_response)
        patience.release(connection)  # the head has been read
        is_chunked = "HTTP_TRANSFER_ENCODING" in environ
        length = None if is_chunked else int(environ.get("CONTENT_LENGTH") or 0)
        body = _Body(environ["wsgi.input"], connection, self._upload_seconds, length)
        environ["wsgi.input"] = io.BufferedReader(body, _PIECE)
        asked = getattr(answering, "request", None)

        def start(
            status: str,
            headers: list[tuple[str, str]],
            exc_info: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None = None,
            /,
        ) -> "Callable[[bytes], Any]":
            if asked is not None and not body.is_read:
                asked.force_close()  # gunicorn would have this thread wait for the rest
            return start_response(status, headers, exc_info)

        return _Answer(self._inner(environ, start), connection, self._download_seconds)


class _Body(io.RawIOBase):
    """The body of a request, for which a client has so many seconds in all.

    Args:
        inner: gunicorn's.
        connection: that it comes from.
        seconds: for all of it.
        length: of it in bytes; None for one that comes in chunks and says where it ends.
    """

    def __init__(self, inner: Any, connection: object, seconds: float, length: int | None) -> None:
        self._inner = inner
        self._connection = connection
        self._left = seconds
        self._length = length
        self.is_read = length == 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        started = time.monotonic()
        try:
            with patience.allowing(self._connection, max(0.0, self._left)):
                found: bytes = self._inner.read(len(view))
        except ParseException as error:
            raise BadRequest("The chunks of the body are not what they say.") from error
        except OSError as error:
            raise ClientDisconnected from error
        self._left -= time.monotonic() - started
        if self._length is None:
            self.is_read = not found
        else:
            self._length -= len(found)
            self.is_read = not self._length
        view[: len(found)] = found
        return len(found)


class _Answer:
    """An answer, each part of which a client has so many seconds to read."""

    def __init__(self, inner: Iterable[bytes], connection: object, seconds: float) -> None:
        self._inner = inner
        self._parts = iter(inner)
        self._connection = connection
        self._seconds = seconds

    def __iter__(self) -> "_Answer":
        return self

    def __next__(self) -> bytes:
        patience.release(self._connection)  # the part before this one is written; making the next takes its time
        try:
            return next(self._parts)
        finally:
            # Also after the last part: a head without a body, or the end of chunks, is still to be sent.
            patience.allow(self._connection, self._seconds)

    def close(self) -> None:
        patience.release(self._connection)
        getattr(self._inner, "close", lambda: None)()
