"""Reads the rest of a refused request's body, so that the client gets the answer.

gunicorn reads 64 kB of it and closes the connection. If some is still unread, the system resets the connection and
discards what the client has not read of the answer; a proxy takes that for an error of the service.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import ParseException

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MOST_SECONDS = 5.0
"""Time limit for the rest of a body; behind a proxy, which buffers bodies, it comes at once."""

_PIECE = 2**16


def read_rest(_worker: Any, _request: Any, environ: "WSGIEnvironment", _response: Any) -> None:
    """gunicorn's hook `post_request`, called after the answer has been sent."""
    body, connection = environ.get("wsgi.input"), environ.get("gunicorn.socket")
    if body is None or connection is None:  # the request was not valid
        return
    deadline = time.monotonic() + MOST_SECONDS
    connection.settimeout(MOST_SECONDS)
    with suppress(OSError, ParseException):
        while time.monotonic() < deadline and body.read(_PIECE):
            pass
    with suppress(OSError):  # the connection may already be closed
        connection.settimeout(None)
