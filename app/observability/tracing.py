"""OpenTelemetry traces: a span per request, with child spans per stage; a span per batch, linked to its requests.

OpenTelemetry is imported only if traces are on: by `SEEWHY_TRACES`, or by `OTEL_EXPORTER_OTLP_ENDPOINT` if the extra
`seewhy[otel]` is installed. Spans of stages are made when a request is over, from its timings. Everything else is set
by OpenTelemetry's own variables (`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and so on).
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record
from seewhy.app.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

    from seewhy.app.pipeline.jobs import Job

_NAME = "seewhy"
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def traces_of(settings: Settings) -> "Traces | None":
    """Return the traces of an application, or None if they are off.

    Raises:
        FieldError: traces are on, but OpenTelemetry is not installed.
    """
    is_on = settings.traces or "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ
    if not is_on or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if all(map(_is_there, _PACKAGES)):
        return Traces()
    if settings.traces:
        raise FieldError("SEEWHY_TRACES: OpenTelemetry is not installed; pip install 'seewhy[otel]'.", "traces")
    return None


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _provider() -> "TracerProvider":
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    names = {"service.name": os.environ.get("OTEL_SERVICE_NAME", _NAME), "service.version": version("seewhy")}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    return provider


def exporter() -> "SpanExporter":
    """Return the exporter of spans: OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Traces(Observer):
    """The spans of one application."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._provider: TracerProvider | None = None

    @property
    def provider(self) -> "TracerProvider":
        """Creates spans and sends them in a thread; made at the first request, which is after the fork."""
        with self._lock:
            if self._provider is None:
                self._provider = _provider()
            return self._provider

    def close(self) -> None:
        """Send the pending spans; this may take some seconds if the receiver does not respond."""
        if self._provider is not None:
            self._provider.shutdown()

    def request_started(self, record: Record, headers: Mapping[str, str]) -> None:
        """Open the span of a request, as a child of the client's traceparent."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        record.span = self.provider.get_tracer(_NAME).start_span(
            f"{record.verb} {record.route}",
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": record.verb, "http.route": record.route},
            start_time=record.began,
        )
        record.trace_id = f"{record.span.get_span_context().trace_id:032x}"

    def request_finished(self, record: Record) -> None:
        """Close the span of a request and create those of its stages."""
        from opentelemetry.trace import Link, StatusCode, set_span_in_context

        span = record.span
        if span is None:
            return
        if span.is_recording():
            tracer, below = self.provider.get_tracer(_NAME), set_span_in_context(span)
            for timings in record.timings:
                for stage, started, seconds, batch in timings.intervals:
                    start = record.began + int((started - record.started) * 1e9)
                    links = [Link(batch)] if batch is not None else None
                    child = tracer.start_span(stage, context=below, links=links, start_time=start)
                    child.end(start + int(seconds * 1e9))
            facts = {
                "http.response.status_code": record.status,
                "seewhy.model": record.model,
                "seewhy.method": record.method,
                "seewhy.problem": record.problem,
                "seewhy.cache": record.cache,
            }
            span.set_attributes({name: value for name, value in facts.items() if value})
            if record.status >= 500:
                span.set_status(StatusCode.ERROR)
        span.end(record.began + int(record.seconds * 1e9))

    def batch_finished(
        self, name: str, jobs: "Sequence[Job]", started: float, seconds: float, *, succeeded: bool
    ) -> "SpanContext | None":
        """Create the span of a batch, linked to those of its requests; return it, so that they can link back."""
        spans = [job.record.span for job in jobs if job.record.span is not None and job.record.span.is_recording()]
        if not spans:
            return None
        from opentelemetry.context import Context
        from opentelemetry.trace import Link

        start = time.time_ns() - int((time.monotonic() - started) * 1e9)
        unique = {span.get_span_context().span_id: span.get_span_context() for span in spans}
        attributes: dict[str, Any] = {"seewhy.model": name, "seewhy.batch.size": len(spans)}
        span = self.provider.get_tracer(_NAME).start_span(
            "batch",
            context=Context(),
            links=[Link(context) for context in unique.values()],
            attributes=attributes,
            start_time=start,
        )
        span.end(start + int(seconds * 1e9))
        return span.get_span_context()
