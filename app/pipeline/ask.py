"""One request, straight down: decode, preprocess, queue, explain, render, encode."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

import torch

from seewhy.app.errors import DeadlineError, FieldError, NotReadyError, StoppingError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import PIXELS, MemoryBudget
from seewhy.app.memory.limit import LEAST_BYTES, pass_memory, request_memory
from seewhy.app.memory.models import ModelMemory
from seewhy.app.pipeline.costs import UNKNOWN, announce, require_time, units
from seewhy.app.pipeline.decode import Decoded, Read, decode
from seewhy.app.pipeline.disconnect import client_gone
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Done, Job, Work, results
from seewhy.app.pipeline.options import DrawingOptions, ExplainOptions, HeatmapOptions, PredictOptions
from seewhy.app.pipeline.plan import Explained, Plan, Predicted, Underway
from seewhy.app.pipeline.record import UNOBSERVED, Observer, current
from seewhy.app.pipeline.timings import Timings
from seewhy.app.pipeline.work import Predict
from seewhy.app.settings import Settings
from seewhy.app.system.allocator import trim
from seewhy.app.system.processors import processors
from seewhy.app.system.stopping import stopping
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.objective import contrasted_with_itself
from seewhy.explainers.errors import OptionError, TargetError
from seewhy.explainers.execution.chunks import limit_passes
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.imaging.decode import PIXEL_BYTES, Least, Reduced, read_reduced
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method, import_methods
from seewhy.explainers.process_wide import accepted_changes
from seewhy.explainers.tasks.classification import best, class_index, predictions
from seewhy.models import LoadedModel, Registry
from seewhy.models.errors import WeightsUnavailableError
from seewhy.models.spec import ModelSpec

RETRY_SECONDS = 9.0
"""Between two attempts of probes to load a default model that could not be; a request for it tries at once.

Less than the 10 s after which a process of the server asks again: it would else come too early every other time.
"""

FULL_RETRY_SECONDS = 300.0
"""The same where another model has to make room for each attempt."""

EVICTION_SECONDS = 10.0
"""How long somebody waits for an idle model to leave memory to him; it ends at once, unless work has come for it."""

VERSIONS = {name: version(name) for name in ("seewhy", "torch", "torchvision", "timm", "pillow")}


class Service:
    """What the routes and the command line have in common.

    Args:
        settings: limits and defaults.
        warm: whether models are compiled when they are loaded, for requests to come, rather than once some pictures
            have been run.
        observer: is told what happens to models, and what was explained.
    """

    def __init__(self, settings: Settings, warm: bool = True, observer: Observer = UNOBSERVED) -> None:
        self.settings = settings
        self._warm = warm
        self.observer = observer
        try:
            with accepted_changes():
                import_methods(settings.methods)
        except OptionError as error:
            raise FieldError(f"SEEWHY_METHODS: {error}", field="methods") from error
        self.registry = Registry(settings.weights_dir, settings.models, settings.download)
        self.device = settings.torch_device()
        if self.device.type == "cuda":  # by itself PyTorch rounds the products of convolutions
            products = "tf32" if settings.precision == "tf32" else "ieee"
            torch.backends.cuda.matmul.fp32_precision = products
            torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
        # Decoding and drawing are bound by processors and hungry for memory: more at once than processors gain nothing.
        self._processor_count = processors()
        self.processors = threading.BoundedSemaphore(self._processor_count)
        self.memory = _budget(settings, observer)
        self.memory.spare = self._spare
        is_counted = settings.memory_bytes is None
        self._model_memory = ModelMemory(self.memory, settings.default_model) if is_counted else None
        if self.device.type == "cpu":
            limit_passes(pass_memory(settings.workers, settings.max_models))
        self._missing: set[str] = set()
        self._tried = -FULL_RETRY_SECONDS
        self.engine = Engine(
            self._load,
            settings.max_models,
            settings.max_batch,
            settings.queue_size,
            settings.max_wait_ms / 1000,
            observer,
            Predict() if warm else None,
        )

    def _load(self, name: str) -> LoadedModel:
        """Load a model, and maybe compile what every request will need of it, in the thread that will run it.

        Raises:
            ModelTooLargeError: it can never fit into memory.
            OutOfMemoryError: it does not fit at present.
        """
        dtype = torch.bfloat16 if self.settings.precision == "bfloat16" else torch.float32
        load = partial(self.registry.load, name, device=self.device, accelerator=self.settings.accelerator, dtype=dtype)
        if self._model_memory is None:
            model = load()
        else:
            is_counted = self.device.type == "cpu"
            size = self.registry.file_size(self.registry.spec(name)) if is_counted else 0
            model = self._model_memory.load(name, size, load)
        if self._warm:
            model.accelerated.warm()
        return model

    def _spare(self) -> bool:
        """End an idle model, neither the default one nor that of the present request; say whether there was one."""
        keep = {self.settings.default_model, current().model}
        return self.engine.evict({name for name in keep if name}, EVICTION_SECONDS)

    def model(self, name: str | None, deadline: Deadline) -> LoadedModel:
        """Return a model by name, or the default one, loading it if need be.

        Raises:
            UnknownModelError: no such model.
            WeightsUnavailableError: its weights are not at hand.
            DeadlineError: it is still loading.
        """
        spec = self.registry.spec(name or self.settings.default_model)
        loaded = self.engine.loaded(spec.name)
        if loaded is None and not self.settings.download:
            availability = self.registry.availability(spec)
            if not availability.available:
                missing = WeightsUnavailableError(availability.reason)
                if spec.name not in self._missing:  # told once, and not with each probe
                    self._missing.add(spec.name)
                    self.observer.missing(spec.name, missing)
                raise missing
        self._missing.discard(spec.name)
        model = loaded or self.engine.model(spec.name, deadline)
        current().model = spec.name
        return model

    def deadline(self) -> Deadline:
        """Return the deadline of a request that begins now."""
        return Deadline.after(self.settings.deadline, client_gone.get())

    def survey(self, spec: ModelSpec) -> Survey:
        """Describe the layers of a model that need not be loaded.

        Raises:
            DeadlineError, ClientGoneError: nobody waits any more for those that are surveyed before it.
            ModelError: a model of one's own that cannot be built or run.
        """
        return self.registry.survey(spec, self.deadline().check)

    @property
    def has_default(self) -> bool:
        """Whether the default model is in memory, or comes back with the next request for it."""
        name = self.settings.default_model
        if self.engine.loaded(name) is not None:
            return True
        return self.engine.dropped(name) and self.engine.failure(name) is None and name not in self._missing

    def require_ready(self) -> None:
        """Start to load the default model, if nothing has yet, and refuse until it is loaded.

        Once it has been, it may make room for other models: the next request for it loads it again, and not a probe.

        Raises:
            NotReadyError: it is loading.
            StoppingError: this server is stopping.
            ModelError: it could not be loaded; that is tried again `RETRY_SECONDS` later, or `FULL_RETRY_SECONDS`.
        """
        if stopping.is_set():
            raise StoppingError("This server is stopping.")
        spec = self.registry.spec(self.settings.default_model)
        if not self.has_default:
            failure = self.engine.failure(spec.name)
            waits = FULL_RETRY_SECONDS if self.engine.full else RETRY_SECONDS
            if failure is not None and time.monotonic() < self._tried + waits:
                raise failure
            self._tried = time.monotonic()
            try:
                self.model(spec.name, Deadline.after(0))
            except DeadlineError:  # it is loading, maybe after a failure, which is told until it is loaded
                loading = f"The model {spec.name!r} is still loading; ask again in a few seconds."
                raise failure or NotReadyError(loading) from None

    def predict(self, upload: bytes, options: PredictOptions) -> Predicted:
        """Classify a picture; raises what `explain` raises."""
        deadline, timings = self.deadline(), current().timed()
        model = self.model(options.model, deadline)
        self.spend(model, Predict(), 1, deadline)
        image = self._input(upload, model, timings, deadline)
        (done,) = self.engine.run(model.name, [Job(Predict(), image, None, deadline)])
        timings.count(done, "predict")
        logits = done.result.logits[0].numpy()
        return Predicted(model, predictions(logits, model.labels, best(logits, options.top)), timings)

    def explain(self, upload: bytes, options: ExplainOptions, drawn: bool = True) -> Explained:
        """Explain one or several classes of a picture; nothing is drawn yet.

        Args:
            upload: the bytes of the picture.
            options: checked by their schema.
            drawn: whether the answer is to be drawn.

        Raises:
            FieldError, OptionError, LayerError, TargetError: an option with a bad value.
            PictureError: a picture that cannot be read, or is too large.
            ModelError: the model cannot be had.
            TooMuchWorkError, OverloadedError, DeadlineError: too much to do.
            TooCostlyError: it costs more than what is left of the client's rate.
        """
        steps = self.steps(upload, options, drawn)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                explained: Explained = end.value
                return explained

    def steps(
        self, upload: bytes, options: ExplainOptions, drawn: bool = True, watched: bool = False
    ) -> Generator[Underway, None, Explained]:
        """Explain as `explain` does, and stop each time that a model was asked, for who wants to watch it.

        The next step waits for the model. Whoever does not want it any more closes the generator.

        Args:
            upload, options, drawn: as `explain`; also the errors.
            watched: whether somebody wants to see how maps grow.
        """
        timings = current().timed()
        plan = self.plan(options)
        model, deadline, against = plan.model, plan.deadline, plan.against
        shown = self.decode(upload, model, timings, deadline, drawn)
        work, signed = plan.work, plan.methods[0][1].sign == "signed"

        def answered(wanted: Sequence[int | None], before: int = 0) -> Generator[Underway, None, list[Done]]:
            jobs = [Job(work, shown.image, target, deadline, against) for target in wanted]
            jobs[0].progress.is_watched = watched and not before
            self.engine.submit(model.name, jobs)
            try:
                yield Underway(jobs, before, max(plan.top, len(plan.first)), shown, plan.style, signed, deadline)
            except GeneratorExit:
                for job in jobs:
                    job.abandon()
                raise
            found = _results(jobs)
            timings.count(found[-1], "explain")
            return found

        done = yield from answered(plan.first)
        if others := plan.others(done[0]):
            done += yield from answered(others, before=1)
        explained = plan.explained(shown, done, timings)
        self.observer.explained(model, explained.explanations)
        return explained

    def plan(self, options: ExplainOptions, pictures: int = 1) -> Plan:
        """Check what a request asks for, whatever its pictures are, and get the model; raises what `explain` raises."""
        deadline = self.deadline()
        if max(options.top or 1, len(options.target)) > self.settings.max_targets:
            raise FieldError(
                f"At most {self.settings.max_targets} classes can be explained in one request.",
                field="top" if options.top else "target",
            )
        if options.top is not None and options.target:
            raise FieldError("Give either target or top, not both.", field="top")
        methods = self.explainers(options.method, options)
        explained = len(methods) * max(options.top or 1, len(options.target))
        if explained > self.settings.max_targets:
            raise FieldError(
                f"{explained} maps are more than the {self.settings.max_targets} that one request may ask for.",
                field="method",
            )
        style = self.style(options)
        model = self.model(options.model, deadline)
        if options.layer:
            module_paths(model.module, tuple(options.layer))
        against = None if options.against is None else _contrast(options.against, model)
        targets = [class_index(target, model.labels) for target in options.target]
        if against is not None and against in targets:
            raise FieldError(str(contrasted_with_itself(against, len(model.labels))), field="against")
        plan = Plan(
            model=model,
            methods=methods,
            style=style,
            first=tuple(dict.fromkeys(targets)) or (None,),
            top=min(options.top or 1, len(model.labels)),
            against=against,
            deadline=deadline,
        )
        jobs = pictures * max(plan.top, len(plan.first))
        self.spend(model, plan.work, jobs, deadline, [method for method, _ in methods])
        return plan

    def spend(
        self, model: LoadedModel, work: Work, times: int, deadline: Deadline, methods: Sequence[Method] = ()
    ) -> Passes | None:
        """Add what work costs to the request's, and refuse what cannot be done in time whatever else is to be done.

        The cost counts once the model's queue has taken the work.

        Args:
            model: that is to do it.
            work: what.
            times: for how many pictures and classes.
            deadline: of the request.
            methods: of the work, which the refusal is about.

        Returns:
            The passes of all of it; None where nobody knows.

        Raises:
            TooMuchWorkError: it cannot be done before the deadline.
            TooCostlyError: it costs more than what is left of the client's rate.
        """
        passes = work.passes(model)
        if passes is None:
            announce(units(UNKNOWN * times, model.spec.image_shape))
            return None
        passes *= times
        if work.runs_whole:
            require_time(passes, self.engine.pace(model.name).least(passes), deadline, model.name, methods)
        announce(units(passes, model.spec.image_shape))
        return passes

    def decode(
        self, upload: bytes, model: LoadedModel, timings: Timings, deadline: Deadline, drawn: bool = True
    ) -> Decoded:
        """Return a picture as the model and a drawing need it; see `seewhy.app.pipeline.decode.decode`."""
        with self._reading(timings, deadline) as (read, keep):
            found = decode(upload, model.preprocess, self.settings.max_side, read, drawn)
            keep(found.size)
            return found

    def _input(self, upload: bytes, model: LoadedModel, timings: Timings, deadline: Deadline) -> torch.Tensor:
        """Return a picture as the model needs it, and keep nothing else of it."""
        with self._reading(timings, deadline) as (read, keep):
            sent = read(upload, model.preprocess.least)
            found = model.preprocess(sent.picture, sent.size)
            keep(found.nbytes)
            return found

    @contextmanager
    def _reading(self, timings: Timings, deadline: Deadline) -> Iterator[tuple[Read, Callable[[int], None]]]:
        """Let one picture be decoded, once there is memory for its pixels.

        Yields what decodes it, and what is to be told how many bytes are kept of it.
        """
        taken = kept = 0

        def begin(pixels: int) -> None:
            nonlocal taken
            account().wait(pixels * PIXEL_BYTES, PIXELS, deadline.check, self._processor_count, self.processors)
            taken = pixels * PIXEL_BYTES

        def read(upload: bytes, least: Least) -> Reduced:
            return read_reduced(upload, least, self.settings.max_pixels, begin)

        def keep(size: int) -> None:
            nonlocal kept
            kept = min(size, taken)
            account().take(size - kept, PIXELS)

        with timings.stage("decode"), self.processors:
            deadline.check()
            try:
                yield read, keep
            finally:
                account().leave(taken, kept)

    def stop(self, timeout: float = 0.0) -> None:
        """End the threads of models; wait for each at most so many seconds."""
        self.engine.stop(timeout)

    def explainers(self, names: Sequence[str], options: HeatmapOptions) -> tuple[tuple[Method, Explainer], ...]:
        """Return methods by name with the options that the request gives them.

        Of several methods each takes the options that it has.

        Raises:
            OptionError: an unknown method, an option that none of them has, or a value out of bounds.
            FieldError: too many layers, or a layer for methods that take none.
        """
        methods = [get_method(name) for name in names]
        current().method = methods[0].name if len(methods) == 1 else "several"
        given = options.method_options
        if "layers" in given:
            raise FieldError("There is no option 'layers'. Near matches: layer.", field="layers")
        if options.layer:
            if not any(method.takes_layers for method in methods):
                which = f"Method {methods[0].name!r} uses no" if len(methods) == 1 else "None of these methods uses a"
                raise FieldError(f"{which} layer; leave the option out.", field="layer")
            if len(options.layer) > self.settings.max_layers:
                raise FieldError(f"At most {self.settings.max_layers} layers can be given.", field="layer")
            given = {**given, "layers": tuple(options.layer)}
        return tuple(zip(methods, build_methods(methods, given, type(options).model_fields), strict=True))

    def style(self, options: DrawingOptions) -> Style:
        """Return how the answer is to be drawn.

        Raises:
            OptionError: a bad value.
        """
        return Style(options.view, options.colormap, options.alpha, options.scale, self.settings.max_side)

    def etag(self, upload: bytes, options: ExplainOptions, media_type: str) -> str | None:
        """Return the tag of the answer: a digest of everything it depends on; None before the model is loaded."""
        model = self.engine.loaded(options.model or self.settings.default_model)
        if model is None:
            return None
        wanted = json.dumps(options.model_dump(mode="json"), sort_keys=True, default=str)
        parts = (
            wanted,
            media_type,
            model.fingerprint,
            self.settings.precision,
            str(self.settings.max_side),
            str(VERSIONS),
        )
        digest = hashlib.sha256(upload)
        digest.update("\0".join(parts).encode())
        return digest.hexdigest()[:32]


def _budget(settings: Settings, observer: Observer) -> MemoryBudget:
    if settings.memory_bytes is not None:
        return MemoryBudget(settings.memory_bytes, observer.memory, trim)
    size = request_memory(settings.workers)
    return MemoryBudget(size, observer.memory, trim, LEAST_BYTES)


def _results(jobs: Sequence[Job]) -> list[Done]:
    """Wait for jobs; classes that were asked for are known by now, so what is at fault is what they contrast with."""
    try:
        return results(jobs)
    except TargetError as error:
        if any(job.against is not None for job in jobs):
            raise FieldError(str(error), field="against") from error
        raise


def _contrast(against: int | str, model: LoadedModel) -> int:
    try:
        return class_index(against, model.labels)
    except TargetError as error:
        raise FieldError(str(error), field="against") from error
