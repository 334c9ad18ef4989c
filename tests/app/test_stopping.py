"""The end of the service, and its behaviour when files run out: gunicorn, real sockets, real signals."""

import contextlib
import ctypes
import errno
import http.client
import json
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import requests
from gunicorn.workers.gthread import TConn, ThreadWorker

from seewhy.app.server import configuration
from seewhy.app.server.readiness import State
from seewhy.app.server.worker import WARNING_SECONDS, Worker
from tests.app.serving import Small, children, explain, underway
from tests.waiting import GUARD, until

LINGERED = 30
"""Seconds in which a service ends even on a busy machine; connections without limits would hold it for a minute."""

reads_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.fault(
    "the service is stopped (`SIGTERM`)",
    "accepted requests are finished; new requests on open connections get 503, and new connections are refused; exit "
    "status 0 within 5 s of the last response",
)
@pytest.mark.slow
def test_a_service_that_stops_answers_what_it_accepted_and_ends_however_many_clients_trouble_it(tmp_path):
    service, stop, statuses = Small(tmp_path, "tests.app.serving:Held"), threading.Event(), Counter()

    def retry(client):
        request = {"data": service.picture, "headers": {"Content-Type": "image/png"}, "timeout": GUARD}
        while not stop.is_set():
            try:
                statuses[client.post(f"{service.url}/predict", **request).status_code] += 1
            except requests.ConnectionError:
                statuses[None] += 1
                stop.wait(0.01)

    with (tmp_path / "log").open("w") as log, service.run(stderr=log, stdout=log, LOG_FORMAT="json", LOG_LEVEL="info"):
        idle = http.client.HTTPConnection("127.0.0.1", service.port, timeout=GUARD)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read()
        (tmp_path / "held").touch()
        with ThreadPoolExecutor(5) as pool:
            accepted = pool.submit(service.post, "/explain")
            until(lambda: underway(service.url))
            silent = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(100)]  # more than threads
            service.process.terminate()
            clients = [requests] * 2 + [requests.Session() for _ in range(2)]  # whose connections end, and are kept
            retrying = [pool.submit(retry, client) for client in clients]
            until(lambda: statuses[None])  # the socket is closed
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):  # it is kept for two seconds
                idle.request("POST", "/explain", service.picture, {"Content-Type": "image/png"})
                answer = idle.getresponse()
                assert (answer.status, answer.headers["Retry-After"], answer.headers["Connection"]) == (
                    503,
                    "5",
                    "close",
                )
                assert b"stopping" in answer.read()
            assert not accepted.done()
            (tmp_path / "held").unlink()
            assert accepted.result().status_code == 200
            answered = time.monotonic()
            try:
                assert service.process.wait(GUARD) == 0
                assert time.monotonic() < answered + LINGERED  # silent and kept connections last for a minute
            finally:
                stop.set()
                service.process.kill()
    for client in retrying:
        client.result()
    assert set(statuses) <= {503, None}
    for connection in (idle, *silent):
        connection.close()
    assert "Handling signal: term" in [
        json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()
    ]


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


def test_a_worker_that_ends_gives_no_thread_to_silent_connections(worker, monkeypatch):
    monkeypatch.setattr(ThreadWorker, "handle", lambda _, connection: "answered")
    client, server = socket.socketpair()
    with client, server:
        connection = TConn(Mock(), server, None, None)
        assert worker.handle(connection) == "answered"
        worker.alive = False
        worker.set_accept_enabled(False)
        worker.last_call = time.monotonic()
        client.sendall(b"GET")
        assert worker.handle(connection) == "answered"
        connection.data_ready = False
        assert server.recv(3) == b"GET"
        assert worker.handle(connection) is False
        assert client.recv(1) == b""


@pytest.mark.parametrize("last_call", [None, 0.0], ids=["works", "ends"])
def test_a_thread_and_not_the_main_loop_waits_for_a_client_that_does_not_close(last_call, worker, monkeypatch):
    monkeypatch.setattr(ThreadWorker, "handle", lambda self, conn: conn.stays)
    monkeypatch.setattr("seewhy.app.server.worker.LINGER_SECONDS", 0.01 if last_call is None else GUARD)
    worker.last_call = last_call
    server, client = socket.socketpair()
    with server, client:
        server.settimeout(GUARD)
        client.sendall(b"more")
        connection = Mock(sock=server, initialized=True, stays=True)
        assert worker.handle(connection)  # it is kept, and nothing is read
        connection.stays = False
        assert not worker.handle(connection)
        assert client.recv(1) == b""  # there are no more answers
        while server.recv(4096):  # what is left of its requests is not waited for
            pass


@pytest.mark.parametrize(("stops", "accepted"), [(True, 3), (False, 0)])
def test_what_the_system_has_accepted_is_refused_where_the_whole_service_stops(stops, accepted, worker, monkeypatch):
    flag, waiting = ctypes.c_bool(), [1, 2, 3]
    if stops:
        flag.value = True

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
        limits.append(configuration.connections(40))
    assert limits == [configuration.MOST_CONNECTIONS, configuration.MOST_CONNECTIONS, 736, 41, 41]


@pytest.mark.slow
@reads_proc
@pytest.mark.fault(
    "more connections than the limit of open files (`ulimit -n`)",
    "new connections wait; the others are handled, and no process ends",
)
def test_a_process_that_may_open_no_more_files_goes_on(tight):
    (pid,) = children(tight.process.pid)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == hard > 256  # raised as far as it may be
    idle = http.client.HTTPConnection("127.0.0.1", tight.port, timeout=GUARD)
    idle.request("GET", "/healthz")
    assert idle.getresponse().read()
    # Fewer than it has: nothing can be opened, whatever is closed meanwhile.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, hard))
    try:
        waiting = [socket.create_connection(("127.0.0.1", tight.port)) for _ in range(20)]
        for connection in waiting:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(20):  # the main loop goes on
            idle.request("GET", "/healthz")
            assert idle.getresponse().read()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    for connection in waiting:
        connection.settimeout(GUARD)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
    assert explain(tight.url).status_code == 200
    assert children(tight.process.pid) == [pid]
    idle.close()
