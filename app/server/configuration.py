"""gunicorn's settings, made from those of the service; one process of several threads by default."""

import math
import os
import sys
from functools import partial
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from seewhy.app import create_app
from seewhy.app.observability.logs import configuration
from seewhy.app.observability.processes import forget_figures, join_figures
from seewhy.app.server.application import Application
from seewhy.app.server.draining import drain
from seewhy.app.server.ending import end_process
from seewhy.app.server.files import connections
from seewhy.app.server.processes import Processes
from seewhy.app.server.readiness import await_turn, begin
from seewhy.app.server.worker import Worker
from seewhy.app.settings import Settings
from seewhy.app.system.allocator import share_heaps

KEEPALIVE_SECONDS = 65
"""That a connection is kept: longer than the minute for which proxies keep it, which else send into closed ones."""

DRAIN_SECONDS = 5
"""Beyond the deadline, until what is still being answered is broken off: for the last answers to be sent."""


class Log(Logger):  # type: ignore[misc]
    """gunicorn's log, without its line for each request, which it would make up for nobody."""

    def access(self, *_: Any) -> None:
        """Leave it to the application."""


class Server(BaseApplication):  # type: ignore[misc]
    """The gunicorn application.

    The application is made in each worker, after the fork: the threads that own models must not be forked.

    Args:
        settings: address, processes and threads among them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set what the settings and the service need."""
        settings = self._settings
        host = bare_host(settings.host)
        options = {
            "bind": f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}",
            "workers": settings.workers,
            "threads": settings.threads,
            "worker_class": "seewhy.app.server.worker.Worker",
            "worker_connections": connections(settings.threads),
            "timeout": int(settings.deadline) + 60,
            "keepalive": KEEPALIVE_SECONDS,
            "graceful_timeout": math.ceil(settings.deadline) + DRAIN_SECONDS,
            "logger_class": Log,
            "logconfig_dict": configuration(settings),
            "post_request": drain,
            "pre_fork": Processes.introduce,
            "post_fork": _after_fork,
            "post_worker_init": _before_accepting,
            "worker_exit": _end_process,
            "child_exit": _forget,
            "proc_name": "seewhy",
            # By default gunicorn lets a proxy on this machine set scheme and path. `SEEWHY_TRUSTED_PROXIES` is the one
            # place that says whom to believe what.
            "forwarded_allow_ips": "",
            "control_socket_disable": True,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Application:
        """Make the application of one worker, as `checked_app` does.

        A file of keys that cannot be read any more keeps none from starting: others answer so too.
        """
        application = Application(partial(_watched_app, self._settings))
        application.load()
        return application


def _watched_app(settings: Settings) -> Flask:
    """Make the application of a worker, which ends itself where it is broken."""
    app = checked_app(settings, strict=False)
    app.extensions["seewhy-liveness"].watch()
    return app


def _after_fork(_server: Processes, worker: Worker) -> None:
    join_figures()
    begin(worker)


def _before_accepting(worker: Worker) -> None:
    share_heaps()
    await_turn(worker)


def _forget(server: Processes, worker: Worker) -> None:
    forget_figures(worker.pid)
    server.forget(worker)


def _end_process(_server: Processes, worker: Worker) -> None:
    if os.getpid() != worker.pid:  # the first process forgets a worker that was gone before it could be told to go
        return
    worker.state.answers = False
    application = getattr(worker, "wsgi", None)  # none yet where it ends early
    if application is not None:
        application.close()
    end_process(sys.exception())


def bare_host(host: str) -> str:
    """Return an address without the brackets that URLs put around those of IPv6."""
    return host.removeprefix("[").removesuffix("]")


def checked_app(settings: Settings, strict: bool = True) -> Flask:
    """Make the application, and find mistakes in the settings, the models file and modules of methods.

    Args:
        settings, strict: as `create_app` has them.

    Raises:
        ServiceError, ModelError, ExplainerError: as the messages say.
    """
    from seewhy.app.errors import FieldError
    from seewhy.models.errors import UnknownModelError

    app = create_app(settings, strict)
    try:
        app.extensions["seewhy"].registry.spec(settings.default_model)
    except UnknownModelError as error:
        raise FieldError(f"SEEWHY_DEFAULT_MODEL: {error}", field="default_model") from error
    return app
