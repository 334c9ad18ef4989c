"""Who is let in, and how long a client may take: by itself, and as gunicorn runs it."""

import contextlib
import io
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
import requests
from flask import Flask, Response, request
from werkzeug.test import EnvironBuilder, run_wsgi_app

from app.admission import Admission
from app.errors import register_errors
from app.patience import Patience, Patient, patience, stopping
from app.worker import HEADER_SECONDS
from tests.app.conftest import EXAMPLES
from tests.app.serving import children, free_port, start

CAT = (EXAMPLES / "cat.png").read_bytes()


@pytest.fixture
def admission():
    return Admission(most=2, most_bytes=100, largest=80)


@pytest.fixture
def small(admission):
    """An application that tells how many requests it counts while it answers one."""
    made = Flask("small")
    register_errors(made)
    admission.register(made)

    @made.route("/", methods=["GET", "POST"])
    def index():
        if "fail" in request.args:
            raise RuntimeError
        told = f"{admission.requests} {admission.bytes}"
        return Response(iter([told, " and more"]) if "stream" in request.args else told)

    return made.test_client()


def test_a_request_counts_until_it_is_answered(admission, small):
    assert small.post("/", data=b"x" * 10).text == "1 10"
    assert small.post("/", data=b"x" * 1000).text == "1 80"
    assert small.get("/").text == "1 0"
    assert small.post("/?fail=1").status_code == 500
    assert small.post("/nowhere").status_code == 404
    assert (admission.requests, admission.bytes) == (0, 0)


def test_a_body_without_a_length_counts_as_the_largest(small):
    body = {"input_stream": io.BytesIO(b"x"), "headers": {"Transfer-Encoding": "chunked"}}
    assert small.post("/", **body, environ_overrides={"wsgi.input_terminated": True}).text == "1 80"


def test_a_request_without_a_body_counts_no_bytes(small):
    answer, *_ = run_wsgi_app(small.application, EnvironBuilder(method="POST").get_environ())
    assert b"".join(answer) == b"1 0"


def test_a_stream_counts_until_it_is_closed(admission, small):
    streams = [small.post("/?stream=1", data=b"x") for _ in range(2)]
    assert admission.requests == 2
    refused = small.post("/", data=b"x")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.mimetype == "application/problem+json"
    assert small.get("/").status_code == 503  # which may take as long
    assert small.get("/nowhere").status_code == 404
    for stream in streams:
        stream.close()
    assert small.post("/", data=b"x").text == "1 1"


def test_bytes_in_flight_are_bounded_and_one_request_is_always_let_in():
    narrow = Admission(most=10, most_bytes=50, largest=80)
    assert narrow.admit(80)
    assert not narrow.admit(1)
    narrow.release(80)
    assert narrow.admit(30)
    assert narrow.admit(20)
    assert not narrow.admit(1)
    assert (narrow.requests, narrow.bytes) == (2, 50)


def test_a_process_that_stops_refuses(small, client):
    stopping.set()
    try:
        assert small.post("/").status_code == 503
        for answer, code in ((client.get("/readyz"), "not-ready"), (client.post("/explain"), "overloaded")):
            told = answer.get_json()
            assert (answer.status_code, told["type"]) == (503, f"urn:seewhy:problem:{code}")
            assert told["title"] == "The service is stopping"
            assert told["detail"].startswith("This server is stopping")
        assert client.get("/healthz").status_code == 200
    finally:
        stopping.clear()


def test_patience_shuts_late_connections_only():
    kept, late = socket.socketpair(), socket.socketpair()
    for one in (*kept, *late):
        one.settimeout(5)
    shut = Patience()
    shut.allow(kept[0], 60)
    shut.allow(late[0], 0)
    shut.allow("no socket", 0)
    with shut.allowing(kept[0], 0):
        pass
    time.sleep(0.01)
    shut.shut_late()
    assert late[1].recv(1) == b""
    kept[1].send(b"x")
    assert kept[0].recv(1) == b"x"
    late[0].close()
    shut.allow(late[0], 0)
    time.sleep(0.01)
    shut.shut_late()  # what is closed already is no error
    for one in (*kept, *late):
        one.close()


def test_a_client_has_a_time_for_its_body_and_for_each_part_of_the_answer():
    connection, other = socket.socketpair()
    watched = []

    def look():
        watched.append(id(connection) in patience._until)

    class Slow(io.BytesIO):
        def read(self, size=-1):
            look()
            return super().read(size)

    def inner(environ, start_response):
        assert environ["wsgi.input"].read(10) == b"x" * 10
        look()
        return Closing()

    class Closing:
        def __iter__(self):
            return iter([b"one", b"two"])

        def close(self):
            look()

    environ = {"gunicorn.socket": connection, "wsgi.input": Slow(b"x" * 10)}
    answer = Patient(inner, upload_seconds=1, download_seconds=1)(environ, lambda *_: None)
    look()
    assert next(answer) == b"one"
    look()
    answer.close()
    # While the body is read and a part is sent, and not while the model works.
    assert watched == [True, False, False, True, False]
    assert Patient(lambda *_: [b"as it is"], 1, 1)({}, lambda *_: None) == [b"as it is"]
    connection.close()
    other.close()


def test_all_pieces_of_a_body_share_its_time():
    connection, other = socket.socketpair()
    left = []

    class Slow(io.BytesIO):
        def read(self, size=-1):
            left.append(patience._until[id(connection)][0] - time.monotonic())
            time.sleep(0.05)
            return super().read(size)

    def inner(environ, start_response):
        assert len(environ["wsgi.input"].read()) == 5 * 2**16
        return []

    environ = {"gunicorn.socket": connection, "wsgi.input": Slow(bytes(5 * 2**16)), "CONTENT_LENGTH": str(5 * 2**16)}
    Patient(inner, upload_seconds=0.17, download_seconds=1)(environ, lambda *_: None).close()
    assert len(left) >= 5
    assert all(later < sooner - 0.04 for sooner, later in itertools.pairwise(left[:4]))
    assert max(left[4:]) <= 0
    connection.close()
    other.close()


def test_a_client_has_a_time_for_an_answer_without_a_body():
    # Its head is sent when there are no more parts.
    connection, other = socket.socketpair()
    answer = Patient(lambda *_: [], 1, 1)({"gunicorn.socket": connection, "wsgi.input": io.BytesIO()}, lambda *_: None)
    assert list(answer) == []
    assert id(connection) in patience._until
    answer.close()
    assert id(connection) not in patience._until
    connection.close()
    other.close()


@pytest.fixture(scope="module")
def server():
    port = free_port()
    limits = {"SEEWHY_THREADS": "4", "SEEWHY_MAX_IN_FLIGHT": "3", "SEEWHY_UPLOAD_SECONDS": "3"}
    process = start(port, **limits)
    yield port
    process.terminate()
    assert process.wait(60) == 0


def explain(port, **fields):
    return requests.post(f"http://127.0.0.1:{port}/explain", files={"image": CAT}, data=fields, timeout=60)


def health(port):
    started = time.monotonic()
    assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code == 200
    return time.monotonic() - started


class Trickle:
    """Clients that send a head and then byte after byte, four a second, until somebody shuts their connection."""

    def __init__(self, port, count, head, rest):
        self.connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        self.shut = [threading.Event() for _ in range(count)]
        for connection, shut in zip(self.connections, self.shut, strict=True):
            connection.sendall(head)
            threading.Thread(target=self._send, args=(connection, shut, rest), daemon=True).start()

    def _send(self, connection, shut, rest):
        try:
            for byte in itertools.cycle(rest):
                connection.send(bytes([byte]))
                time.sleep(0.25)
        except OSError:
            shut.set()

    def close(self):
        for connection in self.connections:
            connection.close()


@pytest.mark.fault(
    "more silent connections than threads",
    "nothing",
)
def test_connections_that_send_nothing_take_no_thread(server):
    idle = [socket.create_connection(("127.0.0.1", server)) for _ in range(40)]
    assert health(server) < 2  # four threads, each of which would wait five seconds
    for connection in idle:
        connection.close()


@pytest.mark.fault(
    "heads of requests that come byte by byte",
    "nothing; these connections are closed",
)
def test_heads_that_come_byte_by_byte_take_no_thread(server):
    slow = Trickle(server, 20, b"POST /explain HTTP/1.1\r\nHost: x\r\nX-A: ", b"a")
    time.sleep(0.3)
    assert health(server) < 4
    assert all(shut.wait(10) for shut in slow.shut)
    slow.close()


@pytest.mark.fault(
    "pictures that come byte by byte",
    "503 while they take all places, then nothing; they are given up",
)
def test_bodies_that_come_byte_by_byte_are_given_up(server):
    head = b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\n"
    slow = Trickle(server, 3, head, CAT)
    time.sleep(0.3)
    refused = explain(server)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert health(server) < 2
    assert all(shut.wait(15) for shut in slow.shut)
    assert explain(server).status_code == 200
    slow.close()


@pytest.mark.fault(
    "bodies that never come, of more requests than there are threads",
    "503 at once; probes are answered",
)
@pytest.mark.parametrize("asked", [b"POST /explain", b"GET /nonesuch", b"GET /healthz"])
def test_bodies_that_never_come_leave_threads_to_probes(server, asked):
    head = asked + b" HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\nabc"
    silent = [socket.create_connection(("127.0.0.1", server), timeout=20) for _ in range(12)]
    for connection in silent:
        connection.sendall(head)
    time.sleep(0.5)
    assert health(server) < 2
    answers = [connection.recv(100) for connection in silent]
    assert sum(answer.startswith(b"HTTP/1.1 ") for answer in answers) >= 12 - 3  # those let in are given up
    for connection in silent:
        connection.close()


@pytest.mark.fault("clients that never close their end", "nothing; these connections are closed")
def test_connections_that_are_never_closed_hold_up_nobody(server):
    left = [socket.create_connection(("127.0.0.1", server), timeout=20) for _ in range(6)]
    for connection in left:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    time.sleep(0.3)
    assert health(server) < 1.5  # two seconds for each in turn, before
    for connection in left:
        connection.close()


@pytest.mark.fault("chunks that are not what they say", "400")
@pytest.mark.parametrize(
    "chunks", [b"zz\r\nabc", b"-1\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\nX y\r\n\r\n"]
)
@pytest.mark.parametrize("path", [b"/explain", b"/v1/models/efficientnet_lite0:predict", b"/nonesuch"])
def test_chunks_that_lie_are_the_clients_mistake(server, path, chunks):
    with socket.create_connection(("127.0.0.1", server), timeout=20) as lying:
        kind = b"application/json" if b"v1" in path else b"image/png"
        head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: " + kind
        lying.sendall(head + b"\r\n\r\n" + chunks)
        assert lying.recv(1000).startswith(b"HTTP/1.1 404" if path == b"/nonesuch" else b"HTTP/1.1 400")


@pytest.mark.fault("heads without an end", "nothing; these connections are closed")
def test_a_head_without_an_end_is_cut_off(server):
    with socket.create_connection(("127.0.0.1", server), timeout=20) as endless:
        with contextlib.suppress(OSError):  # shut meanwhile
            endless.sendall(b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000)
        started = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert endless.recv(1000)[:12] in (b"", b"HTTP/1.1 431")
        assert time.monotonic() - started < HEADER_SECONDS - 1  # before the time is up that a head may take
    assert health(server) < 2


def test_heads_may_come_in_parts_and_several_at_once(server):
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server), timeout=20) as connection:
        for part in (asked[:3], asked[3:-1], asked[-1:] + asked + asked[:20], asked[20:]):
            connection.sendall(part)
            time.sleep(0.2)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3 or not found.endswith(b"}"):
            piece = connection.recv(10_000)
            assert piece
            found += piece


@pytest.mark.fault(
    "bodies shorter or longer than they say",
    "nothing; 413 where they say too much",
)
def test_a_body_shorter_than_it_says_costs_no_thread_for_long(server):
    with socket.create_connection(("127.0.0.1", server), timeout=20) as lying:
        lying.sendall(
            b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\n"
            + CAT[:1000]
        )
        started = time.monotonic()
        lying.recv(1000)
        assert time.monotonic() - started < 10
    with socket.create_connection(("127.0.0.1", server), timeout=20) as lying:
        lying.sendall(
            b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 99999999999\r\n\r\n"
        )
        assert lying.recv(1000).startswith(b"HTTP/1.1 413")
    assert explain(server).status_code == 200


@pytest.mark.fault(
    "more requests than there is room for",
    "some are answered, the others get 503 and `Retry-After` at once",
)
def test_over_capacity_some_are_answered_and_others_refused_at_once(server):
    def timed(_):
        started = time.monotonic()
        found = explain(server, method="smoothgrad", samples="8")
        return found, time.monotonic() - started

    with ThreadPoolExecutor(24) as pool:
        waiting = [pool.submit(timed, None) for _ in range(48)]
        probed = []
        while not all(one.done() for one in waiting):
            probed += [requests.get(f"http://127.0.0.1:{server}/{path}", timeout=30) for path in ("healthz", "readyz")]
            time.sleep(0.05)
    found = [one.result() for one in waiting]
    codes = [response.status_code for response, _ in found]
    assert set(codes) == {200, 503}
    assert codes.count(200) >= 3
    refused = [(response, seconds) for response, seconds in found if response.status_code == 503]
    assert {response.headers.get("Retry-After") for response, _ in refused} == {"5"}
    assert {response.json()["type"] for response, _ in refused} == {"urn:seewhy:problem:overloaded"}
    answered = [seconds for response, seconds in found if response.status_code == 200]
    assert median(seconds for _, seconds in refused) < median(answered)  # however busy the processors
    assert {response.status_code for response in probed} == {200}
    assert explain(server).status_code == 200


@pytest.mark.fault(
    "the service is told to stop (`SIGTERM`)",
    "what was accepted is answered, new requests get 503; exit status 0",
)
def test_a_server_that_stops_answers_what_it_accepted_and_refuses_the_rest():
    port = free_port()
    process = start(port)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(explain, port, method="rise", samples="400")
        time.sleep(1)
        process.terminate()
        time.sleep(0.3)
        refused = explain(port)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert "stopping" in refused.json()["detail"]
        assert requests.get(f"http://127.0.0.1:{port}/readyz", timeout=10).status_code == 503
        assert accepted.result(60).status_code == 200
    assert process.wait(60) == 0


@pytest.mark.fault(
    "the service is told to load everything anew (`SIGHUP`)",
    "nothing",
)
@pytest.mark.slow
def test_a_worker_answers_until_the_one_after_it_does():
    port = free_port()
    process = start(port)
    (before,) = children(process.pid)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(explain, port, method="rise", samples="2000")
        time.sleep(1)
        process.send_signal(signal.SIGHUP)
        codes, ready = Counter(), Counter()
        until = time.monotonic() + 8
        while not accepted.done() and time.monotonic() < until:
            codes[requests.post(f"http://127.0.0.1:{port}/nonesuch", timeout=60).status_code] += 1
            ready[requests.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code] += 1
            time.sleep(0.05)
        assert set(codes) == {404}
        assert set(ready) == {200}
        (after,) = set(children(process.pid)) - {before}
        process.terminate()  # heard, although a worker still answers what it has accepted
        said = time.monotonic()
        while requests.post(f"http://127.0.0.1:{port}/nonesuch", timeout=60).status_code != 503:
            assert time.monotonic() < said + 5
        assert not accepted.done()
        assert accepted.result().status_code == 200
    assert process.wait(60) == 0
    assert after != before


@pytest.mark.fault(
    "new software takes over without a pause (`USR2`, then `SIGTERM`)",
    "nothing",
)
@pytest.mark.slow
def test_a_new_first_process_takes_over():
    port = free_port()
    process = start(port, SEEWHY_LOG_LEVEL="error")
    (worker,) = children(process.pid)
    process.send_signal(signal.SIGUSR2)
    limit = time.monotonic() + 60
    while not (new := [pid for pid in children(process.pid) if pid != worker and children(pid)]):
        assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code == 200
        if time.monotonic() > limit:
            process.kill()
            process.wait(60)
            pytest.fail("no other first process has taken over")
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 0
    try:
        assert explain(port).status_code == 200
    finally:
        os.kill(new[0], signal.SIGTERM)


@pytest.mark.fault(
    "the service is told to stop while a model loads",
    "nothing; exit status 0",
)
@pytest.mark.slow
def test_a_server_that_stops_while_a_model_loads_ends_without_a_fault(tmp_path):
    for _ in range(3):  # it was a matter of chance
        port = free_port()
        log = tmp_path / "log"
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port)]
        with log.open("w") as file:
            process = subprocess.Popen(command, stderr=file)
        while "Booting worker" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code == 200
        process.terminate()
        assert process.wait(60) == 0
        assert "terminate called" not in log.read_text()
        assert "SIGABRT" not in log.read_text()
