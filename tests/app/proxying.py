"""nginx in front of the service, with `deploy/nginx.conf` except for its ports."""

import os
import re
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.app.serving import free_port
from tests.waiting import GUARD, until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"

REPLICA = "server seewhy:8000 max_fails=0;"
"""The line of a replica in it."""


def nginx():
    """Return the program, where it is installed."""
    result = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if result is None:
        assert "CI" not in os.environ, "nginx is not installed"
        pytest.skip("nginx is not installed")
    return result


def write_configuration(folder, port, *replicas, **seconds):
    """Write the configuration with its own port and those of replicas, and return the command that runs it.

    Args:
        folder: where to.
        port: its own.
        replicas: their ports.
        seconds: other values of directives, to wait less.
    """
    text = CONFIGURATION.read_text(encoding="utf-8")
    servers = " ".join(REPLICA.replace("seewhy:8000", f"127.0.0.1:{replica}") for replica in replicas)
    replacements = {"listen 8080;": f"listen 127.0.0.1:{port};", REPLICA: servers}
    for name, value in seconds.items():
        (line,) = re.findall(rf"{name} \d+s;", text)
        replacements[line] = f"{name} {value}s;"
    for line, replacement in replacements.items():
        assert text.count(line) == 1
        text = text.replace(line, replacement)
    file = folder / "nginx.conf"
    file.write_text(text)
    user = " user root;" if os.geteuid() == 0 else ""  # only root can read the folder of the tests
    return [nginx(), "-p", str(folder), "-c", str(file), "-g", f"daemon off;{user}"]


def answers(port):
    """Whether somebody takes connections there."""
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def proxy(folder, *replicas, **seconds):
    """Run nginx before the ports of replicas, and yield its own; see `write_configuration`."""
    port = free_port()
    process = subprocess.Popen(write_configuration(folder, port, *replicas, **seconds))
    try:
        until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(GUARD)


class Attack(threading.Thread):
    """Connections that do not end: those that are shut are made anew.

    Args:
        port: whom they trouble.
        openings: what each sends at first.
        drip: what each sends then, again and again.
    """

    def __init__(self, port, openings, drip=b""):
        super().__init__(daemon=True)
        self._port, self._openings, self._drip = port, openings, drip
        self._sockets = [None] * len(openings)
        self._over = threading.Event()
        self.is_on = threading.Event()

    def run(self):
        while not self._over.is_set():
            for place, connection in enumerate(self._sockets):
                if not self._goes_on(connection):
                    self._sockets[place] = self._open(place)
            if all(self._sockets):
                self.is_on.set()
            self._over.wait(0.3)
        for connection in filter(None, self._sockets):
            connection.close()

    def _open(self, place):
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=GUARD)
            connection.sendall(self._openings[place])
            connection.setblocking(False)
            return connection
        return None

    def _goes_on(self, connection):
        if connection is None:
            return False
        try:
            with suppress(BlockingIOError):
                if not connection.recv(2**16):
                    connection.close()
                    return False
            with suppress(BlockingIOError):
                connection.send(self._drip)
        except OSError:
            connection.close()
            return False
        return True

    def __enter__(self):
        self.start()
        assert self.is_on.wait(GUARD)
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()
