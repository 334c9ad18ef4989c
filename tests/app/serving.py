"""Starting the service as its users do, on a free port."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import requests

from tests.waiting import GUARD, until


def start(port, folder=None, stdout=None, stderr=None, **variables):
    environment = {**os.environ, "SEEWHY_PORT": str(port), **variables}
    command = [sys.executable, "-m", "seewhy.app.cli", "serve"]
    process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr, cwd=folder)

    def ready():
        assert process.poll() is None
        with suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200

    try:
        until(ready)
    except BaseException:
        process.kill()
        raise
    return process


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def underway(url):
    """Return how many batches the models of a service have begun and not finished."""
    lines = requests.get(f"{url}/metrics", timeout=GUARD).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("seewhy_batches_underway{"))


def rests(url, seconds):
    """Whether a service has nothing more to do within some seconds."""
    limit = time.monotonic() + seconds
    while underway(url):
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)
    return True


def recovery(process, port):
    """Kill the only worker, and return the seconds until pictures are classified again."""
    picture = (Path(__file__).parents[2] / "examples" / "cat.png").read_bytes()
    os.kill(children(process.pid)[0], signal.SIGKILL)
    killed = time.monotonic()
    while time.monotonic() < killed + 60:
        try:
            if requests.post(f"http://127.0.0.1:{port}/predict", files={"image": picture}, timeout=GUARD).ok:
                return time.monotonic() - killed
        except requests.ConnectionError:
            pass
        time.sleep(0.02)
    raise AssertionError("the service did not come back")
