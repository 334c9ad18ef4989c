"""The service, run as its users run it, for a tool that sends requests."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.app.serving import free_port, start


class Service(NamedTuple):
    """A running service."""

    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def service(**settings: str) -> Iterator[Service]:
    """Run a service, which logs errors only; end it in good order."""
    port = free_port()
    process = start(port, SEEWHY_LOG_LEVEL="error", **settings)
    try:
        yield Service(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
