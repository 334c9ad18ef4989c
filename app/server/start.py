"""Start of the service: mistakes are reported immediately, and shared state is created before processes fork.

gunicorn's first process only watches the others. It imports what they need, so that they share that memory and a
replacement does not import it again.
"""

import atexit
import errno
import gc
import os
import socket
import sys
import tempfile
from pathlib import Path

from seewhy.app.errors import FieldError
from seewhy.app.observability.processes import share_figures
from seewhy.app.server.configuration import Server, bare_host, checked_app, end_process, raise_file_limit
from seewhy.app.server.processes import Processes
from seewhy.app.settings import MOST_SECONDS, Settings
from seewhy.app.system.processors import share_processors
from seewhy.models.errors import ModelsFileError


def serve(settings: Settings) -> None:
    """Serve until a signal to stop.

    Raises:
        FieldError: the port is in use, the address is not one of this machine, or the deadline is too long.
        ModelsFileError: the code of the default model cannot be found.
        SystemExit: there is no folder for temporary files, or the service has ended.
    """
    share_processors(settings.workers)
    if settings.max_in_flight >= settings.threads:
        print("Warning: under load no thread is free for probes. Set SEEWHY_MAX_IN_FLIGHT ", end="", file=sys.stderr)
        print(f"({settings.max_in_flight}) below SEEWHY_THREADS ({settings.threads}).", file=sys.stderr)
    _check_folder()
    if settings.deadline > MOST_SECONDS:  # threads and sockets cannot wait longer
        message = f"SEEWHY_DEADLINE or --deadline: the deadline can be at most {MOST_SECONDS:,} seconds, a day."
        raise FieldError(message, field="deadline")
    _check_port(settings.host, settings.port)
    raise_file_limit()
    remove_figures = share_figures(settings.workers)
    checked_app(settings)
    _check_modules(settings.models, settings.default_model)
    _share_memory()
    try:
        Processes(Server(settings)).run()
    except SystemExit as error:
        # `end_process` skips Python's slow exit, and with it the functions of `atexit`.
        remove_figures()
        end_process(error)


def _check_modules(file: Path | None, default_model: str) -> None:
    """Name the models whose code cannot be found: a request for one of them would be the first to say so.

    Raises:
        ModelsFileError: the default model is among them.
    """
    from seewhy.models.models_file import missing_modules  # imports PyTorch, see `checked_app`

    for name, fault in missing_modules(file) if file else ():
        if name == default_model:
            raise ModelsFileError(fault)
        print(f"Warning: {fault}", file=sys.stderr)


def _share_memory() -> None:
    """Keep the garbage collector from touching imported objects, which would copy them into each process."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # at exit, extension modules count their remaining objects


def _check_port(host: str, port: int) -> None:
    """Report at once that the port is not available; gunicorn would retry for seconds."""
    if "GUNICORN_FD" in os.environ:  # an upgrade (`USR2`): the previous first process hands over its socket
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        message = f"SEEWHY_HOST or --host: this machine cannot listen on {host!r}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            message = (
                f"Port {port} is in use; choose another: make serve PORT={port + 1000}, or "
                f"seewhy serve --port {port + 1000}."
            )
        elif error.errno == errno.EACCES:
            message = f"SEEWHY_PORT or --port: port {port} needs administrator rights; choose one above 1023."
        raise FieldError(
            message, field="port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        ) from error


def _check_folder() -> None:
    """Report at once that gunicorn and PyTorch have no folder for temporary files."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SystemExit(
            "Error: There is no folder for temporary files. Mount a small tmpfs on /tmp, or set TMPDIR to a "
            "writable folder."
        ) from error
