"""How the service ends, and what it does where files run out: gunicorn, real sockets, real signals."""

import contextlib
import errno
import http.client
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
from gunicorn.workers.gthread import ThreadWorker

from seewhy.app.server import file_limit
from seewhy.app.server.readiness import State
from seewhy.app.server.worker import WARNING_SECONDS, Worker
from seewhy.app.system.stopping import SharedFlag
from tests.app.conftest import EXAMPLES
from tests.app.serving import children, free_port, start
from tests.waiting import GUARD, until

CAT = (EXAMPLES / "cat.png").read_bytes()
BEYOND = 40
"""Seconds after which a service that stops is late: gunicorn breaks off what is left after 65, or kills it."""

reads_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def explain(port, **fields):
    return requests.post(f"http://127.0.0.1:{port}/explain", files={"image": CAT}, data=fields, timeout=120)


def in_progress(port):
    """Return how many requests are answered, beside the one that asks."""
    text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=GUARD).text
    (line,) = (line for line in text.splitlines() if line.startswith("seewhy_requests_in_progress "))
    return float(line.rpartition(" ")[2]) - 1


@pytest.mark.fault(
    "the service is told to stop (`SIGTERM`)",
    "what was accepted is answered; a new request gets 503 on a kept connection, and no new connection is made; exit "
    "status 0",
)
def test_a_service_that_stops_answers_what_it_accepted_and_ends_however_many_clients_retry():
    port, stop = free_port(), threading.Event()
    process = start(port)
    statuses = Counter()

    def retry():
        while not stop.is_set():
            try:
                statuses[explain(port, method="rise", samples="1000").status_code] += 1
            except requests.ConnectionError:
                statuses[None] += 1
                stop.wait(0.01)

    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
    idle.request("GET", "/healthz")
    assert idle.getresponse().read()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]  # as browsers open them beforehand
    with ThreadPoolExecutor(9) as pool:
        accepted = pool.submit(explain, port, method="rise", samples="400")
        until(lambda: in_progress(port))
        process.terminate()
        retrying = [pool.submit(retry) for _ in range(8)]
        until(lambda: statuses[None])  # the socket is closed
        with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):  # it is kept for two seconds
            idle.request("POST", "/explain", CAT, {"Content-Type": "image/png"})
            answer = idle.getresponse()
            assert (answer.status, answer.headers["Retry-After"], answer.headers["Connection"]) == (503, "5", "close")
            assert b"stopping" in answer.read()
        assert accepted.result().status_code == 200
        try:
            assert process.wait(BEYOND) == 0
        finally:
            stop.set()
            process.kill()
    for client in retrying:
        client.result()
    assert set(statuses) <= {503, None}
    for connection in (idle, *silent):
        connection.close()


@pytest.fixture
def worker(monkeypatch):
    """A worker whose calls of gunicorn's own methods are seen."""
    worker = object.__new__(Worker)
    worker.__dict__.update(alive=True, ppid=os.getppid(), state=State(), sockets=[Mock()], log=Mock(), pending_conns=[])
    worker.__dict__.update(nr_conns=0, worker_connections=10)
    monkeypatch.setattr(ThreadWorker, "set_accept_enabled", Mock())
    return worker


def test_a_worker_that_is_full_keeps_its_socket(worker):
    worker.set_accept_enabled(False)
    worker.set_accept_enabled(True)
    worker.sockets[0].close.assert_not_called()
    assert not worker.state.leaves


@pytest.mark.parametrize("orphan", [False, True])
def test_a_worker_that_ends_closes_its_socket_and_lets_go_of_silent_connections(orphan, worker):
    worker.alive = orphan
    worker.ppid = -1 if orphan else worker.ppid
    silent = [Mock(timeout=time.monotonic() + seconds) for seconds in (-1, 60)]
    worker.pending_conns = silent
    worker.set_accept_enabled(False)
    worker.sockets[0].close.assert_called_once_with()
    assert worker.state.leaves
    assert not worker.alive
    assert silent[0].timeout < time.monotonic() < silent[1].timeout < time.monotonic() + 5


@pytest.mark.parametrize(("stops", "accepted"), [(True, 3), (False, 0)])
def test_what_the_system_has_accepted_is_refused_where_the_whole_service_stops(stops, accepted, worker, monkeypatch):
    flag, waiting = SharedFlag(), [1, 2, 3]
    if stops:
        flag.set()

    def accept(self, _listener):
        if waiting:
            waiting.pop()
            self.nr_conns += 1

    monkeypatch.setattr("seewhy.app.server.worker.stopping", flag)
    monkeypatch.setattr(ThreadWorker, "accept", accept)
    worker.alive = False
    worker.set_accept_enabled(False)
    assert worker.nr_conns == accepted


def test_an_error_for_want_of_files_is_waited_out_and_told_once_a_minute(worker, monkeypatch):
    now, pauses = 1000.0, []
    monkeypatch.setattr("seewhy.app.server.worker.time", Mock(monotonic=lambda: now, sleep=pauses.append))
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS):
        monkeypatch.setattr(ThreadWorker, "accept", Mock(side_effect=OSError(number, "no more")))
        worker.accept(Mock())
    assert len(pauses) == 3
    assert min(pauses) > 0
    assert worker.log.warning.call_count == 1
    now += WARNING_SECONDS
    worker.accept(Mock())
    assert worker.log.warning.call_count == 2
    monkeypatch.setattr(ThreadWorker, "accept", Mock(side_effect=OSError(errno.EBADF, "no socket")))
    with pytest.raises(OSError, match="no socket"):
        worker.accept(Mock())


def test_connections_leave_files_for_the_work(monkeypatch):
    limits = []
    for soft in (resource.RLIM_INFINITY, 1_000_000, 1024, 256, 64):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        limits.append(file_limit.connections(40))
    assert limits == [file_limit.MOST_CONNECTIONS, file_limit.MOST_CONNECTIONS, 736, 41, 41]


@reads_proc
@pytest.mark.fault(
    "more connections than files that may be open (`ulimit -n`)",
    "new connections wait; the others are answered, and no process ends",
)
def test_a_process_that_may_open_no_more_files_goes_on():
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        process = start(port)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (pid,) = children(process.pid)
    try:
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)  # raised as far as it may be
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read()
        # Fewer than it has: nothing can be opened, whatever is closed meanwhile.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, hard))
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for connection in waiting:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(20):  # the main loop goes on
            idle.request("GET", "/healthz")
            assert idle.getresponse().read()
        used = cpu(pid)
        time.sleep(2)
        assert cpu(pid) - used < 1  # it does not try without a pause
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        for connection in waiting:
            connection.settimeout(GUARD)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        assert explain(port).status_code == 200
        assert children(process.pid) == [pid]
        idle.close()
    finally:
        process.terminate()
        assert process.wait(GUARD) == 0


def cpu(pid):
    """Return the seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
