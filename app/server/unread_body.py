"""The rest of the body of a refused request: it is read, so that the client gets the answer.

gunicorn reads 64 kB of it and closes the connection. While some of it is unread the system resets the connection, and
discards what the client has not read of the answer; a proxy takes that for a fault of the service.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import ParseException

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MOST_SECONDS = 5.0
"""For the rest of a body; behind a proxy, which holds whole bodies, it comes at once."""

_PIECE = 2**16


def read_rest(_worker: Any, _request: Any, environ: "WSGIEnvironment", _response: Any) -> None:
    """gunicorn's hook `post_request`, called when the answer has been sent."""
    body, connection = environ.get("wsgi.input"), environ.get("gunicorn.socket")
    if body is None or connection is None:  # there was no valid request
        return
    deadline = time.monotonic() + MOST_SECONDS
    connection.settimeout(MOST_SECONDS)
    with suppress(OSError, ParseException):
        while time.monotonic() < deadline and body.read(_PIECE):
            pass
    with suppress(OSError):  # the connection may be closed by now
        connection.settimeout(None)
