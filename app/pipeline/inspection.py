"""The path of requests about hooks: trace, capture, intervene, sweep.

Each request has the model to itself while it runs, and its hooks are removed before the next one starts.
"""

import torch

from seewhy.app.errors import FieldError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import CAPTURE
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.computation import ExplainComputation, SoloComputation
from seewhy.app.pipeline.costs import UNKNOWN, announce, units
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.options import CaptureOptions, TraceOptions
from seewhy.app.pipeline.plan import Plan, build_explainers
from seewhy.app.pipeline.record import Timings, current
from seewhy.app.pipeline.results import CaptureResult, InterveneResult, SweepResult, TraceResult
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import EditError, at_fault
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.hooks.selection import is_leaf, match_paths, module_paths
from seewhy.explainers.inspection.capture import Capture, capture_images
from seewhy.explainers.inspection.editor import check_layers, must_swap
from seewhy.explainers.inspection.edits import Edit
from seewhy.explainers.inspection.intervene import Intervention, edit_images
from seewhy.explainers.inspection.sweep import Sweep, passes_of_sweep, sweep_images
from seewhy.explainers.inspection.trace import Trace, trace_images
from seewhy.explainers.results.explanation import explanations
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.pose import named_ask
from seewhy.explainers.unknown_names import no_contrast
from seewhy.models import LoadedModel


def trace(service: Service, upload: bytes, options: TraceOptions) -> TraceResult:
    """Trace one forward and backward pass; errors as in `Service.explain`."""
    timings, deadline, model, ask = _start(service, options.model, options.target)
    _check_patterns(service, model, options.layer)
    layers = tuple(options.layer) or (is_leaf,)
    picture = service.decode(upload, model, timings, deadline, drawn=False)
    computation = SoloComputation(
        lambda model, images, ask, progress: trace_images(model, images, ask, layers, progress),
        Passes(1, 1),
        lambda timeline: [timeline.outputs],
    )
    service.spend(model, computation, 1, deadline)
    timeline: Trace = service.run(Plan(model, computation, (ask,), deadline, "trace"), picture, timings)
    (target,) = located(model.task.describe(timeline.outputs, [timeline.target], top=0), picture.geometry)
    return TraceResult(model, timings, target, timeline)


def capture(service: Service, upload: bytes, options: CaptureOptions, sheet: bool) -> CaptureResult:
    """Capture activations and gradients of layers.

    Raises:
        CaptureTooLargeError: the tensors take more bytes than allowed.
        Exception: errors as in `Service.explain`.
    """
    style = options.style(service.settings.max_side)
    timings, deadline, model, ask = _start(service, options.model, options.target)
    _check_patterns(service, model, options.layer)
    kinds: set[Kind] = set(options.kind)
    if sheet and options.rank == "effect":
        kinds |= {"output", "grad_output"}
    most = service.settings.max_capture_bytes
    memory = account()  # the model's thread does not have this request's account
    picture = service.decode(upload, model, timings, deadline, drawn=sheet)
    computation = SoloComputation(
        lambda model, images, ask, progress: capture_images(
            model,
            images,
            tuple(options.layer),
            tuple(kinds),
            ask,
            most,
            progress,
            lambda size: memory.take(size, CAPTURE),
        ),
        Passes(2, 1),
        lambda tensors: [tensors.outputs],
    )
    service.spend(model, computation, 1, deadline)
    tensors: Capture = service.run(Plan(model, computation, (ask,), deadline, "capture"), picture, timings)
    (target,) = located(model.task.describe(tensors.outputs, [tensors.target], top=0), picture.geometry)
    return CaptureResult(model, timings, target, tensors, picture, style)


def intervene(service: Service, upload: bytes, other: bytes | None, options: InterveneOptions) -> InterveneResult:
    """Explain a picture without and with edits.

    Raises:
        EditError: an edit cannot be applied.
        Exception: errors as in `Service.explain`.
    """
    name = options.method or service.default_method(options.model)
    ((method, explainer),) = build_explainers([name], options, service.settings)
    style = options.style(service.settings.max_side)
    timings, deadline, model, ask = _start(service, options.model, options.target)
    module_paths(model.module, tuple(options.layer))
    edits: tuple[Edit, ...] = options.edits
    must_swap(edits, other is not None)
    check_layers(model.module, edits, other is not None)
    cost = service.spend(model, ExplainComputation((explainer,)), 2, deadline, (method,))
    picture = service.decode(upload, model, timings, deadline)
    second = _second(service, other, model, timings, deadline)
    computation = SoloComputation(
        lambda model, images, ask, progress: edit_images(model, images, edits, explainer, ask, second, progress),
        cost,
        lambda pair: [pair.before.outputs, pair.after.outputs],
    )
    edited = service.run(Plan(model, computation, (ask,), deadline, "intervene"), picture, timings)
    before, after = (
        explanations(model, method.name, picture.picture, picture.geometry, side, remarks=picture.remarks)[0]
        for side in (edited.before, edited.after)
    )
    intervention = Intervention(edits, before, after, edited.applied)
    return InterveneResult(model, timings, method, explainer, intervention, style)


def sweep(service: Service, upload: bytes, other: bytes | None, options: InterveneOptions) -> SweepResult:
    """Rank the channels of a layer by the effect of the only edit on each.

    Raises:
        EditError: the edit cannot be applied, or there are several.
        DeadlineError: the sweep did not finish in time.
        Exception: errors as in `Service.explain`.
    """
    if len(options.edits) > 1:
        raise EditError("A sweep takes one edit; send several without each_channel.", field="edits")
    style = options.style(service.settings.max_side)
    for field in ("method", "layer", "values", *options.method_options):
        if field in options.model_fields_set | set(options.method_options):
            fault = no_contrast(field, InterveneOptions.model_fields) or f"A sweep produces no heatmap; omit {field!r}."
            raise FieldError(fault, field=field)
    timings, deadline, model, ask = _start(service, options.model, options.target)
    edit: Edit = options.edits[0]
    must_swap((edit,), other is not None)
    check_layers(model.module, (edit,), other is not None)
    # Passes from a late layer on are short, so they are charged, but not refused by the duration of whole passes.
    image_size = model.spec.image_shape[1], model.spec.image_shape[2]
    passes = passes_of_sweep(model.module, model.survey, image_size, edit)
    announce(units(passes or UNKNOWN, model.spec.image_shape))
    picture = service.decode(upload, model, timings, deadline)
    second = _second(service, other, model, timings, deadline)
    computation = SoloComputation(
        lambda model, images, ask, progress: sweep_images(model, images, edit, ask, second, progress),
        None,
        lambda sweep: [sweep.outputs],
    )
    effects: Sweep = service.run(Plan(model, computation, (ask,), deadline, "sweep"), picture, timings)
    target, *top = located(model.task.describe(effects.outputs, [effects.target]), picture.geometry)
    return SweepResult(model, timings, target, effects, tuple(top), picture, style)


def _start(service: Service, name: str | None, target: int | str | None) -> tuple[Timings, Deadline, LoadedModel, Ask]:
    deadline = service.deadline()
    model = service.models.model(name, deadline)
    return current().timed(), deadline, model, named_ask(model.task, target)


def _second(
    service: Service, other: bytes | None, model: LoadedModel, timings: Timings, deadline: Deadline
) -> torch.Tensor | None:
    """Return the model's input (1, C, H, W) from the second picture, if there is one."""
    if other is None:
        return None
    with at_fault("other"):
        return service.decode(other, model, timings, deadline, drawn=False).image[None]


def _check_patterns(service: Service, model: LoadedModel, patterns: list[str]) -> None:
    most = service.settings.max_layers
    if len(patterns) > most:
        raise FieldError(f"At most {most} layers can be given; a glob matches many.", field="layer")
    match_paths((path for path, _ in model.module.named_modules(remove_duplicate=False)), patterns)
