"""Attacks on the memory of a running service: what all requests hold together is bounded, and given back."""

import gzip
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from tests.app.conftest import encoded
from tests.app.serving import children, free_port, start
from tests.waiting import until

CONTAINER = 2 * 2**30
"""Bytes of the container that documentation recommends."""

REQUESTS = 900 * 2**20
"""What the service leaves to requests there, with its default model; see docs/deployment.md."""

PHOTO = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (270, 270, 3), dtype=np.uint8)))
"""A picture of 219 kB."""


@pytest.fixture(scope="module")
def service():
    port = free_port()
    process = start(port, SEEWHY_MEMORY_BYTES=str(REQUESTS), SEEWHY_DOWNLOAD_SECONDS="12", SEEWHY_DEADLINE="120")
    yield Attacked(port, process)
    process.terminate()
    assert process.wait(60) == 0


class Attacked:
    """A service whose memory is watched."""

    def __init__(self, port, process):
        self.url, self.port, self.process = f"http://127.0.0.1:{port}", port, process
        (self.worker,) = children(process.pid)
        self.most = 0
        assert self.post("/explain", data=PHOTO).status_code == 200

    def post(self, path, **options):
        headers = {"Content-Type": "image/png"} | options.pop("headers", {})
        return requests.post(self.url + path, headers=headers, timeout=200, **options)

    def attack(self, *attackers):
        """Run all at a time; return what they do, and note the most memory that the worker has meanwhile."""
        over = threading.Event()

        def watch():
            while not over.wait(0.01):
                self.most = max(self.most, resident(self.worker))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor(len(attackers)) as pool:
                return [future.result() for future in [pool.submit(attacker) for attacker in attackers]]
        finally:
            over.set()
            watcher.join()

    def used(self):
        lines = requests.get(self.url + "/metrics", timeout=30).text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("seewhy_memory_used_bytes")))

    def must_have_survived(self):
        """All is as before: the same process, no memory in use, answers."""
        assert children(self.process.pid) == [self.worker]
        assert self.most < CONTAINER
        until(lambda: not self.used())
        assert self.post("/explain", data=PHOTO).status_code == 200


def resident(worker):
    """Return the bytes that the system cannot take back from a process."""
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def refused(answer):
    """Whether an answer says that memory does not suffice at present, and when to come back."""
    if answer.status_code != 503:
        return False
    assert answer.headers["Retry-After"] == "5"
    return answer.json()["type"] == "urn:seewhy:problem:out-of-memory"


@pytest.mark.slow
@pytest.mark.fault("eight concurrent captures of all layers", "some are handled, the others get 503 with `Retry-After`")
def test_many_captures_of_all_layers(service):
    def capture():
        kinds = "kind=output&kind=grad_output"
        return service.post(f"/hooks/capture?layer=*&{kinds}&format=npz", data=PHOTO)

    report = service.attack(*[capture] * 8)
    assert {response.status_code for response in report if not refused(response)} == {200}
    assert all(len(response.content) == int(response.headers["Content-Length"]) for response in report if response.ok)
    service.must_have_survived()


@pytest.mark.slow
@pytest.mark.fault("many compressed bodies that expand a thousandfold", "413 on routes that need no numbers, else 503")
def test_many_bodies_that_unpack_to_numbers(service):
    packed = gzip.compress(b'{"instances": [[' + b"0.5," * (2**23 - 10) + b"0]]}")
    model = "efficientnet_lite0"

    def send(path):
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return lambda: service.post(path, data=packed, headers=headers)

    report = service.attack(*[send("/explain")] * 12)
    assert all(response.status_code == 413 or refused(response) for response in report)
    report = service.attack(*[send(f"/v1/models/{model}:predict")] * 12)
    assert {response.status_code for response in report} <= {400, 503}
    service.must_have_survived()


@pytest.mark.slow
@pytest.mark.fault(
    "clients that do not read large responses", "503 while these occupy memory; then their connections are closed"
)
def test_many_clients_that_do_not_read(service):
    large = encoded(Image.new("RGB", (2800, 2800), (90, 120, 30)), "JPEG")
    head = (
        f"POST /explain?format=npz&top=4 HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(large)}\r\n\r\n"
    ).encode()
    statuses = []

    def ask():
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(200)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(head + large)
        statuses.append(int(connection.recv(12)[9:12]))
        return connection

    connections = service.attack(*[ask] * 20)
    assert set(statuses) == {200, 503}
    service.must_have_survived()
    for connection in connections:
        connection.close()
