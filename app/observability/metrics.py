"""The metrics of GET /metrics. docs/operations.md lists them.

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
    "process_resident_memory_bytes": (GaugeMetricFamily, "Resident memory of each process."),
    "process_cpu_seconds": (CounterMetricFamily, "Processor time used by each process."),
    "process_threads": (GaugeMetricFamily, "Number of threads of each process."),
    "process_open_fds": (GaugeMetricFamily, "Open files and connections of each process."),
    "process_max_fds": (GaugeMetricFamily, "Limit of open files of each process."),
    "process_start_time_seconds": (GaugeMetricFamily, "Start time of each process, in seconds since 1970."),
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each metric, which is not used


class Metrics(Observer):
    """The metrics of one application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._class_indices: dict[str, set[int]] = {}
        self._registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self._requests = counter(
            "seewhy_requests",
            "Requests, by route, model, method and status.",
            _REQUEST,
        )
        self._seconds = histogram(
            "seewhy_request_duration_seconds",
            "Duration of requests, from their headers to the end of the response, by class of status (2xx).",
            _REQUEST,
            buckets=_SECONDS,
        )
        self._stages = histogram(
            "seewhy_stage_duration_seconds",
            "Duration of each stage: decode, queue, explain (or predict, trace and so on), render, encode.",
            ("stage", "model"),
            buckets=_STAGE_SECONDS,
        )
        self._open = gauge("seewhy_requests_in_progress", "Requests in progress.")
        self._rejections = counter(
            "seewhy_rejections",
            "Requests that were refused or failed, by problem code; client-gone if the client disconnected.",
            ("reason",),
        )
        for reason in CODES:  # from the start: Prometheus sees no increase in a series that begins with 1
            self._rejections.labels(reason)
        self._cache = counter("seewhy_cache", "Responses that the client had cached (unchanged, 304).", ("result",))
        self._waiting = gauge("seewhy_jobs_waiting", "Pictures that wait for a model.", _MODEL)
        self._running = gauge("seewhy_jobs_running", "Pictures that a model is processing.", _MODEL)
        self._underway = gauge(
            "seewhy_batches_underway",
            "Unfinished batches of a model, by length: short, medium or long.",
            ("model", "tier"),
        )
        self._yields = counter(
            "seewhy_yields",
            "Times that a batch let other work run between two of its passes.",
            ("model", "tier"),
        )
        self._cost = counter(
            "seewhy_cost",
            "Cost of the requests for a model; 1 is a Grad-CAM by a model with an input of 224×224 pixels.",
            ("model", "method"),
        )
        self._batches = histogram("seewhy_batch_size", "Pictures per pass through a model.", _MODEL, buckets=_BATCHES)
        self._batch_seconds = Summary(
            "seewhy_batch_duration_seconds",
            "Duration of batches that did not fail, by number of pictures.",
            ("model", "size"),
            registry=registry,
        )
        self._last_batch = Gauge(
            "seewhy_last_batch_timestamp_seconds",
            "End of the latest batch of a model that did not fail, in seconds since 1970.",
            _MODEL,
            multiprocess_mode="max",
            registry=registry,
        )
        self._memory = gauge(
            "seewhy_memory_used_bytes", "Memory used by requests: bodies, pixels, tensors and responses."
        )
        self._memory_limit = gauge(
            "seewhy_memory_limit_bytes",
            "Memory limit for all requests together; requests beyond it are refused with 503.",
        )
        self._loads = histogram(
            "seewhy_model_load_duration_seconds",
            "Time to load a model, including compilation.",
            _MODEL,
            buckets=_LOAD_SECONDS,
        )
        self._failures = counter("seewhy_model_load_failures", "Failures to load a model.", _MODEL)
        self._hooks = gauge("seewhy_hooks", "Hooks on an idle model; any value other than 0 is a leak.", _MODEL)
        self._loaded = gauge(
            "seewhy_model_info",
            "Number of processes that have a model in memory, by fingerprint of its weights and settings.",
            ("model", "fingerprint", "device"),
        )
        self._diagnostics = counter(
            "seewhy_diagnostics",
            "Heatmaps with a diagnostic, such as blank maps and improbable classes, by code.",
            ("model", "code"),
        )
        self._proofs = counter(
            "seewhy_proofs",
            "Heatmaps with a proof, by grade.",
            ("model", "method", "grade"),
        )
        self._statistics = [
            histogram(name, text, ("model", "method"), buckets=buckets)
            for name, text, buckets in (
                ("seewhy_heatmap_entropy", "Entropy of heatmaps: 0 is a single point, 1 is uniform.", _ENTROPIES),
                ("seewhy_heatmap_centre_x", "Centre of mass of heatmaps, as a share of the picture's width.", _TENTHS),
                ("seewhy_heatmap_centre_y", "Centre of mass of heatmaps, as a share of the picture's height.", _TENTHS),
                ("seewhy_explained_probability", "Probability of the explained classes.", _TENTHS),
            )
        ]
        self._class_statistics = [
            Summary(name, text, ("model", "class", "label"), registry=registry)
            for name, text in (
                ("seewhy_class_heatmap_entropy", "Mean entropy of the heatmaps of a class."),
                ("seewhy_class_heatmap_centre_x", "Mean horizontal centre of mass of the heatmaps of a class."),
                ("seewhy_class_heatmap_centre_y", "Mean vertical centre of mass of the heatmaps of a class."),
                ("seewhy_class_explained_probability", "Mean probability of an explained class."),
            )
        ]
        registry.register(Processes(settings))

    def request_started(self, record: Record, headers: Mapping[str, str]) -> None:
        """Count a new request."""
        self._open.inc()

    def request_finished(self, record: Record) -> None:
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

    def model_loaded(self, model: LoadedModel, seconds: float) -> None:
        """Count a model."""
        self._loads.labels(model.name).observe(seconds)
        self._loaded.labels(model.name, model.fingerprint, str(model.device)).inc()

    def model_failed(self, name: str, error: BaseException) -> None:
        """Count a model that could not be loaded."""
        self._failures.labels(name).inc()

    def model_dropped(self, model: LoadedModel) -> None:
        """Stop counting a model."""
        self._loaded.labels(model.name, model.fingerprint, str(model.device)).dec()
        self._hooks.labels(model.name).set(0)

    def queue_changed(self, name: str, jobs: int) -> None:
        """Set the number of waiting jobs."""
        self._waiting.labels(name).set(jobs)

    def batch_started(self, name: str, jobs: Sequence[Job]) -> None:
        """Count a batch."""
        self._running.labels(name).inc(len(jobs))
        self._batches.labels(name).observe(len(jobs))

    def batch_finished(
        self, name: str, jobs: Sequence[Job], started: float, seconds: float, *, succeeded: bool
    ) -> None:
        """Stop counting the jobs of a batch."""
        self._running.labels(name).dec(len(jobs))
        if succeeded:
            self._batch_seconds.labels(name, str(len(jobs))).observe(seconds)
            self._last_batch.labels(name).set_to_current_time()

    def batches_changed(self, name: str, batches: Mapping[Tier, int]) -> None:
        """Set the number of running batches."""
        for tier, count in batches.items():
            self._underway.labels(name, tier).set(count)

    def batch_paused(self, name: str, tier: Tier) -> None:
        """Count a batch that lets others run."""
        self._yields.labels(name, tier).inc()

    def model_idle(self, name: str, model: LoadedModel) -> None:
        """Count hooks left on the model."""
        self._hooks.labels(name).set(count_hooks(model.module))

    def memory_changed(self, used: int, size: int) -> None:
        """Set the memory that requests hold."""
        self._memory.set(used)
        self._memory_limit.set(size)

    def pictures_explained(self, model: LoadedModel, explanations: Sequence[Explanation]) -> None:
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
        """Return all metrics, of all processes, and their content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._service_registry()), content_type

    def families(self) -> Iterable[Metric]:
        """Return all metrics, of all processes."""
        return self._service_registry().collect()

    def _service_registry(self) -> CollectorRegistry:
        if FOLDER not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(Processes(self._settings))
        return registry


class Processes(Collector):
    """Metrics computed at each scrape: the software, limits, and the resources of each process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        software = {name: version(package) for name, package in (("version", "seewhy"), ("torch", "torch"))}
        yield InfoMetricFamily("seewhy_build", "Installed software.", value=software)
        yield GaugeMetricFamily(
            "seewhy_queue_limit",
            "Maximum number of pictures that may wait for a model, in all processes together.",
            value=self._settings.queue_size * self._settings.workers,
        )
        families = {name: family(name, text, labels=("pid",)) for name, (family, text) in _PROCESS.items()}
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
