"""gunicorn, configured from the settings; one process of several threads by default.

The first process of gunicorn only watches the others. It imports all that they need, so that they share that memory,
and that one which takes the place of another answers without importing it anew, nor exporting its models.
"""

import atexit
import errno
import gc
import os
import socket
import sys
import tempfile

from flask import Flask
from gunicorn.app.base import BaseApplication

from app import create_app
from app.heaps import share_heaps
from app.logs import configuration
from app.processors import share_processors
from app.setting_faults import misspelt
from app.settings import MOST_SECONDS, Settings
from app.worker import Log, Watcher, head_read
from app.workers import forget_figures, join_figures, share_figures


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
        host = _bare(settings.host)
        options = {
            "bind": f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}",
            "workers": settings.workers,
            "threads": settings.threads,
            "worker_class": "app.worker.PatientWorker",
            "pre_request": head_read,
            "timeout": int(settings.deadline) + 60,
            # Longer than the minute for which balancers keep a connection: else these send requests into closed ones.
            "keepalive": 65,
            "graceful_timeout": int(settings.deadline),
            "logger_class": Log,
            "logconfig_dict": configuration(settings),
            "pre_fork": lambda watcher, worker: watcher.tell(worker),
            "post_fork": lambda _, __: join_figures(),
            "child_exit": lambda _, worker: forget_figures(worker.pid),
            "proc_name": "seewhy",
            "post_worker_init": lambda _: share_heaps(),
            # By default gunicorn lets a proxy on this machine set scheme and path. `SEEWHY_TRUSTED_PROXIES` is the one
            # place that says whom to believe what.
            "forwarded_allow_ips": "",
            "control_socket_disable": True,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Make the application of one worker, as `checked_app` does.

        A file of keys that cannot be read any more keeps none from starting: others answer so too.
        """
        return checked_app(self._settings, strict=False)


def serve(settings: Settings) -> None:
    """Serve until told to stop.

    Raises:
        FieldError: another program has the port, the address is none of this machine, or the deadline is too far.
        SystemExit: there is no folder for temporary files.
    """
    share_processors(settings.workers)
    for said in misspelt(os.environ):
        print(f"Warning: {said}", file=sys.stderr)
    if settings.max_in_flight >= settings.threads:
        print("Warning: under load no thread is left for probes. Set SEEWHY_MAX_IN_FLIGHT ", end="", file=sys.stderr)
        print(f"({settings.max_in_flight}) below SEEWHY_THREADS ({settings.threads}).", file=sys.stderr)
    _check_folder()
    _check_deadline(settings.deadline)
    _check_port(settings.host, settings.port)
    share_figures(settings.workers)
    checked_app(settings)
    _share_exports()
    _share_memory()
    Watcher(Server(settings)).run()


def _share_exports() -> None:
    """Let a process that takes the place of another find what that one exported of its models."""
    from explainers.accelerators import share_exports  # imports PyTorch, which must wait for `share_processors`

    share_exports()


def _share_memory() -> None:
    """Keep the collector of garbage from touching what was imported, which would copy it into each process."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # at the end extension modules count what is left of them


def _bare(host: str) -> str:
    """Return an address without the brackets that URLs put around those of IPv6."""
    return host.removeprefix("[").removesuffix("]")


def _check_port(host: str, port: int) -> None:
    """Find out at once what gunicorn would try for seconds."""
    if "GUNICORN_FD" in os.environ:  # `USR2`: the first process of gunicorn before this one hands over its socket
        return
    from app.errors import FieldError  # imports PyTorch, which must wait for `share_processors`

    try:
        family, kind, _, _, address = socket.getaddrinfo(_bare(host), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        said = f"SEEWHY_HOST or --host: this machine cannot listen on {host!r}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            said = (
                f"Port {port} is in use; choose another: make serve PORT={port + 1000}, or "
                f"seewhy serve --port {port + 1000}."
            )
        elif error.errno == errno.EACCES:
            said = f"SEEWHY_PORT or --port: port {port} is for the system's administrator; choose one above 1023."
        raise FieldError(said, field="port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host") from error


def _check_deadline(seconds: float) -> None:
    """Find out at once that a service would wait for longer than its parts can."""
    if seconds > MOST_SECONDS:
        from app.errors import FieldError  # imports PyTorch, which must wait for `share_processors`

        said = f"SEEWHY_DEADLINE or --deadline: a service needs one of {MOST_SECONDS:,} seconds, a day, or less."
        raise FieldError(said, field="deadline")


def _check_folder() -> None:
    """Find out at once that gunicorn has no place for its files."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        # No error of our own: that would import PyTorch, which needs such a folder too.
        raise SystemExit(
            "Error: There is no folder for temporary files. Mount a small tmpfs on /tmp, or name a folder that can be "
            "written in the variable TMPDIR."
        ) from error


def checked_app(settings: Settings, strict: bool = True) -> Flask:
    """Make the application, and find mistakes in the settings, the models file and modules of methods.

    Args:
        settings, strict: as `create_app` has them.

    Raises:
        ServiceError, ModelError, ExplainerError: as the messages say.
    """
    from app.errors import FieldError
    from models.errors import UnknownModelError

    app = create_app(settings, strict)
    try:
        app.extensions["seewhy"].registry.spec(settings.default_model)
    except UnknownModelError as error:
        raise FieldError(f"SEEWHY_DEFAULT_MODEL: {error}", field="default_model") from error
    return app
