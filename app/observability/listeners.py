"""Who listens to requests and models: metrics, logs and traces. None of them can make a request fail."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ParamSpec, TypeVar

from flask import Flask, Response, g, request

from seewhy.app.observability import logs
from seewhy.app.observability.metrics import Metrics
from seewhy.app.observability.tracing import Traces, traces_of
from seewhy.app.pipeline.jobs import Job
from seewhy.app.pipeline.record import Observer, Record, begin, current, request_id
from seewhy.app.pipeline.scheduler import Tier
from seewhy.app.settings import Settings
from seewhy.explainers.results.explanation import Explanation
from seewhy.models import LoadedModel

P = ParamSpec("P")
T = TypeVar("T")

OTHER = "other"
"""The route of requests whose path leads nowhere."""

_log = logging.getLogger(__name__)


class Operations(Observer):
    """Listens for one application.

    Args:
        settings: what to listen for.

    Raises:
        FieldError: traces are asked for, and not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.metrics = Metrics(settings)
        self._make_traces = traces_of(settings)
        self._traces: Traces | None = None
        self._lock = threading.Lock()
        self.listeners: list[Callable[[Record], object]] = []
        """Are told of each request that is over."""

    @property
    def traces(self) -> Traces | None:
        """The traces, if they are on; made when the first request comes, for by then the process has been forked."""
        if self._traces is None and self._make_traces is not None:
            with self._lock:
                self._traces = self._traces or self._make_traces()
        return self._traces

    def watch(self, app: Flask) -> None:
        """Listen to all requests of an application; what its earlier hooks do is not seen."""
        app.before_request(self._begin)
        app.after_request(self._answered)

    def _begin(self) -> None:
        rule = request.url_rule
        record = Record(request.method, rule.rule if rule is not None else OTHER)
        record.request_id = request_id.get() or ""
        record.received = request.content_length
        record.address = request.remote_addr or ""
        begin(record)
        _tell(self.metrics.begun)
        if self.traces is not None:
            _tell(self.traces.begin, record, request.headers)

    def _answered(self, response: Response) -> Response:
        record = current()
        if not record.route:  # it is over: where a hook raises, Flask calls them all again
            return response
        record.client = g.get("client") or ""
        record.status = response.status_code
        record.sent = 0 if request.method == "HEAD" else response.content_length
        if not response.is_streamed:
            self._end(record)
            return response
        if record.sent is None:
            response.response = _counted(response.iter_encoded(), response.response, record)
        response.call_on_close(lambda: self._end(record))
        return response

    def _end(self, record: Record) -> None:
        record.seconds = time.monotonic() - record.started
        _tell(self.metrics.answered, record)
        if self.traces is not None:
            _tell(self.traces.answered, record)
        _tell(logs.answered, record)
        for listen in self.listeners:
            _tell(listen, record)
        begin(None)

    def close(self) -> None:
        """Send the spans that wait; it may take some seconds where nobody takes them."""
        if self._traces is not None:
            _tell(self._traces.provider.shutdown)

    def loaded(self, model: LoadedModel, seconds: float) -> None:
        """Count and log a model."""
        _tell(self.metrics.loaded, model, seconds)
        _log.info("Loaded the model %s in %.1f s", model.name, seconds)
        if model.name == self._settings.default_model:
            _log.info("Ready on http://%s:%d", self._settings.host, self._settings.port)

    def not_loaded(self, name: str, error: BaseException) -> None:
        """Count and log a model that could not be loaded."""
        _tell(self.metrics.not_loaded, name, error)
        _log.error("The model %s could not be loaded: %s", name, error)

    def missing(self, name: str, error: Exception) -> None:
        """Log a model without weights. It is no failure to count: whoever asks may name any model."""
        _log.warning("The model %s cannot be loaded: %s", name, error)

    def unloaded(self, model: LoadedModel) -> None:
        """Discount a model."""
        _tell(self.metrics.unloaded, model)
        _log.info("Dropped the model %s to make room", model.name)

    def waiting(self, name: str, jobs: int) -> None:
        """Tell how many jobs wait."""
        _tell(self.metrics.waiting, name, jobs)

    def starting(self, name: str, jobs: Sequence[Job]) -> None:
        """Count a batch."""
        _tell(self.metrics.starting, name, jobs)

    def finished(self, name: str, jobs: Sequence[Job], started: float, seconds: float) -> object:
        """Discount the jobs of a batch, and trace it."""
        _tell(self.metrics.finished, name, jobs, started, seconds)
        if self._traces is None:
            return None
        return _tell(self._traces.batch, name, [job.record for job in jobs], started, seconds)

    def underway(self, name: str, batches: Mapping[Tier, int]) -> None:
        """Tell how many batches are under way."""
        _tell(self.metrics.underway, name, batches)

    def yielded(self, name: str, tier: Tier) -> None:
        """Count a batch that lets others run."""
        _tell(self.metrics.yielded, name, tier)

    def rests(self, name: str, model: LoadedModel) -> None:
        """Count what hooks were left behind."""
        _tell(self.metrics.rests, name, model)

    def memory(self, used: int, size: int) -> None:
        """Tell how much memory requests hold."""
        _tell(self.metrics.memory, used, size)

    def explained(self, model: LoadedModel, found: Sequence[Explanation]) -> None:
        """Look at heatmaps."""
        _tell(self.metrics.explained, model, found)


def _tell(listen: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Tell a listener something, and log what it raises: it must not end a request, let alone the thread of a model."""
    try:
        return listen(*args, **kwargs)
    except Exception:
        _log.exception("What happened could not be recorded")
        return None


def _counted(chunks: Iterator[bytes], source: Iterable[object], record: Record) -> Iterator[bytes]:
    """Yield a body, and count its bytes."""
    record.sent = 0
    try:
        for chunk in chunks:
            record.sent += len(chunk)
            yield chunk
    finally:
        if hasattr(source, "close"):
            source.close()
