"""The WSGI application of one process: SeeWhy's, or a substitute until that can be created."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask

from seewhy.app.errors import EXPECTED

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

RETRY_SECONDS = 10.0
"""Seconds between two attempts of a process to create its application or load the default model."""

_log = logging.getLogger(__name__)


class Application:
    """SeeWhy's application; a process that cannot create it tries again.

    The first process created one before it forked. If a later process cannot, a file was broken meanwhile. Other
    processes may still answer, so this one answers with 503 and tries again; if it ended, it would only be restarted.
    """

    def __init__(self, make: Callable[[], Flask]) -> None:
        self._make = make
        self._flask: Flask | None = None
        self._unavailable: Flask | None = None
        self._next_attempt = 0.0

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        flask = self._flask or self._unavailable
        assert flask is not None, "load comes first"  # nosec B101
        return flask(environ, start_response)

    @property
    def models(self) -> Any:
        """The models of SeeWhy's application; None while it does not exist."""
        return self._flask and self._flask.extensions["seewhy"].models

    def load(self) -> None:
        """Create what is missing and start loading the default model, at most every `RETRY_SECONDS`."""
        if time.monotonic() < self._next_attempt:
            return
        self._next_attempt = time.monotonic() + RETRY_SECONDS
        if self._flask is None:
            self._make_flask()
        if self._flask is not None:
            self._load_default()

    def close(self) -> None:
        """Flush data for other systems, such as spans."""
        if self._flask is not None:
            self._flask.extensions["seewhy-operations"].close()

    def _make_flask(self) -> None:
        try:
            self._flask = self._make()
        except Exception as error:
            # This imports PyTorch, which must come after `share_processors`.
            from seewhy.app.server.unavailable import unavailable

            _log.error("No worker can start: %s", error, exc_info=not isinstance(error, EXPECTED))
            self._unavailable = self._unavailable or unavailable()

    def _load_default(self) -> None:
        try:
            self.models.require_ready()
        except Exception as error:  # expected: the model is loading, or the log says why not
            if not isinstance(error, EXPECTED):
                _log.error("The default model cannot be loaded: %s", error)
