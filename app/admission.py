"""Who is let in: as many requests with a body at a time as there is room for; the next is refused at once."""

import io
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from app.errors import KINDS, OverloadedError, respond
from app.patience import patience, stopping

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PIECE = 2**16
"""Bytes of a body that are read at a time."""

_BUSY = "As many requests are being answered as this server has room for; try again in a few seconds."
_STOPPING = "This server is stopping; another one, or this one once it has restarted, will answer."


class Admission:
    """WSGI middleware that counts requests from the first byte of their body to the last of their answer.

    Args:
        inner: the application.
        most: requests with a body at a time.
        most_bytes: of their bodies together; one without a length counts as the largest allowed.
        largest: bytes of a body that is allowed.
        upload_seconds: that a client may take to send a body.
        download_seconds: that it may take to read an answer, or each part of one that comes in parts.
    """

    def __init__(
        self,
        inner: "WSGIApplication",
        most: int,
        most_bytes: int,
        largest: int,
        upload_seconds: float,
        download_seconds: float,
    ) -> None:
        self._inner = inner
        self._most = most
        self._most_bytes = most_bytes
        self._largest = largest
        self._upload_seconds = upload_seconds
        self._download_seconds = download_seconds
        self._lock = threading.Lock()
        self.requests = 0
        self.bytes = 0

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        connection = environ.get("gunicorn.socket")
        if environ["REQUEST_METHOD"] in ("GET", "HEAD", "OPTIONS"):
            return _Answer(self._inner(environ, start_response), connection, self._download_seconds)
        size = self._size(environ)
        if stopping.is_set() or not self._admit(size):
            refused = respond(KINDS[OverloadedError], _STOPPING if stopping.is_set() else _BUSY)
            return _Answer(refused(environ, start_response), connection, self._download_seconds)
        try:
            environ["wsgi.input"] = io.BufferedReader(
                _Body(environ["wsgi.input"], connection, self._upload_seconds), _PIECE
            )
            answer = self._inner(environ, start_response)
        except BaseException:
            self._release(size)
            raise
        return _Answer(answer, connection, self._download_seconds, lambda: self._release(size))

    def _size(self, environ: "WSGIEnvironment") -> int:
        """Return how many bytes a body may turn out to have."""
        said = environ.get("CONTENT_LENGTH") or ""
        return min(int(said), self._largest) if said.isascii() and said.isdigit() else self._largest

    def _admit(self, size: int) -> bool:
        with self._lock:
            # One alone is let in, however large: what is too large is refused by those who know why.
            fits = self.requests < self._most and (not self.requests or self.bytes + size <= self._most_bytes)
            if fits:
                self.requests += 1
                self.bytes += size
            return fits

    def _release(self, size: int) -> None:
        with self._lock:
            self.requests -= 1
            self.bytes -= size


class _Body(io.RawIOBase):
    """The body of a request, for which a client has so many seconds in all."""

    def __init__(self, inner: Any, connection: object, seconds: float) -> None:
        self._inner = inner
        self._connection = connection
        self._left = seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        started = time.monotonic()
        with patience.allowing(self._connection, max(0.0, self._left)):
            found: bytes = self._inner.read(len(view))
        self._left -= time.monotonic() - started
        view[: len(found)] = found
        return len(found)


class _Answer:
    """An answer, each part of which a client has so many seconds to read."""

    def __init__(
        self, inner: Iterable[bytes], connection: object, seconds: float, done: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._parts = iter(inner)
        self._connection = connection
        self._seconds = seconds
        self._done = done

    def __iter__(self) -> "_Answer":
        return self

    def __next__(self) -> bytes:
        patience.release(self._connection)  # the part before this one is written; making the next takes its time
        part = next(self._parts)
        patience.allow(self._connection, self._seconds)
        return part

    def close(self) -> None:
        patience.release(self._connection)
        done, self._done = self._done, None
        try:
            getattr(self._inner, "close", lambda: None)()
        finally:
            if done is not None:
                done()
