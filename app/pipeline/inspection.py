"""Requests about hooks, straight down: trace, capture, intervene."""

from dataclasses import dataclass

import torch

from seewhy.app.errors import FieldError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import CAPTURE
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.costs import UNKNOWN, announce, units
from seewhy.app.pipeline.decode import Decoded
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.options import CaptureOptions, InterveneOptions, TraceOptions
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.timings import Timings
from seewhy.app.pipeline.work import Alone, Explain
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.errors import EditError, PictureError
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.hooks.selection import match_paths, module_paths
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import Capture, capture_images
from seewhy.explainers.inspection.edits import Edit
from seewhy.explainers.inspection.intervene import Intervention, check_layers, edit_images, must_swap
from seewhy.explainers.inspection.sweep import Sweep, passes_of_sweep, sweep_images
from seewhy.explainers.inspection.trace import Trace, is_leaf, trace_images
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.tasks.classification import Prediction, best, class_index, predictions
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class Traced:
    """Everything that an answer of /hooks/trace is made from."""

    model: LoadedModel
    trace: Trace
    target: Prediction
    timings: Timings


@dataclass(frozen=True)
class Captured:
    """Everything that an answer of /hooks/capture is made from."""

    model: LoadedModel
    capture: Capture
    target: Prediction
    shown: Decoded
    style: Style
    timings: Timings


@dataclass(frozen=True)
class Intervened:
    """Everything that an answer of /hooks/intervene is made from."""

    model: LoadedModel
    method: Method
    explainer: Explainer
    intervention: Intervention
    style: Style
    timings: Timings


@dataclass(frozen=True)
class Swept:
    """Everything that an answer of /hooks/intervene with each_channel is made from."""

    model: LoadedModel
    sweep: Sweep
    target: Prediction
    top: tuple[Prediction, ...]
    shown: Decoded
    style: Style
    timings: Timings


class HookService:
    """What the routes and commands about hooks have in common.

    Each request has the model to itself while it runs, and its hooks are gone before the next one starts.

    Args:
        service: models, pictures and the engine.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def trace(self, upload: bytes, options: TraceOptions) -> Traced:
        """Trace one forward and one backward pass; raises what `Service.explain` raises."""
        timings, deadline, model, target = self._start(options.model, options.target)
        self._check_patterns(model, options.layer)
        layers = tuple(options.layer) or (is_leaf,)
        shown = self._service.decode(upload, model, timings, deadline, drawn=False)
        work = Alone(
            lambda model, images, targets, _: trace_images(model, images, _first(targets), layers, deadline.check),
            Passes(1, 1),
        )
        self._service.spend(model, work, 1, deadline)
        (done,) = self._service.engine.run(model.name, [Job(work, shown.image, target, deadline)])
        timings.count(done, "trace")
        found: Trace = done.result
        return Traced(model, found, _predicted(model, found.logits, found.target), timings)

    def capture(self, upload: bytes, options: CaptureOptions, sheet: bool) -> Captured:
        """Capture what passes through layers.

        Args:
            upload: the bytes of the picture.
            options: checked by their schema.
            sheet: whether a contact sheet is to be drawn.

        Raises:
            CaptureTooLargeError: more bytes than allowed.
            Exception: what `Service.explain` raises.
        """
        style = self._service.style(options)
        timings, deadline, model, target = self._start(options.model, options.target)
        self._check_patterns(model, options.layer)
        kinds: set[Kind] = set(options.kind)
        if sheet and options.rank == "effect":
            kinds |= {"output", "grad_output"}
        most = self._service.settings.max_capture_bytes
        memory = account()  # of this request, which the model's thread does not answer
        shown = self._service.decode(upload, model, timings, deadline, drawn=sheet)
        work = Alone(
            lambda model, images, targets, _: capture_images(
                model,
                images,
                tuple(options.layer),
                tuple(kinds),
                _first(targets),
                most,
                deadline.check,
                lambda size: memory.take(size, CAPTURE),
            ),
            Passes(2, 1),
        )
        self._service.spend(model, work, 1, deadline)
        (done,) = self._service.engine.run(model.name, [Job(work, shown.image, target, deadline)])
        timings.count(done, "capture")
        found: Capture = done.result
        return Captured(model, found, _predicted(model, found.logits, found.target), shown, style, timings)

    def intervene(self, upload: bytes, other: bytes | None, options: InterveneOptions) -> Intervened:
        """Explain a picture without and with edits.

        Raises:
            EditError: an edit that does not fit.
            Exception: what `Service.explain` raises.
        """
        ((method, explainer),) = self._service.explainers([options.method], options)
        style = self._service.style(options)
        timings, deadline, model, target = self._start(options.model, options.target)
        module_paths(model.module, tuple(options.layer))
        edits: tuple[Edit, ...] = options.edits
        must_swap(edits, other is not None)
        check_layers(model.module, edits, other is not None)
        cost = self._service.spend(model, Explain((explainer,)), 2, deadline, (method,))
        shown = self._service.decode(upload, model, timings, deadline)
        second = None if other is None else self._second(other, model, timings, deadline)
        work = Alone(
            lambda model, images, targets, report: edit_images(
                model,
                images,
                edits,
                explainer,
                targets,
                None if second is None else second.to(model.device),
                deadline.check,
                report,
            ),
            cost,
        )
        (done,) = self._service.engine.run(model.name, [Job(work, shown.image, target, deadline)])
        timings.count(done, "intervene")
        sides: list[Explanation] = [
            explanations(model, method.name, shown.picture, shown.geometry, side)[0]
            for side in (done.result.before, done.result.after)
        ]
        found = Intervention(edits, sides[0], sides[1], done.result.applied)
        return Intervened(model, method, explainer, found, style, timings)

    def sweep(self, upload: bytes, other: bytes | None, options: InterveneOptions) -> Swept:
        """Rank the channels of a layer by what the only edit does to each.

        Raises:
            EditError: an edit that does not fit, or several.
            DeadlineError: not done in time.
            Exception: what `Service.explain` raises.
        """
        if len(options.edits) > 1:
            raise EditError("A sweep takes one edit; send several without each_channel.", field="edits")
        style = self._service.style(options)
        for field in ("method", "layer", "values", *options.method_options):
            if field in options.model_fields_set | set(options.method_options):
                raise FieldError(f"A sweep makes no heatmap; leave {field!r} out.", field=field)
        timings, deadline, model, target = self._start(options.model, options.target)
        edit: Edit = options.edits[0]
        must_swap((edit,), other is not None)
        check_layers(model.module, (edit,), other is not None)
        # Passes from a late layer on are short: they are counted, and nothing is refused for how long whole ones take.
        image_size = model.spec.image_shape[1], model.spec.image_shape[2]
        passes = passes_of_sweep(model.module, model.survey, image_size, edit)
        announce(units(passes or UNKNOWN, model.spec.image_shape))
        shown = self._service.decode(upload, model, timings, deadline)
        second = None if other is None else self._second(other, model, timings, deadline)
        work = Alone(
            lambda model, images, targets, report: sweep_images(
                model,
                images,
                edit,
                _first(targets),
                None if second is None else second.to(model.device),
                deadline.check,
                report,
            ),
            None,
        )
        (done,) = self._service.engine.run(model.name, [Job(work, shown.image, target, deadline)])
        timings.count(done, "sweep")
        found: Sweep = done.result
        logits = found.logits.numpy()
        (chosen, *top) = predictions(logits, model.labels, [found.target, *best(logits, 5)])
        return Swept(model, found, chosen, tuple(top), shown, style, timings)

    def _start(self, name: str | None, target: int | str | None) -> tuple[Timings, Deadline, LoadedModel, int | None]:
        deadline = self._service.deadline()
        model = self._service.model(name, deadline)
        return current().timed(), deadline, model, None if target is None else class_index(target, model.labels)

    def _second(self, other: bytes, model: LoadedModel, timings: Timings, deadline: Deadline) -> torch.Tensor:
        try:
            return self._service.decode(other, model, timings, deadline, drawn=False).image[None]
        except PictureError as error:
            error.field = "other"  # type: ignore[attr-defined]
            raise

    def _check_patterns(self, model: LoadedModel, patterns: list[str]) -> None:
        most = self._service.settings.max_layers
        if len(patterns) > most:
            raise FieldError(f"At most {most} layers can be given; a glob stands for many.", field="layer")
        match_paths((path for path, _ in model.module.named_modules(remove_duplicate=False)), patterns)


def _first(targets: torch.Tensor | None) -> int | None:
    return None if targets is None else int(targets[0])


def _predicted(model: LoadedModel, logits: torch.Tensor, target: int) -> Prediction:
    (found,) = predictions(logits.numpy(), model.labels, [target])
    return found
