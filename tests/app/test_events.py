"""Explanations as streams of server-sent events."""

import base64
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import requests
from PIL import Image

from app import events
from app.carriers import parse
from app.engine import Deadline
from app.schemas import ExplainOptions, PredictOptions
from tests.app.conftest import EXAMPLES
from tests.app.test_server import free_port, start

EVENTS = {"Accept": "text/event-stream"}


def parsed(text):
    """Return the events of a stream as pairs of name and data."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    lines = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(one["event"], json.loads(one["data"])) for one in lines]


def picture(url):
    return Image.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2])))


def test_a_stream_ends_with_the_answer(post, cat):
    fields = {"method": "rise", "samples": "200", "top": "2", "values": "true"}
    response = post(cat, headers=EVENTS, **fields)
    assert response.mimetype == "text/event-stream"
    assert response.headers["X-Accel-Buffering"] == "no"
    found = parsed(response.get_data(as_text=True))
    assert [name for name, _ in found[-2:]] == ["progress", "answer"]
    told = [data for name, data in found if name == "progress"]
    assert {data["total"] for data in told} <= {0, 200}
    shares = [(data["done"], data["elapsed_ms"]) for data in told]
    assert len(shares) > 3
    assert all(one[1] <= other[1] for one, other in pairwise(shares))
    plain = post(cat, format="json", **fields).get_json()
    answer = found[-1][1]
    assert set(answer) == set(plain)
    assert len(answer["explanations"]) == 2
    for one, other in zip(answer["explanations"], plain["explanations"], strict=True):
        assert one["target"]["label"] == other["target"]["label"]
        np.testing.assert_allclose(one["heatmap"]["values"], other["heatmap"]["values"], atol=1e-4)


def test_the_picture_refines(post, cat, pixels):
    """Each preview is drawn like the answer, and the last one is nearer to it than the first."""
    fields = {"method": "smoothgrad", "samples": "80", "view": "heatmap", "scale": "robust"}
    found = parsed(post(cat, headers=EVENTS, **fields).get_data(as_text=True))
    previews = [picture(data["preview"]) for name, data in found if name == "progress" and "preview" in data]
    final = picture(found[-1][1]["explanations"][0]["overlay"])
    assert len(previews) >= 2
    assert {one.size for one in previews} == {final.size}
    first, last = (np.abs(np.asarray(one, int) - np.asarray(final, int)).mean() for one in (previews[0], previews[-1]))
    assert last < first
    assert last < 10


def test_a_large_picture_has_small_previews(post):
    buffer = io.BytesIO()
    Image.open(EXAMPLES / "cat.png").resize((1600, 1000)).save(buffer, "JPEG")
    found = parsed(post(buffer.getvalue(), headers=EVENTS, method="smoothgrad", samples="60").get_data(as_text=True))
    previews = [picture(data["preview"]).size for name, data in found if name == "progress" and "preview" in data]
    assert set(previews) == {(512, 320)}
    assert picture(found[-1][1]["explanations"][0]["overlay"]).size == (1600, 1000)


def test_a_method_of_one_pass_has_a_stream_too(post, cat):
    found = parsed(post(cat, headers=EVENTS).get_data(as_text=True))
    assert [name for name, _ in found] == ["progress", "answer"]
    assert "preview" not in found[0][1]


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"method": "rize"}, 422), ({"target": "no such class"}, 422), ({"against": "tabby", "target": "tabby"}, 422)],
)
def test_what_is_wrong_from_the_start_is_an_ordinary_problem(fields, status, post, cat):
    response = post(cat, headers=EVENTS, **fields)
    assert (response.status_code, response.mimetype) == (status, "application/problem+json")
    assert post(b"no picture", headers=EVENTS).status_code == 415


def test_what_goes_wrong_later_is_an_event(post, cat, service, monkeypatch):
    few = {"method": "rise", "samples": "1", "cells": "20", "probability": "0.01"}
    name, problem = parsed(post(cat, headers=EVENTS, **few).get_data(as_text=True))[-1]
    assert (name, problem["status"], problem["errors"][0]["field"]) == ("error", 422, "samples")
    monkeypatch.setattr(service, "deadline", lambda: Deadline.after(3))
    response = post(cat, headers=EVENTS, method="rise", samples="20000")
    name, problem = parsed(response.get_data(as_text=True))[-1]
    assert (name, problem["status"], problem["type"]) == ("error", 504, "urn:seewhy:problem:deadline-exceeded")
    assert "% of the work was done" in problem["detail"]


@pytest.mark.parametrize(
    ("accept", "form", "expected"),
    [
        ("text/event-stream", None, "text/event-stream"),
        ("text/event-stream", "json", "text/event-stream"),
        ("text/event-stream", "png", "image/png"),
        ("text/event-stream;q=0.5, application/json", None, "application/json"),
        ("*/*", None, "image/png"),
        (None, None, "image/png"),
    ],
)
def test_the_stream_is_negotiated(accept, form, expected, post, cat):
    fields = {"format": form} if form else {}
    response = post(cat, headers={"Accept": accept} if accept else {}, **fields)
    assert (response.status_code, response.mimetype) == (200, expected)


def test_who_closes_the_stream_cancels_the_work():
    port = free_port()
    process = start(port)
    try:
        url = f"http://127.0.0.1:{port}/explain"
        picture = (EXAMPLES / "cat.png").read_bytes()
        fields = {"method": "rise", "samples": "20000"}
        with requests.post(url, files={"image": picture}, data=fields, headers=EVENTS, stream=True, timeout=60) as long:
            lines = long.iter_lines(decode_unicode=True, chunk_size=None)
            while not next(lines).startswith('data: {"done":1'):
                pass
        started = time.monotonic()
        assert requests.post(url, files={"image": picture}, timeout=60).status_code == 200
        assert time.monotonic() - started < 15  # all the masks would take minutes
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_a_stream_that_nobody_reads_is_given_up(service, cat):
    """As when the connection breaks before the first event."""
    options = parse(ExplainOptions, {"method": "rise", "samples": 20000})
    unread = events.stream(service, cat, options)
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(service.predict, cat, parse(PredictOptions, {}))
        del unread
        assert next_one.result(15).predictions[0].label == "tiger cat"
