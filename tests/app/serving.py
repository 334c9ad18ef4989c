"""Starting the service as its users do, on a free port."""

import os
import socket
import subprocess
import sys
import time

import requests


def start(port, folder=None, stdout=None, stderr=None, **variables):
    environment = {**os.environ, "SEEWHY_PORT": str(port), **variables}
    command = [sys.executable, "-m", "app.cli", "serve"]
    process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr, cwd=folder)
    for _ in range(240):
        try:
            if requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200:
                return process
        except (requests.ConnectionError, requests.Timeout):
            pass
        assert process.poll() is None
        time.sleep(0.25)
    process.kill()
    raise AssertionError("the service did not become ready")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
