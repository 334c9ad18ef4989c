"""Detection of closed client connections, without reading from them."""

import socket
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

DisconnectCheck = Callable[[], bool]
"""Returns whether a client has closed its connection."""


def never() -> bool:
    """Return False: the client stays, or its connection is unknown."""
    return False


client_disconnected: ContextVar[DisconnectCheck] = ContextVar("client_disconnected", default=never)
"""The check for the client of this thread's request."""


def watch(environ: dict[str, Any]) -> None:
    """Watch the client of a request from now on; under servers other than gunicorn its connection is unknown."""
    connection = environ.get("gunicorn.socket")
    client_disconnected.set(partial(_is_closed, connection) if type(connection) is socket.socket else never)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
