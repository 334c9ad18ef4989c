"""Large answers, encoded while they are sent."""

import json
import math
import socket
import threading

import numpy as np
import pytest
from flask import Flask

from seewhy.app.answers.stream import in_time, json_parts, respond


@pytest.mark.parametrize("shape", [(0,), (5,), (40_000,), (3, 4), (200, 300), (1, 70_000), (2, 3, 4), (0, 3)])
def test_arrays_become_nested_lists(shape):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    parts = json_parts({"first": array, "rest": [{"values": array.astype(int)}, "text", None, float("nan")]})
    whole = parts.join()
    document = json.loads(whole)
    assert document == {"first": array.tolist(), "rest": [{"values": array.astype(int).tolist()}, "text", None, None]}
    assert len(whole) <= parts.most_bytes
    assert parts.source_bytes >= array.nbytes


def test_no_text_is_taken_for_the_place_of_an_array():
    document = {'"values":[]': np.zeros(2), "[]": "0" * 32}
    assert json.loads(json_parts(document).join()) == {'"values":[]': [0.0, 0.0], "[]": "0" * 32}


def test_an_array_is_text_in_small_pieces_only():
    assert max(map(len, json_parts(np.ones((1000, 1000))).pieces())) < 2**17


@pytest.mark.parametrize("body", [json_parts(np.zeros(100_000)), bytes(2**20 + 1)], ids=["pieces", "bytes"])
def test_who_does_not_read_in_time_is_given_up(body):
    server_end, client_end = socket.socketpair()
    application, shut = Flask("small"), threading.Event()

    def wait():
        client_end.settimeout(20)
        assert client_end.recv(1) == b""
        shut.set()

    reader = threading.Thread(target=wait)
    reader.start()
    with application.test_request_context(environ_overrides={"gunicorn.socket": server_end}):
        response = respond(body, "application/json", seconds=0.05)
        pieces = iter(response.response)
        assert next(pieces)
        assert shut.wait(20)  # while it is in the midst of being sent
        pieces.close()
    reader.join(20)
    server_end.close()
    client_end.close()


def test_who_reads_in_time_keeps_the_connection(monkeypatch):
    timers = []

    class Noted(threading.Timer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            timers.append(self)

    monkeypatch.setattr("seewhy.app.answers.stream.threading.Timer", Noted)
    server_end, client_end = socket.socketpair()
    application = Flask("small")
    with application.test_request_context(environ_overrides={"gunicorn.socket": server_end}):
        response = respond(json_parts(np.zeros(10)), "application/json", seconds=60)
        assert b"".join(response.response) == b"[0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]"
    (timer,) = timers
    assert timer.finished.is_set()
    server_end.send(b"x")
    assert client_end.recv(1) == b"x"
    server_end.close()
    client_end.close()


def test_an_answer_in_time_closes_what_makes_it():
    application, closed = Flask("small"), threading.Event()

    def pieces():
        try:
            yield b"first"
            yield b"second"
        finally:
            closed.set()

    source = pieces()  # which a reference keeps alive
    with application.test_request_context():
        stream = in_time(source, math.inf)
        assert next(stream) == b"first"
        stream.close()
    assert closed.is_set()
