"""Admission: limits the requests in flight; further ones are refused at once.

Open and light routes (probes, pages, metrics) are always admitted, and so are unknown paths.
"""

import threading
from typing import Any

from flask import Flask, Response, g, request

from seewhy.app.errors import NoMoreError, OverloadedError
from seewhy.app.http.access import is_open
from seewhy.app.http.accounting import AtEnd
from seewhy.app.http.declaration import current_declaration
from seewhy.app.system.stopping import stopping

_BUSY = "The server is handling as many requests as it can; try again in a few seconds."
_STOPPING = "The server is stopping; try again in a few seconds."


class Admission:
    """Counts requests until they are answered, streams until their end. `accounting` counts their memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.requests = 0

    def register(self, app: Flask) -> None:
        """Count the requests of an application."""
        app.before_request(self._enter)
        app.after_request(self._keep_streams)
        app.teardown_request(self._leave)

    def admit(self) -> bool:
        """Count a request, unless there are too many; return whether it was counted."""
        with self._lock:
            fits = self.requests < self._most
            self.requests += fits
            return fits

    def release(self) -> None:
        """Stop counting a request."""
        with self._lock:
            self.requests -= 1

    def _enter(self) -> None:
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            if stopping.value:
                raise NoMoreError(_STOPPING)
        elif is_open() or current_declaration().is_light:
            return
        if not self.admit():
            raise OverloadedError(_BUSY)
        g.admitted = True

    def _keep_streams(self, response: Response) -> Response:
        if response.is_streamed and g.pop("admitted", False):
            pending = [self.release]

            def release() -> None:
                if pending:
                    pending.pop()()

            response.call_on_close(release)
            response.response = AtEnd(response.response, release)  # a stream outlives its request
        return response

    def _leave(self, _error: Any) -> None:
        if g.pop("admitted", False):
            self.release()
