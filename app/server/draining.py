"""What is left of a body after its request was refused: it is read, so that the client gets the answer.

gunicorn reads 64 kB of it and closes the connection. With some of it unread the system resets the connection, and
throws away what the client has not read of the answer; a proxy takes that for a fault of the service.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import ParseException

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MOST_SECONDS = 5.0
"""For the rest of a body; a proxy has it all."""

_PIECE = 2**16


def drain(_worker: Any, _request: Any, environ: "WSGIEnvironment", _response: Any) -> None:
    """gunicorn's hook `post_request`, which comes when the answer has been sent."""
    body, connection = environ.get("wsgi.input"), environ.get("gunicorn.socket")
    if body is None or connection is None:  # the request was none
        return
    until = time.monotonic() + MOST_SECONDS
    connection.settimeout(MOST_SECONDS)
    with suppress(OSError, ParseException):
        while time.monotonic() < until and body.read(_PIECE):
            pass
    with suppress(OSError):  # closed by now
        connection.settimeout(None)
