"""The metrics of GET /metrics. The help of each is the question it answers; docs/operations.md lists them.

All labels have a bounded set of values: routes are templates, models and methods are names of the catalogues, reasons
are codes of `seewhy.app.errors`, and only some classes are named (`SEEWHY_METRICS_CLASSES`).
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from seewhy.app.errors import CODES
from seewhy.app.observability.heatmap_statistics import spread
from seewhy.app.observability.processes import FOLDER, live_processes
from seewhy.app.pipeline.jobs import Job
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record
from seewhy.app.pipeline.scheduler import Tier
from seewhy.app.settings import Settings
from seewhy.explainers.hooks.registered import count_hooks
from seewhy.explainers.results.explanation import Explanation
from seewhy.models import LoadedModel

PROC = Path("/proc")

OTHER = "other"
"""The label of classes that are not named."""

_MODEL = ("model",)
_REQUEST = ("route", "model", "method", "status")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_STAGE_SECONDS = (0.001, 0.0025, *_SECONDS)
_LOAD_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_ENTROPIES = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0)
_TENTHS = tuple(tenth / 10 for tenth in range(1, 11))

_PROCESS: dict[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str]] = {
    "process_resident_memory_bytes": (GaugeMetricFamily, "How much memory does each process hold?"),
    "process_cpu_seconds": (CounterMetricFamily, "How much processor time has each process used?"),
    "process_threads": (GaugeMetricFamily, "How many threads does each process have?"),
    "process_open_fds": (GaugeMetricFamily, "How many files and connections has each process open?"),
    "process_max_fds": (GaugeMetricFamily, "How many may it have open?"),
    "process_start_time_seconds": (GaugeMetricFamily, "When did each process start, in seconds since 1970?"),
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each metric, which is not used


class Metrics(Observer):
    """The metrics of one application.

    Args:
        settings: settings of the application.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._class_indices: dict[str, set[int]] = {}
        self._registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self._requests = counter(
            "seewhy_requests",
            "How many requests were there, by route, model, method of explanation and status?",
            _REQUEST,
        )
        self._seconds = histogram(
            "seewhy_request_duration_seconds",
            "How long did requests take, from their head to the end of the answer, by class of status (2xx)?",
            _REQUEST,
            buckets=_SECONDS,
        )
        self._stages = histogram(
            "seewhy_stage_duration_seconds",
            "Where did the time go: decode, queue, explain (or predict, trace and so on), render, encode?",
            ("stage", "model"),
            buckets=_STAGE_SECONDS,
        )
        self._open = gauge("seewhy_requests_in_progress", "How many requests are being answered?")
        self._rejections = counter(
            "seewhy_rejections",
            "How many requests were refused or failed, by code of the problem; client-gone: nobody waited?",
            ("reason",),
        )
        for reason in CODES:  # from the start: Prometheus sees no increase in a series that begins with 1
            self._rejections.labels(reason)
        self._cache = counter(
            "seewhy_cache", "How many answers did the client have already (unchanged, 304)?", ("result",)
        )
        self._waiting = gauge("seewhy_jobs_waiting", "How many pictures wait for a model?", _MODEL)
        self._running = gauge("seewhy_jobs_running", "How many pictures is a model at work on?", _MODEL)
        self._underway = gauge(
            "seewhy_batches_underway",
            "How many batches of short, medium and long work has a model begun and not finished?",
            ("model", "tier"),
        )
        self._yields = counter(
            "seewhy_yields",
            "How often did a batch let other work run between two of its passes?",
            ("model", "tier"),
        )
        self._cost = counter(
            "seewhy_cost",
            "How much was asked of a model? 1 is a Grad-CAM of a model of 224×224 pixels.",
            ("model", "method"),
        )
        self._batches = histogram(
            "seewhy_batch_size", "How many pictures share a pass through a model?", _MODEL, buckets=_BATCHES
        )
        self._memory = gauge(
            "seewhy_memory_used_bytes", "How much memory do requests hold: bodies, pixels, tensors, answers?"
        )
        self._memory_limit = gauge(
            "seewhy_memory_limit_bytes", "How much may they hold together? More are refused with 503."
        )
        self._loads = histogram(
            "seewhy_model_load_duration_seconds",
            "How often was a model loaded, and how long did it take, compiling included?",
            _MODEL,
            buckets=_LOAD_SECONDS,
        )
        self._failures = counter("seewhy_model_load_failures", "How often could a model not be loaded?", _MODEL)
        self._hooks = gauge(
            "seewhy_hooks", "How many hooks are on a model while it rests? Other than none is a leak.", _MODEL
        )
        self._loaded = gauge(
            "seewhy_model_info",
            "Which models are in memory, in how many processes, and of which weights and settings (fingerprint)?",
            ("model", "fingerprint", "device"),
        )
        self._diagnostics = counter(
            "seewhy_diagnostics",
            "How many maps were blank, how many classes improbable or certain, by the codes of diagnostics?",
            ("model", "code"),
        )
        self._proofs = counter(
            "seewhy_proofs",
            "How many maps were borne out, by the grades of their proofs?",
            ("model", "method", "grade"),
        )
        self._statistics = [
            histogram(name, question, ("model", "method"), buckets=buckets)
            for name, question, buckets in (
                ("seewhy_heatmap_entropy", "How spread out are heatmaps: 0 a point, 1 no preference?", _ENTROPIES),
                ("seewhy_heatmap_centre_x", "Where is their centre, as a share of the picture's width?", _TENTHS),
                ("seewhy_heatmap_centre_y", "Where is their centre, as a share of the picture's height?", _TENTHS),
                ("seewhy_explained_probability", "How probable are the classes that are explained?", _TENTHS),
            )
        ]
        self._class_statistics = [
            Summary(name, question, ("model", "class", "label"), registry=registry)
            for name, question in (
                ("seewhy_class_heatmap_entropy", "How spread out are the heatmaps of a class, in the mean?"),
                ("seewhy_class_heatmap_centre_x", "Where is the centre of a class's heatmaps across, in the mean?"),
                ("seewhy_class_heatmap_centre_y", "Where is the centre of a class's heatmaps down, in the mean?"),
                ("seewhy_class_explained_probability", "How probable is a class that is explained, in the mean?"),
            )
        ]
        registry.register(Processes(settings))

    def begun(self, record: Record, headers: Mapping[str, str]) -> None:
        """Count a new request."""
        self._open.inc()

    def answered(self, record: Record) -> None:
        """Count a request that is over."""
        self._open.dec()
        self._requests.labels(record.route, record.model, record.method, str(record.status)).inc()
        status = f"{record.status // 100}xx"
        self._seconds.labels(record.route, record.model, record.method, status).observe(record.seconds)
        for stage, milliseconds in record.stages.items():
            self._stages.labels(stage, record.model).observe(milliseconds / 1000)
        if record.problem:
            self._rejections.labels(record.problem).inc()
        if record.charged:
            self._cost.labels(record.model, record.method).inc(record.charged)
        if record.cache:
            self._cache.labels(record.cache).inc()

    def loaded(self, model: LoadedModel, seconds: float) -> None:
        """Count a model."""
        self._loads.labels(model.name).observe(seconds)
        self._loaded.labels(model.name, model.fingerprint, str(model.device)).inc()

    def not_loaded(self, name: str, error: BaseException) -> None:
        """Count a model that could not be loaded."""
        self._failures.labels(name).inc()

    def unloaded(self, model: LoadedModel) -> None:
        """Stop counting a model."""
        self._loaded.labels(model.name, model.fingerprint, str(model.device)).dec()
        self._hooks.labels(model.name).set(0)

    def waiting(self, name: str, jobs: int) -> None:
        """Set the number of waiting jobs."""
        self._waiting.labels(name).set(jobs)

    def starting(self, name: str, jobs: Sequence[Job]) -> None:
        """Count a batch."""
        self._running.labels(name).inc(len(jobs))
        self._batches.labels(name).observe(len(jobs))

    def finished(self, name: str, jobs: Sequence[Job], started: float, seconds: float) -> None:
        """Stop counting the jobs of a batch."""
        self._running.labels(name).dec(len(jobs))

    def underway(self, name: str, batches: Mapping[Tier, int]) -> None:
        """Set the number of running batches."""
        for tier, count in batches.items():
            self._underway.labels(name, tier).set(count)

    def yielded(self, name: str, tier: Tier) -> None:
        """Count a batch that lets others run."""
        self._yields.labels(name, tier).inc()

    def rests(self, name: str, model: LoadedModel) -> None:
        """Count hooks left on the model."""
        self._hooks.labels(name).set(count_hooks(model.module))

    def memory(self, used: int, size: int) -> None:
        """Set the memory that requests hold."""
        self._memory.set(used)
        self._memory_limit.set(size)

    def explained(self, model: LoadedModel, explanations: Sequence[Explanation]) -> None:
        """Record statistics of heatmaps, which show drift of pictures and models."""
        for explanation in explanations:
            for diagnostic in explanation.diagnostics:
                self._diagnostics.labels(model.name, diagnostic.code).inc()
            if explanation.proof is not None:
                grade = explanation.proof.grade or "ungraded"
                self._proofs.labels(model.name, explanation.method, grade).inc()
            statistics = spread(explanation.map, explanation.geometry)
            if statistics is None:
                continue
            values = (*statistics, explanation.target.probability)
            index, label = self._class(model, explanation.target.index, explanation.target.label)
            for histogram, summary, value in zip(self._statistics, self._class_statistics, values, strict=True):
                if value is None:  # a value has no probability
                    continue
                histogram.labels(model.name, explanation.method).observe(value)
                if index:
                    summary.labels(model.name, index, label).observe(value)

    def _class(self, model: LoadedModel, index: int, label: str) -> tuple[str, str]:
        """Return the name of a class; the first explained classes of a model have their own, the others share one."""
        most = self._settings.metrics_classes
        with self._lock:
            indices = self._class_indices.setdefault(model.name, set())
            if index not in indices and len(indices) < most:
                indices.add(index)
            if index in indices:
                return str(index), label
        return (OTHER, OTHER) if most else ("", "")

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics, of all processes, and their content type.

        Args:
            accept: the client's Accept header: OpenMetrics or Prometheus text.
        """
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            registry.register(Processes(self._settings))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type


class Processes(Collector):
    """Metrics computed at each scrape: the software, limits, and the resources of each process.

    Args:
        settings: settings of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        software = {name: version(package) for name, package in (("version", "seewhy"), ("torch", "torch"))}
        yield InfoMetricFamily("seewhy_build", "Which software runs?", value=software)
        yield GaugeMetricFamily(
            "seewhy_queue_limit",
            "How many pictures may wait for a model, in all processes together?",
            value=self._settings.queue_size * self._settings.workers,
        )
        families = {name: family(name, question, labels=("pid",)) for name, (family, question) in _PROCESS.items()}
        for pid in live_processes():
            for name, value in _usage(pid).items():
                families[name].add_metric([str(pid)], value)
        yield from families.values()


def _usage(pid: int) -> dict[str, float]:
    """Return the resources of a process; empty if the system does not report them."""
    metrics = ProcessCollector(pid=lambda: pid, proc=str(PROC), registry=None).collect()
    values = {metric.name: metric.samples[0].value for metric in metrics if metric.name in _PROCESS}
    with suppress(OSError):
        values["process_threads"] = float(len(list((PROC / str(pid) / "task").iterdir())))
    return values
