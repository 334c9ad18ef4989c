"""Nodes of Ray on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

RAY = [sys.executable, "-m", "ray.scripts.scripts"]

START_SECONDS = 15
"""Time limit for a node to become ready."""


class Nodes:
    """Nodes of one processor each, which the processes of other nodes do not use.

    Processes that connect to `address` need the environment of this one, with the token.
    """

    def __init__(self, count: int) -> None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(16)}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        _, _, port = self.address.partition(":")
        self.nodes = [self._start(0, "--head", f"--port={port}", "--include-dashboard=false", "--disable-usage-stats")]
        for number in range(1, count):
            self.nodes.append(self._start(number, f"--address={self.address}"))

    def _start(self, number: int, *options: str) -> "subprocess.Popen[bytes]":
        processors = sorted(os.sched_getaffinity(0))
        taskset = ["taskset", "--cpu-list", str(processors[number % len(processors)])]
        command = [*taskset, *RAY, "start", "--block", "--num-cpus=1", *options]
        node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(START_SECONDS)
        return node

    def kill_last(self) -> None:
        """Kill a node with all its processes, and start it anew."""
        last = len(self.nodes) - 1
        self._kill(last)
        self.nodes[last] = self._start(last, f"--address={self.address}")

    def stop(self) -> None:
        """Kill all."""
        for number in reversed(range(len(self.nodes))):
            self._kill(number)

    def _kill(self, number: int) -> None:
        os.killpg(self.nodes[number].pid, signal.SIGKILL)
        self.nodes[number].wait()


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """Start this many nodes, and kill them afterwards."""
    started = Nodes(count)
    try:
        yield started
    finally:
        started.stop()
