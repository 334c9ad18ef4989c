"""Two replicas of the service behind nginx, as deployed: one is killed, or its machine is gone."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import requests

from tests.app.proxying import answers, proxy
from tests.app.serving import CAT, children, explain, figures, free_port, start
from tests.waiting import GUARD, until

CLIENTS = 8


class Answer(NamedTuple):
    sent: float
    response: requests.Response


class Load:
    """Clients that send a picture again and again.

    Args:
        url: where to.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.answers: list[Answer] = []

    def _client(self) -> None:
        with requests.Session() as session:
            while not self._over.is_set():
                sent = time.monotonic()
                response = session.post(f"{self._url}/explain", files={"image": CAT}, timeout=GUARD)
                self.answers.append(Answer(sent, response))

    def wait_for(self, number: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answers) + number
        until(lambda: len(self.answers) >= wanted)

    @contextmanager
    def run(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._client) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                self._over.set()
        for client in clients:
            client.result()


class Replica:
    """A process of the service, and its worker."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    def start(self) -> None:
        settings = {"LOG_LEVEL": "error", "DEADLINE": str(GUARD), "ACCELERATOR": "eager"}  # eager starts faster
        self._process = start(self.port, **{f"SEEWHY_{name}": value for name, value in settings.items()})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def answered(self) -> float:
        return sum(figures(self.url, 'seewhy_requests_total{method="gradcam"'))

    def kill(self) -> None:
        if self._process.poll() is None:
            for process in (self._process.pid, *children(self._process.pid)):  # the first would replace the second
                os.kill(process, signal.SIGKILL)
            self._process.wait(GUARD)
        until(lambda: not answers(self.port))


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    with ThreadPoolExecutor(2) as pool:
        processes = list(pool.map(lambda _: Replica(), range(2)))
    yield processes
    for replica in processes:
        replica.kill()


@pytest.mark.slow
@pytest.mark.fault(
    "behind nginx: one of two replicas is killed under load",
    "503 with `Retry-After` for the requests that it was answering, nothing else; it is used again once it is back",
)
def test_a_replica_that_is_killed_takes_only_its_own_requests_with_it(replicas, tmp_path):
    killed, other = replicas
    with proxy(tmp_path, killed.port, other.port) as port:
        load = Load(f"http://127.0.0.1:{port}")
        with load.run():
            until(lambda: min(replica.answered for replica in replicas) > 5)
            killed.kill()
            gone_at = time.monotonic()
            load.wait_for(40)
            killed.start()
            until(lambda: killed.answered > 5)
    failures = [answer for answer in load.answers if answer.response.status_code != 200]
    assert 1 <= len(failures) <= CLIENTS
    for sent, response in failures:
        assert sent < gone_at
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert response.json()["type"] == "urn:seewhy:problem:not-ready"


@pytest.mark.slow
@pytest.mark.fault(
    "behind nginx: the machine of one of two replicas is gone",
    "half of the new connections to replicas take 2 s longer",
)
def test_the_other_replica_answers_if_the_machine_of_one_is_gone(tight, tmp_path):
    with socket.socket() as gone, socket.socket() as waiting:
        gone.bind(("127.0.0.1", 0))
        gone.listen(0)
        waiting.connect(gone.getsockname())  # fills its queue: further connections get no answer
        with proxy(tmp_path, gone.getsockname()[1], tight.port) as port:
            assert [explain(f"http://127.0.0.1:{port}").status_code for _ in range(2)] == [200, 200]
