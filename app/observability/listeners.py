"""The list of listeners to requests and models: metrics, logs and traces. None of them can make a request fail."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flask import Flask, Response, g, request

from seewhy.app.observability.logs import Logs
from seewhy.app.observability.metrics import Metrics
from seewhy.app.observability.tracing import traces_of
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record, begin, current
from seewhy.app.settings import Settings

OTHER = "other"
"""The route of requests to unknown paths."""

_log = logging.getLogger(__name__)


class Operations(Observer):
    """The listeners of one application. It forwards each event of `Observer` to them, in order.

    Their errors are logged: they must not end a request or the thread of a model.
    """

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics(settings)
        self.traces = traces_of(settings)
        traces = [self.traces] if self.traces is not None else []
        self.listeners: list[Observer] = [self.metrics, *traces, Logs(settings)]  # log lines name the trace

    def watch(self, app: Flask) -> None:
        """Listen to all requests of an application; its earlier hooks are not observed."""
        app.before_request(self._begin)
        app.after_request(self._finish)

    def _begin(self) -> None:
        rule = request.url_rule
        record = Record(request.method, rule.rule if rule is not None else OTHER, current().request_id)
        record.received = request.content_length
        record.address = request.remote_addr or ""
        begin(record)
        self.request_started(record, {name.lower(): value for name, value in request.headers})

    def _finish(self, response: Response) -> Response:
        record = current()
        if not record.route:  # it is over: after an error in a hook, Flask calls them all again
            return response
        record.client = g.get("client") or ""
        record.status = response.status_code
        record.sent = 0 if request.method == "HEAD" else response.content_length
        if not response.is_streamed:
            self._end(record)
            return response
        if record.sent is None:
            response.response = _count(response.iter_encoded(), response.response, record)
        response.call_on_close(lambda: self._end(record))
        return response

    def _end(self, record: Record) -> None:
        record.seconds = time.monotonic() - record.started
        self.request_finished(record)
        begin(None)


def _broadcast(event: str) -> Callable[..., Any]:
    """Return the method of `Operations` for an event. It returns the last true result of a listener, if any."""

    def tell(self: Operations, *args: Any, **details: Any) -> Any:
        result = None
        for listener in self.listeners:
            try:
                result = getattr(listener, event)(*args, **details) or result
            except Exception:
                _log.exception("An event could not be recorded")
        return result

    return tell


# Derived from the protocol, so that an event is declared once.
for _event in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(Operations, _event, _broadcast(_event))


def _count(chunks: Iterator[bytes], source: Iterable[object], record: Record) -> Iterator[bytes]:
    """Yield a body and count its bytes."""
    record.sent = 0
    try:
        for chunk in chunks:
            record.sent += len(chunk)
            yield chunk
    finally:
        if hasattr(source, "close"):
            source.close()
