"""Who is let in: as many requests at a time as there is room for; the next is refused at once.

Probes, metrics and pages are always let in, as is what leads nowhere.
"""

import threading
from typing import Any

from flask import Flask, Response, g, request

from app.access import is_open
from app.errors import NoMoreError, OverloadedError
from app.patience import stopping

_BUSY = "As many requests are being answered as this server has room for; try again in a few seconds."
_STOPPING = "This server is stopping; another one, or this one once it has restarted, will answer."


class Admission:
    """Counts requests, and the bytes of their bodies, until they are answered; a stream until its end.

    Args:
        most: requests at a time.
        most_bytes: of their bodies together.
        largest: bytes of a body that is allowed; one without a length counts as such.
    """

    def __init__(self, most: int, most_bytes: int, largest: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._largest = largest
        self._lock = threading.Lock()
        self.requests = 0
        self.bytes = 0

    def register(self, app: Flask) -> None:
        """Count the requests of an application."""
        app.before_request(self._enter)
        app.after_request(self._keep_streams)
        app.teardown_request(self._leave)

    def admit(self, size: int) -> bool:
        """Count a request with a body of that many bytes, if there is room for it."""
        with self._lock:
            # One alone is let in, however large: what is too large is refused by those who know why.
            fits = self.requests < self._most and (not self.requests or self.bytes + size <= self._most_bytes)
            if fits:
                self.requests += 1
                self.bytes += size
            return fits

    def release(self, size: int) -> None:
        """Count it no longer."""
        with self._lock:
            self.requests -= 1
            self.bytes -= size

    def _enter(self) -> None:
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            if stopping.is_set():
                raise NoMoreError(_STOPPING)
        elif is_open() or request.endpoint == "health.metrics":
            return
        is_chunked = "Transfer-Encoding" in request.headers
        size = self._largest if is_chunked else min(request.content_length or 0, self._largest)
        if not self.admit(size):
            raise OverloadedError(_BUSY)
        g.admitted = size

    def _keep_streams(self, response: Response) -> Response:
        if response.is_streamed and "admitted" in g:
            size = g.pop("admitted")
            response.call_on_close(lambda: self.release(size))
        return response

    def _leave(self, _error: Any) -> None:
        if "admitted" in g:
            self.release(g.pop("admitted"))
