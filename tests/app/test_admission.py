"""Admission of requests, and answers while the service stops: on its own, and under gunicorn."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from flask import Flask, Response, request
from werkzeug.test import EnvironBuilder, run_wsgi_app

from seewhy.app.http.in_flight import Admission
from seewhy.app.http.problems import register_errors
from seewhy.app.system.stopping import stopping
from tests.app.serving import CAT, Small, children, declare, explain, free_port, underway
from tests.waiting import GUARD, until


@pytest.fixture
def admission():
    return Admission(most=2)


@pytest.fixture
def small(admission):
    """An application that tells how many requests it counts while it answers one."""
    app = Flask("small")
    register_errors(app)
    admission.register(app)

    @app.route("/", methods=["GET", "POST"])
    def index():
        if "fail" in request.args:
            raise RuntimeError
        count = f"{admission.requests}"
        return Response(iter([count, " and more"]) if "stream" in request.args else count)

    return app.test_client()


def test_a_request_counts_until_it_is_answered(admission, small):
    assert small.post("/", data=b"x" * 10).text == "1"
    assert small.get("/").text == "1"
    assert small.post("/?fail=1").status_code == 500
    assert small.post("/nowhere").status_code == 404
    answer, *_ = run_wsgi_app(small.application, EnvironBuilder(method="POST").get_environ())
    assert b"".join(answer) == b"1"
    assert admission.requests == 0


def test_a_stream_counts_until_it_is_read_to_its_end_or_closed(admission, small):
    streams = [small.post("/?stream=1", data=b"x") for _ in range(2)]
    assert admission.requests == 2
    refused = small.post("/", data=b"x")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.mimetype == "application/problem+json"
    assert small.get("/").status_code == 503  # which may take as long
    assert small.get("/nowhere").status_code == 404
    assert streams[0].text == "1 and more"
    assert admission.requests == 1
    for stream in streams:
        stream.close()
    assert admission.requests == 0
    assert small.post("/", data=b"x").text == "1"


def test_a_process_that_stops_refuses(small, client):
    stopping.value = True
    try:
        assert small.post("/").status_code == 503
        for answer, code in ((client.get("/readyz"), "not-ready"), (client.post("/explain"), "overloaded")):
            document = answer.get_json()
            assert (answer.status_code, document["type"]) == (503, f"urn:seewhy:problem:{code}")
            assert document["title"] == "The service is stopping"
            assert document["detail"].startswith("The server is stopping")
        assert client.get("/healthz").status_code == 200
    finally:
        stopping.value = False


@pytest.mark.fault("invalid chunked encoding", "400")
@pytest.mark.parametrize(
    "chunks", [b"zz\r\nabc", b"-1\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\nX y\r\n\r\n"]
)
@pytest.mark.parametrize("path", [b"/explain", b"/v1/models/efficientnet_lite0:predict", b"/nonesuch"])
def test_chunks_that_lie_are_the_clients_mistake(tight, path, chunks):
    with socket.create_connection(("127.0.0.1", tight.port), timeout=GUARD) as lying:
        kind = b"application/json" if b"v1" in path else b"image/png"
        head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: " + kind
        lying.sendall(head + b"\r\n\r\n" + chunks)
        assert lying.recv(1000).startswith(b"HTTP/1.1 404" if path == b"/nonesuch" else b"HTTP/1.1 400")


def test_heads_may_come_in_parts_and_several_at_once(tight):
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", tight.port), timeout=GUARD) as connection:
        for part in (head[:3], head[3:-1], head[-1:] + head + head[:20], head[20:]):
            connection.sendall(part)
            time.sleep(0.2)  # or the system might send parts together
        result = b""
        while result.count(b"HTTP/1.1 200") < 3 or not result.endswith(b"}"):
            piece = connection.recv(10_000)
            assert piece
            result += piece


@pytest.mark.fault(
    "bodies shorter or longer than declared",
    "the connection ends when the client closes it; 413 if the declared length is too large",
)
def test_a_body_shorter_or_longer_than_it_says_costs_no_thread(tight):
    head = b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", tight.port), timeout=GUARD) as lying:
        lying.sendall(head % 100_000 + CAT[:1000])
        lying.shutdown(socket.SHUT_WR)
        lying.recv(1000)
    with socket.create_connection(("127.0.0.1", tight.port), timeout=GUARD) as lying:
        lying.sendall(head % 99_999_999_999)
        assert lying.recv(1000).startswith(b"HTTP/1.1 413")
    assert explain(tight.url).status_code == 200


@pytest.mark.fault(
    "more requests than the service can handle", "some are handled, the others immediately get 503 with `Retry-After`"
)
def test_over_capacity_some_are_answered_and_others_refused_at_once(tight):
    head = b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(CAT)
    with contextlib.ExitStack() as stack:

        def begin():
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", tight.port)))
            connection.sendall(head + CAT[:1000])
            return connection

        uploads = [begin() for _ in range(3)]

        def is_full():
            full = explain(tight.url).status_code == 503
            for refused in select.select(uploads, [], [], 0)[0]:  # the question before took its place
                uploads[uploads.index(refused)] = begin()
            return full

        until(is_full)
        for _ in range(8):
            refused = explain(tight.url)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            assert refused.json()["type"] == "urn:seewhy:problem:overloaded"
            for path in ("healthz", "readyz"):
                assert requests.get(f"{tight.url}/{path}", timeout=GUARD).status_code == 200
        for connection in uploads:
            connection.sendall(CAT[1000:])
            assert connection.recv(12) == b"HTTP/1.1 200"
    until(lambda: explain(tight.url).status_code == 200)


@pytest.mark.fault("the service reloads everything (`SIGHUP`)", "nothing")
@pytest.mark.slow
def test_a_worker_answers_until_the_one_after_it_does(tmp_path):
    service = Small(tmp_path, "tests.app.serving:Held")
    with service.run(), ThreadPoolExecutor(1) as pool:
        (before,) = service.workers()
        (tmp_path / "held").touch()
        accepted = pool.submit(service.post, "/explain")
        until(lambda: underway(service.url))
        declare(tmp_path)  # a net that nothing holds
        service.process.send_signal(signal.SIGHUP)
        codes, ready = Counter(), Counter()

        def is_replaced():
            codes[requests.post(f"{service.url}/nonesuch", timeout=GUARD).status_code] += 1
            ready[requests.get(f"{service.url}/readyz", timeout=GUARD).status_code] += 1
            return not underway(service.url)  # the one that answers is not at work

        until(is_replaced)
        assert set(codes) == {404}
        assert set(ready) == {200}
        (after,) = service.workers() - {before}
        service.process.terminate()  # heard, although a worker still answers what it has accepted
        with contextlib.suppress(requests.ConnectionError):  # the socket is closed
            while requests.post(f"{service.url}/nonesuch", timeout=GUARD).status_code != 503:
                pass
        assert not accepted.done()
        (tmp_path / "held").unlink()
        assert accepted.result().status_code == 200
    assert after != before


@pytest.mark.fault("an upgrade without downtime (`USR2`, then `SIGTERM`)", "nothing")
@pytest.mark.slow
def test_a_new_first_process_takes_over(tmp_path):
    service = Small(tmp_path)
    with service.run():
        before = service.workers()
        service.process.send_signal(signal.SIGUSR2)

        def new_processes():
            assert requests.get(f"{service.url}/healthz", timeout=GUARD).status_code == 200
            return [pid for pid in service.workers() - before if children(pid)]

        (new,) = until(new_processes)
    try:
        assert service.predict() == 0
    finally:
        os.kill(new, signal.SIGTERM)


@pytest.mark.fault("the service is stopped while a model loads", "nothing; exit status 0")
@pytest.mark.slow
def test_a_server_that_stops_while_a_model_loads_ends_without_a_fault(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "seewhy", "serve", "--port", str(port)], stderr=file)
    until(lambda: process.poll() is not None or "Booting worker" in log.read_text())
    assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=GUARD).status_code == 200
    process.terminate()
    assert process.wait(GUARD) == 0
    assert "terminate called" not in log.read_text()
    assert "SIGABRT" not in log.read_text()
