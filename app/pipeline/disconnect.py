"""Detection of closed client connections, without reading from them."""

import socket
from functools import partial
from typing import Any

from seewhy.app.pipeline.record import current


def watch(environ: dict[str, Any]) -> None:
    """Watch the client of a request from now on; under servers other than gunicorn its connection is unknown."""
    connection = environ.get("gunicorn.socket")
    if type(connection) is socket.socket:
        current().is_disconnected = partial(_is_closed, connection)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
