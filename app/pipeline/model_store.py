"""The models of the service: loading by name within memory, and readiness of the default model."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import torch

from seewhy.app.errors import DeadlineError, FieldError, NotReadyError, StoppingError
from seewhy.app.memory.budget import MemoryBudget
from seewhy.app.memory.limit import LEAST_BYTES, pass_memory, request_memory
from seewhy.app.memory.models import ModelMemory
from seewhy.app.pipeline.computation import PredictComputation
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.model_threads import EngineOptions
from seewhy.app.pipeline.observer import UNOBSERVED, Observer
from seewhy.app.pipeline.record import current
from seewhy.app.settings import Settings
from seewhy.app.system.allocator import trim
from seewhy.app.system.stopping import stopping
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution.chunks import limit_chunks
from seewhy.explainers.methods.catalogue import get_method, import_methods, unsuitable_methods
from seewhy.explainers.process_wide import accepted_changes
from seewhy.models import LoadedModel, Registry
from seewhy.models.weights import unavailable

RETRY_SECONDS = 9.0
"""Seconds between two attempts of probes to load a default model that failed; a request for it retries at once.

Less than the 10 s after which a process of the server retries, which would otherwise be too early every other time.
"""

FULL_RETRY_SECONDS = 300.0
"""The same if another model must make room for each attempt."""

EVICTION_SECONDS = 10.0
"""Time limit for an idle model to leave memory; it ends at once, unless work has arrived for it."""


class ModelStore:
    """The models of the service.

    Args:
        warm: whether models are compiled when they are loaded rather than after some pictures.
        calibration: calibration of all models; None for their own.

    Attributes:
        registry: all models, loaded or not.
        memory: budget of requests, which models share.
    """

    def __init__(
        self,
        settings: Settings,
        warm: bool = True,
        observer: Observer = UNOBSERVED,
        calibration: Calibration | None = None,
    ) -> None:
        self._settings = settings
        self._warm = warm
        self._calibration = calibration
        self._observer = observer
        try:
            with accepted_changes():
                import_methods(settings.methods)
        except OptionError as error:
            raise FieldError(f"SEEWHY_METHODS: {error}", field="methods") from error
        _check_method(settings.default_method)
        self.registry = Registry(settings.weights_dir, settings.models, settings.download)
        self._device = torch_device(settings)
        if self._device.type == "cuda":  # by default PyTorch rounds the products of convolutions
            products = "tf32" if settings.precision == "tf32" else "ieee"
            torch.backends.cuda.matmul.fp32_precision = products
            torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
        self.memory = _budget(settings, observer)
        self.memory.spare = self._spare
        is_counted = settings.memory_bytes is None
        self._model_memory = ModelMemory(self.memory, settings.default_model) if is_counted else None
        if self._device.type == "cpu":
            limit_chunks(pass_memory(settings.workers, settings.max_models))
        self._missing: set[str] = set()
        self._unsuitable = WeakKeyDictionary[LoadedModel, Mapping[str, str]]()
        self._last_attempt = -FULL_RETRY_SECONDS
        self.engine = Engine(
            EngineOptions(
                load=self._load,
                max_models=settings.max_models,
                max_batch=settings.max_batch,
                queue_size=settings.queue_size,
                max_wait=settings.max_wait_ms / 1000,
                observer=observer,
                warm_up=PredictComputation() if warm else None,
            )
        )

    def model(self, name: str | None, deadline: Deadline) -> LoadedModel:
        """Return a model by name, or the default one, loading it if necessary.

        Raises:
            UnknownModelError: there is no such model.
            WeightsUnavailableError: its weights are not available.
            DeadlineError: the model is still loading.
        """
        spec = self.registry.spec(name or self._settings.default_model)
        loaded = self.engine.loaded(spec.name)
        if loaded is None and not self._settings.download and self.registry.missing_weights(spec) is not None:
            missing = unavailable(spec)
            if spec.name not in self._missing:  # reported once, not with each probe
                self._missing.add(spec.name)
                self._observer.weights_missing(spec.name, missing)
            raise missing
        self._missing.discard(spec.name)
        model = loaded or self.engine.model(spec.name, deadline)
        current().model = spec.name
        return model

    def unsuitable(self, model: LoadedModel) -> Mapping[str, str]:
        """Return the methods that can never explain a loaded model, by name, each with the reason."""
        return self._unsuitable.get(model, {})

    @property
    def has_default(self) -> bool:
        """Whether the default model is in memory, or will be loaded again by the next request for it."""
        name = self._settings.default_model
        if self.engine.loaded(name) is not None:
            return True
        return self.engine.dropped(name) and self.engine.failure(name) is None and name not in self._missing

    @property
    def default_failure(self) -> Exception | None:
        """Why the default model could not be loaded, also during a retry; None once it is loaded."""
        return self.engine.failure(self._settings.default_model)

    def require_ready(self) -> None:
        """Start to load the default model, if that has not begun, and refuse until it is loaded.

        Afterwards it may make room for other models: then the next request for it loads it again, not a probe.

        Raises:
            NotReadyError: the model is loading.
            StoppingError: this server is stopping.
            ModelError: the model could not be loaded; a retry follows after `RETRY_SECONDS` or `FULL_RETRY_SECONDS`.
        """
        if stopping.value:
            raise StoppingError("The server is stopping.")
        spec = self.registry.spec(self._settings.default_model)
        if not self.has_default:
            failure = self.engine.failure(spec.name)
            pause = FULL_RETRY_SECONDS if self.engine.full else RETRY_SECONDS
            if failure is not None and time.monotonic() < self._last_attempt + pause:
                raise failure
            self._last_attempt = time.monotonic()
            try:
                self.model(spec.name, Deadline.after(0))
            except DeadlineError:  # it is loading, possibly after a failure, which is reported until it is loaded
                loading = f"The model {spec.name!r} is still loading; try again in a few seconds."
                raise failure or NotReadyError(loading) from None

    def stop(self, timeout: float = 0.0) -> None:
        """End the threads of models; wait for each at most `timeout` seconds."""
        self.engine.stop(timeout)

    def _load(self, name: str) -> LoadedModel:
        """Load a model, and possibly compile the parts that every request needs, in the thread that will run it."""
        dtype = torch.bfloat16 if self._settings.precision == "bfloat16" else torch.float32
        load = partial(
            self.registry.load, name, device=self._device, accelerator=self._settings.accelerator, dtype=dtype
        )
        if self._model_memory is None:
            model = load()
        else:
            is_counted = self._device.type == "cpu"
            size = self.registry.file_size(self.registry.spec(name)) if is_counted else 0
            model = self._model_memory.load(name, size, load)
        if self._calibration is not None:
            spec = replace(model.spec, calibrations=())  # the models file's are not used
            model = replace(model, calibrations=(self._calibration,), spec=spec)
        if self._warm:
            model.accelerated.warm()
        model.accelerated.seal()
        self._unsuitable[model] = unsuitable_methods(model, model.spec.image_shape)
        return model

    def _spare(self) -> bool:
        """Drop an idle model, except the default one and that of the current request; return whether there was one."""
        keep = {self._settings.default_model, current().model}
        return self.engine.evict({name for name in keep if name}, EVICTION_SECONDS)


def _check_method(name: str) -> None:
    """Refuse a default method that does not explain classifiers."""
    try:
        needs = get_method(name).needs
    except OptionError as error:
        raise FieldError(f"SEEWHY_DEFAULT_METHOD: {error}", field="default_method") from error
    if {"boxes", "region"} & {*needs}:
        raise FieldError(
            f"SEEWHY_DEFAULT_METHOD: Method {name!r} does not explain classifiers; name one that does.",
            field="default_method",
        )


def torch_device(settings: Settings) -> torch.device:
    """Return the device in the settings.

    Raises:
        FieldError: this machine has no such device.
    """
    # Counted through the driver's management library, which is safe before a fork.
    count = torch.cuda.device_count()
    if settings.device == "auto":
        return torch.device("cuda" if count else "cpu")
    if settings.device.startswith("cuda") and int(settings.device.partition(":")[2] or 0) >= count:
        message = f"SEEWHY_DEVICE or --device: this machine has no device {settings.device}; use cpu or auto"
        raise FieldError(message, "device")
    return torch.device(settings.device)


def _budget(settings: Settings, observer: Observer) -> MemoryBudget:
    if settings.memory_bytes is not None:
        return MemoryBudget(settings.memory_bytes, observer.memory_changed, trim)
    size = request_memory(settings.workers)
    return MemoryBudget(size, observer.memory_changed, trim, LEAST_BYTES)
