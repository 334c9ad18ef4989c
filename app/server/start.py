"""The start of the service: what would go wrong is told at once, and what processes share is made before they fork.

gunicorn's first process only watches the others. It imports all that they need, so that they share that memory, and a
process that takes the place of another does not import it anew.
"""

import atexit
import errno
import gc
import os
import socket
import sys
import tempfile

from seewhy.app.observability.processes import share_figures
from seewhy.app.server.configuration import Server, bare_host, checked_app
from seewhy.app.server.ending import end_process
from seewhy.app.server.files import raise_file_limit
from seewhy.app.server.processes import Processes
from seewhy.app.setting_faults import misspelt
from seewhy.app.settings import MOST_SECONDS, Settings
from seewhy.app.system.processors import share_processors


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
    raise_file_limit()
    remove_figures = share_figures(settings.workers)
    checked_app(settings)
    _share_memory()
    try:
        Processes(Server(settings)).run()
    except SystemExit as error:
        # As Python ends it takes PyTorch apart, for seconds.
        remove_figures()
        end_process(error)


def _share_memory() -> None:
    """Keep the collector of garbage from touching what was imported, which would copy it into each process."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # at the end extension modules count what is left of them


def _check_port(host: str, port: int) -> None:
    """Find out at once what gunicorn would try for seconds."""
    if "GUNICORN_FD" in os.environ:  # `USR2`: the first process of gunicorn before this one hands over its socket
        return
    from seewhy.app.errors import FieldError

    try:
        family, kind, _, _, address = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)[0]
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
        from seewhy.app.errors import FieldError

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
