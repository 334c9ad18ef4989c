"""Spans of requests, stages and batches, as an exporter gets them."""

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from seewhy.app import create_app
from seewhy.app.errors import FieldError
from seewhy.app.observability import tracing as traces
from seewhy.app.observability.listeners import Operations
from seewhy.app.settings import Settings
from tests.app.serving import explain

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def exporter():
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def own_app(exporter, sharing):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "exporter", lambda: exporter)
        app = create_app(Settings(traces=True))
        app.test_client().get("/healthz")  # makes the traces
    with sharing():
        yield app
    app.extensions["seewhy"].models.engine.stop()
    app.extensions["seewhy-operations"].traces.provider.shutdown()


@pytest.fixture
def client(own_app):
    return own_app.test_client()


@pytest.fixture
def spans(own_app, exporter):
    """Return a function that returns the spans made since the test began, by name."""
    provider = own_app.extensions["seewhy-operations"].traces.provider
    provider.force_flush()
    exporter.clear()

    def finished():
        provider.force_flush()
        return exporter.get_finished_spans()

    return finished


def test_a_request_and_its_stages_continue_the_trace_of_the_client(post, cat, spans):
    post(cat, method="layercam", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    results = {span.name: span for span in spans()}
    assert set(results) == {"POST /explain", "decode", "queue", "explain", "render", "encode", "batch"}
    request = results["POST /explain"]
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.kind is SpanKind.SERVER
    assert request.attributes["http.route"] == "/explain"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["seewhy.model"] == "efficientnet_lite0"
    assert request.attributes["seewhy.method"] == "layercam"
    assert request.resource.attributes["service.name"] == "seewhy"
    order = [results[name] for name in ("decode", "queue", "explain", "render", "encode")]
    for span in order:
        assert span.parent.span_id == request.context.span_id
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time
    assert [span.start_time for span in order] == sorted(span.start_time for span in order)


def test_a_batch_and_its_requests_are_linked(own_app, cat, spans):
    def ask(number):
        data = {"image": (io.BytesIO(cat), "cat"), "target": str(number), "format": "npz"}
        return own_app.test_client().post("/explain", data=data, buffered=True).status_code

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [200] * 6
    tree = spans()
    batches = {span.context.span_id: span for span in tree if span.name == "batch"}
    requests = {span.context.span_id for span in tree if span.name == "POST /explain"}
    assert len(requests) == 6
    linked = [link.context.span_id for span in batches.values() for link in span.links]
    assert sorted(linked) == sorted(requests)
    assert sum(span.attributes["seewhy.batch.size"] for span in batches.values()) == 6
    for span in tree:
        if span.name == "explain":
            (link,) = span.links
            assert span.parent.span_id in [peer.context.span_id for peer in batches[link.context.span_id].links]


def test_failures_are_marked_and_strange_parents_ignored(own_app, client, post, cat, spans, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake")

    client.get("/made-up/4711", headers={"traceparent": "no-parent"})
    monkeypatch.setattr(own_app.extensions["seewhy"], "explain", fail)
    post(cat)
    lost, failed = spans()
    assert (lost.name, lost.parent, lost.status.status_code) == ("GET other", None, StatusCode.UNSET)
    assert lost.attributes["seewhy.problem"] == "not-found"
    assert failed.status.status_code is StatusCode.ERROR


def test_the_line_of_a_request_names_its_trace(client, caplog):
    caplog.set_level("INFO")
    client.get("/methods", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    (line,) = [record.fields for record in caplog.records if record.name == "seewhy.requests"]
    assert line["trace_id"] == TRACE


def test_an_unsampled_request_makes_no_span(post, cat, spans):
    assert post(cat, method="gradcam", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}).status_code == 200
    assert spans() == ()


def test_off_unless_asked_for(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert traces.traces_of(Settings()) is None
    assert Operations(Settings()).traces is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert isinstance(traces.traces_of(Settings()), traces.Traces)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert traces.traces_of(Settings(traces=True)) is None


def test_without_the_packages_they_are_off_and_who_asks_is_told(monkeypatch):
    monkeypatch.setattr(traces, "_PACKAGES", ("no_such_package.sdk",))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert traces.traces_of(Settings()) is None
    with pytest.raises(FieldError, match=r"pip install 'seewhy\[otel\]'"):
        create_app(Settings(traces=True))


def test_off_costs_not_even_an_import(tight):
    assert explain(tight.url).status_code == 200
    assert not list((tight.folder / "opentelemetry").glob("*.imported"))
