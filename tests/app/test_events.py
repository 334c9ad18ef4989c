"""Explanations as streams of server-sent events."""

import base64
import io
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import torch
from PIL import Image

from seewhy.app.answers.stream import in_time
from seewhy.app.pipeline.jobs import Deadline, JobProgress
from seewhy.app.pipeline.options import PredictOptions
from seewhy.app.pipeline.parse import parse
from seewhy.app.pipeline.scheduler import Pace
from seewhy.app.pipeline.ticket import Ticket
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import CAT, application, declare, rests, underway
from tests.app.test_engine import Over
from tests.waiting import GUARD

EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """An application whose model is small, for many passes."""
    folder = tmp_path_factory.mktemp("small")
    torch.save(nets.seeded(nets.Net).state_dict(), folder / "w.pth")
    with application(deadline=GUARD, models=declare(folder), default_model="mine") as app:
        yield app


@pytest.fixture(scope="module")
def service(app):
    return app.extensions["seewhy"]


def parsed(text):
    """Return the events of a stream as pairs of name and data."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    lines = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(block["event"], json.loads(block["data"])) for block in lines]


def picture(url):
    return Image.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2])))


@pytest.fixture
def events_of(service, monkeypatch):
    """Return a function that reads a stream, while the model waits before each pass until the stream has looked at it.

    Streams look at the model ten times a second: they might see the end alone.
    """
    monkeypatch.setattr("seewhy.app.pipeline.batches._FRAME", 0.0)
    monkeypatch.setattr("seewhy.app.http.events._GLANCE", 0.01)
    module = service.models.engine.model(service.settings.default_model, Deadline.after(GUARD)).module
    look, is_watched, begun = Ticket.wait, threading.Event(), threading.Event()

    def let_go():
        is_watched.clear(), begun.set()

    def wait(ticket, seconds):
        is_watched.set(), begun.set()
        is_over = look(ticket, seconds)
        if is_over:
            let_go()
        return is_over

    def hold(*_):
        for _ in range(2):  # the look that has begun already may have missed the pass before
            if is_watched.is_set():
                begun.clear()
                begun.wait(GUARD)

    monkeypatch.setattr(Ticket, "wait", wait)
    handle = module.register_forward_pre_hook(hold)

    yield lambda response: parsed(b"".join(response.response).decode())
    let_go()
    handle.remove()


def test_a_stream_ends_with_the_answer(post, cat, events_of):
    fields = {"method": "rise", "samples": "60", "top": "2", "values": "true"}
    response = post(cat, headers=EVENTS, **fields)
    assert response.mimetype == "text/event-stream"
    assert response.headers["X-Accel-Buffering"] == "no"
    events = events_of(response)
    assert [name for name, _ in events].count("answer") == 1
    reports = [data for name, data in events[:-1]]
    assert len(reports) > 3
    assert {data["total"] for data in reports} <= {0, 1000}
    for key in ("done", "elapsed_ms"):
        assert all(earlier[key] <= later[key] for earlier, later in itertools.pairwise(reports))
    assert any(0 < data["done"] < 500 for data in reports)  # the first class
    assert any(data["done"] >= 500 for data in reports)
    name, answer = events[-1]
    assert name == "answer"
    plain = post(cat, format="json", **fields).get_json()
    assert set(answer) == set(plain)
    assert len(answer["explanations"]) == 2
    for explanation, expected in zip(answer["explanations"], plain["explanations"], strict=True):
        assert explanation["target"]["label"] == expected["target"]["label"]
        np.testing.assert_allclose(explanation["heatmap"]["values"], expected["heatmap"]["values"], atol=1e-4)


def distance(first, second):
    return np.abs(np.asarray(first, int) - np.asarray(second, int)).mean()


def test_the_picture_refines(post, cat, events_of):
    """Each preview is drawn like the answer for the first class; the last one is nearer to it than the first."""
    fields = {"method": "smoothgrad", "samples": "40", "view": "heatmap", "scale": "robust", "top": "2"}
    events = events_of(post(cat, headers=EVENTS, **fields))
    urls = [data["preview"] for name, data in events if name == "progress" and "preview" in data]
    assert len(urls) == len(set(urls)) >= 2
    final = picture(events[-1][1]["explanations"][0]["overlay"])
    assert {picture(url).size for url in urls} == {final.size}
    assert distance(picture(urls[-1]), final) < min(10, distance(picture(urls[0]), final))


def test_a_preview_beside_the_picture_is_small_too(post, cat, events_of):
    fields = {"method": "smoothgrad", "samples": "20", "view": "side-by-side"}
    events = events_of(post(cat, headers=EVENTS, **fields))
    sizes = [max(picture(data["preview"]).size) for name, data in events if name == "progress" and "preview" in data]
    assert sizes
    assert max(sizes) <= 530  # with the line between the two


@pytest.mark.parametrize("broken", ["seewhy.app.http.events.draw_map", "seewhy.app.pipeline.jobs.np.isfinite"])
def test_a_preview_that_fails_costs_nobody_the_answer(broken, post, cat, events_of, monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise RuntimeError("no preview")

    monkeypatch.setattr(broken, fail)
    events = events_of(post(cat, headers=EVENTS, method="smoothgrad", samples="20"))
    assert events[-1][0] == "answer"
    assert not any("preview" in data for _, data in events)
    assert "A preview could not be" in caplog.text


@pytest.mark.slow
def test_a_large_picture_has_small_previews(post, events_of):
    buffer = io.BytesIO()
    Image.open(EXAMPLES / "cat.png").resize((1600, 1000)).save(buffer, "JPEG")
    events = events_of(post(buffer.getvalue(), headers=EVENTS, method="smoothgrad", samples="20"))
    previews = [picture(data["preview"]).size for name, data in events if name == "progress" and "preview" in data]
    assert set(previews) == {(512, 320)}
    assert picture(events[-1][1]["explanations"][0]["overlay"]).size == (1600, 1000)


def test_a_method_of_one_pass_has_a_stream_too(post, cat):
    result = parsed(post(cat, headers=EVENTS).get_data(as_text=True))
    assert {name for name, _ in result[:-1]} <= {"progress"}
    assert result[-1][0] == "answer"
    assert not any("preview" in data for _, data in result)


def test_a_stream_has_its_deadline_and_the_time_to_be_read(service, post, cat, monkeypatch):
    """Or clients that read now and then would hold threads for as long as they like."""
    allowed = []

    def noted(pieces, seconds):
        allowed.append(seconds)
        return in_time(pieces, seconds)

    monkeypatch.setattr("seewhy.app.http.routes.pictures.in_time", noted)
    settings = service.settings.model_copy(update={"deadline": 500, "download_seconds": 7})
    monkeypatch.setattr(service, "settings", settings)
    assert "event: answer" in post(cat, headers=EVENTS).get_data(as_text=True)
    (seconds,) = allowed
    assert 7 < seconds <= 507


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"method": "rize"}, 422), ({"target": "no such class"}, 422), ({"against": "a", "target": "a"}, 422)],
)
def test_what_is_wrong_from_the_start_is_an_ordinary_problem(fields, status, post, cat):
    response = post(cat, headers=EVENTS, **fields)
    assert (response.status_code, response.mimetype) == (status, "application/problem+json")
    assert post(b"no picture", headers=EVENTS).status_code == 415


def test_what_goes_wrong_later_is_an_event(post, cat, service, monkeypatch):
    few = {"method": "rise", "samples": "1", "cells": "20", "probability": "0.01"}
    name, problem = parsed(post(cat, headers=EVENTS, **few).get_data(as_text=True))[-1]
    assert (name, problem["status"], problem["errors"][0]["field"]) == ("error", 422, "samples")
    progress = []
    monkeypatch.setattr("seewhy.app.pipeline.batches._FRAME", 0.0)
    monkeypatch.setattr(JobProgress, "look", lambda *_: progress.append(None))
    monkeypatch.setattr(service, "deadline", lambda: Over(lambda: len(progress) > 4))
    monkeypatch.setattr(service.models.engine, "pace", lambda _: Pace())  # or it would be refused at once
    response = post(cat, headers=EVENTS, method="rise", samples="20000")
    name, problem = parsed(response.get_data(as_text=True))[-1]
    assert (name, problem["status"], problem["type"]) == ("error", 504, "urn:seewhy:problem:deadline-exceeded")
    assert "% of the work was done" in problem["detail"]


@pytest.mark.parametrize(
    ("accept", "form", "expected"),
    [
        ("text/event-stream", None, "text/event-stream"),
        ("text/event-stream", "json", "application/json"),
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
    assert response.get_data()


@pytest.mark.fault("a client that closes its stream", "its work ends before the next pass")
def test_who_closes_the_stream_cancels_the_work(url):
    call = {"files": {"image": CAT}, "data": {"method": "rise", "samples": "20000"}, "stream": True, "timeout": GUARD}
    with requests.post(f"{url}/explain", headers=EVENTS, **call) as long:
        lines = long.iter_lines(decode_unicode=True, chunk_size=None)
        while '"total":1000' not in next(lines):
            pass
        assert underway(url) == 1
    assert rests(url, 60)  # all the masks would take minutes


def test_a_stream_that_nobody_reads_is_given_up(app, cat, monkeypatch):
    """As when the connection breaks before the first event."""
    engine = app.extensions["seewhy"].models.engine
    monkeypatch.setattr(engine, "pace", lambda _: Pace())  # or it might be refused at once
    data = {"image": (io.BytesIO(cat), "cat.png"), "method": "rise", "samples": "20000"}
    unread = app.test_client().post("/explain", data=data, headers=EVENTS)
    service = app.extensions["seewhy"]
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(service.predict, cat, parse(PredictOptions, {}))
        unread.close()
        assert next_one.result(GUARD).predictions[0].label in "abc"
