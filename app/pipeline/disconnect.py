"""Whether the client of a request has closed its connection; nothing is read from it."""

import socket
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

DisconnectCheck = Callable[[], bool]
"""Says whether a client has closed its connection."""


def never() -> bool:
    """Return False: the client stays, or nobody can tell."""
    return False


client_disconnected: ContextVar[DisconnectCheck] = ContextVar("client_disconnected", default=never)
"""Whether the client of the request that this thread answers has closed its connection."""


def watch(environ: dict[str, Any]) -> None:
    """Watch the client of a request from now on; of servers other than gunicorn no connection is known."""
    connection = environ.get("gunicorn.socket")
    client_disconnected.set(partial(_is_closed, connection) if type(connection) is socket.socket else never)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
