"""Logs: a line per request, as text or JSON, with nothing that clients send except names of options."""

import io
import json
import logging
import logging.config
import socket
import sys
from unittest.mock import Mock

import pytest
from flask import g

from seewhy.app import create_app
from seewhy.app.observability.logs import JsonFormatter, TextFormatter, configuration
from seewhy.app.pipeline.record import Record, begin
from seewhy.app.server.application import Application
from seewhy.app.server.configuration import Server
from seewhy.app.settings import Settings
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, explain
from tests.waiting import until


@pytest.fixture(scope="module")
def own_app(sharing):
    with application() as app, sharing():
        app.before_request(lambda: setattr(g, "client", "clinic"))
        yield app


@pytest.fixture
def client(own_app):
    return own_app.test_client()


@pytest.fixture
def logged(monkeypatch):
    """Return a function that configures the logs and returns the stream that they go to."""
    loggers = {name: logging.getLogger(name) for name in (None, "seewhy", "gunicorn.error")}
    state = {name: (logger.level, logger.handlers[:], logger.propagate) for name, logger in loggers.items()}

    def configure(**settings):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logging.config.dictConfig(configuration(Settings(**settings)))
        return stream

    yield configure
    for name, (level, handlers, propagate) in state.items():
        loggers[name].setLevel(level)
        loggers[name].handlers[:] = handlers
        loggers[name].propagate = propagate


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def requests_of(stream):
    return [line for line in lines(stream) if line["logger"] == "seewhy.requests"]


def test_a_request_is_one_line_of_json(logged, post, cat):
    stream = logged(log_format="json")
    response = post(cat, headers={"X-Request-ID": "request-1"}, method="layercam", target="tabby")
    (line,) = requests_of(stream)
    assert line["message"] == "POST /explain 200"
    assert line["level"] == "info"
    assert line["time"].endswith("Z")
    expected = {
        "request_id": "request-1",
        "client": "clinic",
        "address": "127.0.0.1",
        "verb": "POST",
        "route": "/explain",
        "status": 200,
        "model": "efficientnet_lite0",
        "method": "layercam",
        "options": ["method", "target"],
        "bytes_out": len(response.data),
    }
    assert {name: line[name] for name in expected} == expected
    assert line["bytes_in"] > len(cat)
    assert list(line["stages_ms"]) == ["decode", "queue", "explain", "render", "encode"]
    assert sum(line["stages_ms"].values()) <= line["duration_ms"] + 1
    assert "problem" not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_that_a_client_sends_is_logged_but_names_of_options(form, logged, client, post, cat):
    stream = logged(log_format=form, log_level="debug")
    client.post("/explain?secret-name=secret-value", data=cat, content_type="image/png")
    client.post("/explain?target=secret-value&method=secret-value", data=cat, content_type="image/png")
    client.get(
        "/secret-path?secret-name=secret-value", headers={"Cookie": "secret-value", "User-Agent": "secret-value"}
    )
    client.get("/models/secret-path")
    post(cat, target="secret-value", format="json")
    post(b"secret-value")
    assert stream.getvalue().count("POST /explain ") == 4
    assert "secret" not in stream.getvalue()
    assert "IHDR" not in stream.getvalue()


def test_a_problem_is_named_and_a_failure_has_its_stack_in_one_line(logged, own_app, post, cat, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake\nof ours")

    stream = logged(log_format="json")
    post(b"no picture")
    monkeypatch.setattr(own_app.extensions["seewhy"], "explain", fail)
    assert post(cat).status_code == 500
    refused, failure, answered = [line for line in lines(stream) if "request_id" in line]
    assert (refused["problem"], refused["level"]) == ("unreadable-picture", "info")
    assert failure["level"] == "error"
    assert failure["exception"].startswith("Traceback")
    assert failure["exception"].endswith("RuntimeError: a mistake\nof ours")
    assert (answered["problem"], answered["level"], answered["status"]) == ("internal", "error", 500)


def test_what_is_logged_while_a_request_is_answered_has_its_id():
    record = logging.LogRecord("app", logging.INFO, "", 0, "said %s", ("so",), None)
    begin(Record("GET", "/", request_id="request-2"))
    try:
        assert json.loads(JsonFormatter().format(record))["request_id"] == "request-2"
    finally:
        begin(None)
    assert "request_id" not in json.loads(JsonFormatter().format(record))


def test_a_default_model_without_weights_is_warned_of_at_the_start_and_once(logged):
    app = create_app(Settings(default_model="resnet50"))
    stream = logged(log_format="json", log_level="warning")
    Application(lambda: app).load()
    (line,) = lines(stream)
    assert line["level"] == "warning"
    assert line["message"].startswith("The model resnet50 cannot be loaded: The weights ")
    for path in ("/readyz", "/readyz", "/models/resnet18/layers"):
        app.test_client().get(path)
    app.test_client().post("/predict?model=resnet34", data=b"", content_type="image/png")
    assert [line for line in lines(stream)[1:] if line["logger"] != "seewhy.requests"] == []
    picture = (EXAMPLES / "cat.png").read_bytes()
    for name in ("resnet34", "resnet34", "resnet50"):
        app.test_client().post(f"/predict?model={name}", data=picture, content_type="image/png")
    (warning,) = [line for line in lines(stream)[1:] if line["logger"] != "seewhy.requests"]
    assert warning["message"].startswith("The model resnet34 cannot be loaded: The weights ")
    assert warning["request_id"]


def test_the_level_is_a_setting_and_probes_are_for_debugging(logged, client, post):
    stream = logged(log_format="json", log_level="warning")
    post(b"no picture")
    assert stream.getvalue() == ""
    stream = logged(log_format="json")
    client.get("/healthz"), client.get("/metrics"), client.get("/methods")
    assert [line["route"] for line in requests_of(stream)] == ["/methods"]
    stream = logged(log_format="json", log_level="debug")
    client.get("/healthz")
    assert [line["level"] for line in requests_of(stream)] == ["debug"]


def test_text_is_for_reading(logged, post, cat):
    stream = logged()
    assert post(cat, headers={"X-Request-ID": "request-1"}).status_code == 200
    (line,) = [line for line in stream.getvalue().splitlines() if "POST" in line]
    assert "INFO    POST /explain 200 request_id=request-1 client=clinic" in line
    assert "model=efficientnet_lite0 method=gradcam" in line
    assert "stages_ms=decode:" in line


def test_no_value_breaks_a_line_of_text():
    record = logging.LogRecord("app", logging.INFO, "", 0, "GET / 200", (), None)
    record.fields = {"client": "a\n2026 forged", "options": ["top"]}
    (line,) = TextFormatter().format(record).splitlines()
    assert line.endswith('GET / 200 client="a\\n2026 forged" options=top')


def test_everything_that_the_server_says_is_json(tight):
    assert explain(tight.url).status_code == 200
    with socket.create_connection(("127.0.0.1", tight.port)) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    until(lambda: [line for line in tight.lines() if "Invalid request" in line["message"]])
    loggers = {line["logger"] for line in tight.lines()}
    assert {"gunicorn.error", "seewhy.requests", "seewhy.app.observability.logs"} <= loggers
    assert [line["status"] for line in tight.lines() if line.get("route") == "/explain"][-1:] == [200]


def test_the_server_makes_up_no_line_of_its_own_for_a_request():
    config = Server(Settings()).cfg
    log = object.__new__(config.logger_class)
    log.cfg, log.atoms, log.access_log = config, Mock(), Mock()
    log.access(Mock(), Mock(), {}, None)
    log.atoms.assert_not_called()
    log.access_log.info.assert_not_called()
