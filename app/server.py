"""gunicorn, configured from the settings; one process of several threads by default."""

from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from app import create_app
from app.errors import ServiceError
from app.settings import Settings
from models import ModelError


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
        options = {
            "bind": f"{settings.host}:{settings.port}",
            "workers": settings.workers,
            "threads": settings.threads,
            "worker_class": "gthread",
            "timeout": int(settings.deadline) + 60,
            "graceful_timeout": int(settings.deadline),
            "accesslog": "-",
            "access_log_format": '%(h)s "%(r)s" %(s)s %(b)s %(M)sms',
            "proc_name": "seewhy",
            "post_worker_init": _warm,
            "control_socket_disable": True,
        }
        if "control_socket_disable" not in self.cfg.settings:
            del options["control_socket_disable"]  # older gunicorns have no such socket
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Make the application of one worker."""
        return create_app(self._settings)


def serve(settings: Settings) -> None:
    """Serve until told to stop."""
    Arbiter(Server(settings)).run()


def _warm(worker: Any) -> None:
    service = worker.wsgi.extensions["seewhy"]
    try:
        service.require_ready()
    except (ServiceError, ModelError) as error:
        worker.log.info("%s", error)
