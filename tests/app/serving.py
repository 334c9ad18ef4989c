"""Starting the service as its users do, on a free port."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import requests
import torch
from PIL import Image
from torch import Tensor, fx
from werkzeug.serving import make_server

from seewhy.app import create_app
from seewhy.app.settings import Settings
from tests import nets
from tests.waiting import GUARD, until

CAT = (Path(__file__).parents[2] / "examples" / "cat.png").read_bytes()


def start(port, folder=None, stdout=None, stderr=None, **variables):
    environment = {**os.environ, "SEEWHY_PORT": str(port), **variables}
    command = [sys.executable, "-m", "seewhy", "serve"]
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


def container_variables(temporary):
    """Return the environment that the Dockerfile sets, with another temporary folder."""
    dockerfile = (Path(__file__).parents[2] / "Dockerfile").read_text()
    lines = re.findall(r"^ENV (.+)$", dockerfile.rpartition("\nFROM ")[2], flags=re.MULTILINE)
    variables = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    for name in ("PATH", "SEEWHY_HOST", "SEEWHY_PORT"):
        del variables[name]
    return {name: value.replace("/tmp", str(temporary)) for name, value in variables.items()}


def explain(url, picture=CAT, **fields):
    return requests.post(f"{url}/explain", files={"image": picture}, data=fields, timeout=GUARD)


def declaration(name, architecture="tests.nets:Net", **members):
    """Return the table of a model of one's own in a models file, without what is None."""
    entry = {"architecture": architecture, "weights": "w.pth", "labels": ["a", "b", "c"], "input_size": 32, **members}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in entry.items() if value is not None]
    return f"[models.{name}]\n{''.join(lines)}".replace("NaN", "nan").replace("Infinity", "inf")


def declare(folder, architecture="tests.nets:Net", names=("mine",), **members):
    """Declare models of one's own, whose weights are in `w.pth` of a folder, and return the file that does."""
    (folder / "models.toml").write_text("".join(declaration(name, architecture, **members) for name in names))
    return folder / "models.toml"


@contextmanager
def application(**settings):
    """An application with these settings, whose models end with the block."""
    app = create_app(Settings(**settings))
    try:
        yield app
    finally:
        app.extensions["seewhy"].models.stop()


@contextmanager
def live(app):
    """Serve an application in this process, for tests to which the server does not matter; yield its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # of half a second, it would be slow to end
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def underway(url):
    """Return how many batches the models of a service have begun and not finished."""
    return sum(figures(url, "seewhy_batches_underway{"))


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
    os.kill(children(process.pid)[0], signal.SIGKILL)
    killed = time.monotonic()
    while time.monotonic() < killed + 60:
        try:
            if requests.post(f"http://127.0.0.1:{port}/predict", files={"image": CAT}, timeout=GUARD).ok:
                return time.monotonic() - killed
        except requests.ConnectionError:
            pass
        time.sleep(0.02)
    raise AssertionError("the service did not come back")


def figures(url, name):
    """Return the figures of a metric whose lines begin so."""
    lines = requests.get(f"{url}/metrics", timeout=GUARD).text.splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]


class Held(nets.Net):
    """A net each of whose passes waits while there is a file named `held` in the working directory."""

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(images, fx.Proxy):
            raise TypeError("not to be traced")
        until(lambda: not Path("held").exists())
        return super().forward(images)


class Small:
    """A service whose model is small, and one's own, in a folder of its own."""

    def __init__(self, folder, net="tests.nets:Net"):
        self.folder, self.port = folder, free_port()
        self.write(0)
        self.models = declare(folder, net)
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), "red").save(buffer, "PNG")
        self.picture = buffer.getvalue()
        self.headers = {"Content-Type": "image/png", "Connection": "close"}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def weights(self):
        return self.folder / "w.pth"

    def write(self, best):
        """Write weights with which the model finds this class in any picture."""
        net = nets.seeded(nets.Net)
        with torch.no_grad():
            net.head.bias.copy_(100 * torch.eye(3)[best])
        torch.save(net.state_dict(), self.weights)

    @contextmanager
    def run(self, workers=1, stdout=None, stderr=None, **settings):
        variables = {"MODELS": self.models, "DEFAULT_MODEL": "mine", "ACCELERATOR": "eager", "LOG_LEVEL": "error"}
        variables |= {"WORKERS": workers, "DEADLINE": 3600, **settings}
        environment = {f"SEEWHY_{name}": str(value) for name, value in variables.items()}
        environment["PYTHONPATH"] = f"{self.folder}:{Path(__file__).parents[2]}"
        self.process = start(self.port, self.folder, stdout, stderr, **environment)
        try:
            yield
        finally:
            self.process.terminate()
            assert self.process.wait(GUARD) == 0

    def post(self, path="/predict", **options):
        return requests.post(self.url + path, data=self.picture, headers=self.headers, timeout=GUARD, **options)

    def predict(self):
        """Return the index of the best class, or the status of an answer that has none."""
        answer = self.post()
        return answer.json()["predictions"][0]["index"] if answer.ok else answer.status_code

    def answered_for(self, seconds):
        """Return all that is answered in so many seconds."""
        end, statuses = time.monotonic() + seconds, set()
        while time.monotonic() < end:
            statuses.add(self.predict())
            statuses.add(requests.get(f"{self.url}/readyz", timeout=GUARD).status_code)
            time.sleep(0.02)  # so that the service gets the processors that it loads its models with
        return statuses

    def settle(self):
        """Wait until every process has its model and the first process knows: any of them may take a request."""
        until(lambda: self.answered_for(1) == {0, 200})

    def workers(self):
        return set(children(self.process.pid))
