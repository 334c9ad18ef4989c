"""gunicorn's settings, derived from those of the service; by default one process with several threads."""

import logging
import math
import os
import resource
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.http.errors import ParseException

from seewhy.app.errors import FieldError
from seewhy.app.observability.logs import configuration
from seewhy.app.observability.processes import forget_figures, join_figures
from seewhy.app.server.application import Application
from seewhy.app.server.processes import Processes
from seewhy.app.server.readiness import await_turn, begin
from seewhy.app.server.worker import Worker
from seewhy.app.settings import Settings
from seewhy.app.system.allocator import limit_arenas
from seewhy.models.errors import UnknownModelError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

KEEPALIVE_SECONDS = 65
"""How long idle connections stay open: longer than proxies keep them, a minute, or those would use closed ones."""

DRAIN_SECONDS = 5
"""Time beyond the deadline for sending the last answers; then the process aborts them."""


BODY_SECONDS = 5.0
"""Time limit for the rest of a body; behind a proxy, which buffers bodies, it comes at once."""


def read_rest(_worker: Any, _request: Any, environ: "WSGIEnvironment", _response: Any) -> None:
    """gunicorn's hook `post_request`: read the rest of a refused request's body, so that the client gets the answer.

    gunicorn reads 64 kB of it and closes the connection. If some is still unread, the system resets the connection and
    discards what the client has not read of the answer; a proxy takes that for an error of the service.
    """
    body, connection = environ.get("wsgi.input"), environ.get("gunicorn.socket")
    if body is None or connection is None:  # the request was not valid
        return
    deadline = time.monotonic() + BODY_SECONDS
    connection.settimeout(BODY_SECONDS)
    with suppress(OSError, ParseException):
        while time.monotonic() < deadline and body.read(2**16):
            pass
    with suppress(OSError):  # the connection may already be closed
        connection.settimeout(None)


class Log(Logger):  # type: ignore[misc]
    """gunicorn's log without its access lines: the application writes its own."""

    def access(self, *_: Any) -> None:
        """Do nothing."""


class Server(BaseApplication):  # type: ignore[misc]
    """The gunicorn application.

    Each worker creates the application after the fork: the threads that own models must not be forked.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn's options."""
        settings = self._settings
        host = bare_host(settings.host)
        options = {
            "bind": f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}",
            "workers": settings.workers,
            "threads": settings.threads,
            "worker_class": "seewhy.app.server.worker.Worker",
            "worker_connections": connections(settings.threads),
            # gunicorn kills a worker whose main loop hangs for this long.
            "timeout": int(settings.deadline) + 60,
            "keepalive": KEEPALIVE_SECONDS,
            "graceful_timeout": math.ceil(settings.deadline) + DRAIN_SECONDS,
            "logger_class": Log,
            "logconfig_dict": configuration(settings),
            "post_request": read_rest,
            "pre_fork": Processes.introduce,
            "post_fork": _after_fork,
            "post_worker_init": _before_accepting,
            "worker_exit": _end_process,
            "child_exit": _forget,
            "proc_name": "seewhy",
            # By default gunicorn lets a proxy on this machine set scheme and path; only `SEEWHY_TRUSTED_PROXIES`
            # decides which proxies are trusted.
            "forwarded_allow_ips": "",
            # The control socket is a file in the home folder, which may be read-only; signals do the same.
            "control_socket_disable": True,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Application:
        """Create the application of one worker.

        An unreadable key file does not keep a worker from starting: it refuses keys, as running workers do.
        """
        application = Application(partial(_watched_app, self._settings))
        application.load()
        return application


def _watched_app(settings: Settings) -> Flask:
    """Create the application of a worker, which ends its process if that is broken."""
    app = checked_app(settings, strict=False)
    app.extensions["seewhy-liveness"].watch()
    return app


def _after_fork(_server: Processes, worker: Worker) -> None:
    join_figures()
    begin(worker)


def _before_accepting(worker: Worker) -> None:
    limit_arenas()
    await_turn(worker)


def _forget(server: Processes, worker: Worker) -> None:
    forget_figures(worker.pid)
    server.forget(worker)


def _end_process(_server: Processes, worker: Worker) -> None:
    # gunicorn also calls this in the first process, for a worker that ended before it got its signal.
    if os.getpid() != worker.pid:
        return
    worker.state.answers = False
    application = getattr(worker, "wsgi", None)  # None if the worker ends before it has loaded one
    if application is not None:
        application.close()
    end_process(sys.exception())


def bare_host(host: str) -> str:
    """Return an address without the brackets of IPv6 addresses in URLs."""
    return host.removeprefix("[").removesuffix("]")


def checked_app(settings: Settings, strict: bool = True) -> Flask:
    """Create the application; this finds mistakes in the settings, the models file and modules of methods.

    Args:
        settings, strict: as for `seewhy.app.create_app`.

    Raises:
        ServiceError, ModelError, ExplainerError: the message names the mistake.
    """
    # This imports PyTorch, which must come after `share_processors`.
    from seewhy.app.application import create_app

    app = create_app(settings, strict)
    try:
        app.extensions["seewhy"].models.registry.spec(settings.default_model)
    except UnknownModelError as error:
        raise FieldError(f"SEEWHY_DEFAULT_MODEL: {error}", field="default_model") from error
    return app


MOST_CONNECTIONS = 1000
"""Per process. A proxy needs one for each request in flight; the rest is for clients without a proxy."""

RESERVED_FILES = 128
"""Files for models, metrics and logs."""

FILES_PER_THREAD = 4
"""Files per thread: one to wait for a connection, the others for the work."""


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections(threads: int) -> int:
    """Return how many connections a process may have at once, so that files are left for its work."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(threads + 1, min(MOST_CONNECTIONS, files - FILES_PER_THREAD * threads - RESERVED_FILES))


def end_process(error: BaseException | None) -> NoReturn:
    """End this process.

    At a normal exit Python dismantles PyTorch, waits for threads that answer, and kills threads in the middle of their
    work, such as loading a model, on which C++ aborts.

    Args:
        error: the reason; the exit status is the one that Python would give it.
    """
    status = error.code if isinstance(error, SystemExit) else error and 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else int(bool(status)))
