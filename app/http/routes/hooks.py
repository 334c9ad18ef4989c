"""The routes about hooks: /hooks/trace, /hooks/capture, /hooks/intervene."""

from flask import Blueprint, Response, request

from seewhy.app.answers.hook_documents import (
    capture_document,
    capture_sheet,
    encoded,
    intervention_body,
    intervention_drawing,
    sweep_document,
    sweep_drawing,
    trace_chart,
    trace_document,
)
from seewhy.app.answers.schemas import CaptureAnswer, InterveneAnswer, SweepAnswer, TraceAnswer
from seewhy.app.answers.stream import Body, file_parts, respond
from seewhy.app.http.declaration import Declaration
from seewhy.app.http.headers import Facts
from seewhy.app.http.routes import format_of, service
from seewhy.app.http.uploads import parse, read_request
from seewhy.app.pipeline.choices import CaptureFormat, InterveneFormat, TraceFormat
from seewhy.app.pipeline.inspection import HookService
from seewhy.app.pipeline.options import MEDIA_TYPES, CaptureOptions, InterveneOptions, TraceOptions

blueprint = Blueprint("hooks", __name__, url_prefix="/hooks")


@blueprint.post("/trace")
@Declaration(
    "The time line of every hook call of one forward and one backward pass",
    options=TraceOptions,
    answers=(TraceAnswer,),
)
def trace() -> Response:
    """Answer with the time line of all hook calls of one forward and one backward pass."""
    upload = read_request(request)
    options = parse(TraceOptions, upload.fields)
    form: TraceFormat = format_of(options.format)
    traced = HookService(service()).trace(upload.picture, options)
    if form == "json":
        body = trace_document(traced).model_dump_json().encode()
    else:
        with traced.timings.stage("render"):
            body = trace_chart(traced, form)
    return _response(body, form, Facts(traced.model, [traced.target], traced.timings))


@blueprint.post("/capture")
@Declaration(
    "What passes through layers: statistics, arrays, or the strongest feature maps",
    options=CaptureOptions,
    answers=(CaptureAnswer,),
)
def capture() -> Response:
    """Answer with what passes through layers: statistics, arrays, or the strongest feature maps."""
    upload = read_request(request)
    options = parse(CaptureOptions, upload.fields)
    form: CaptureFormat = format_of(options.format)
    is_drawing = form not in ("json", "npz", "safetensors")
    captured = HookService(service()).capture(upload.picture, options, sheet=is_drawing)
    body: Body
    if form == "json":
        body = capture_document(captured).model_dump_json().encode()
    elif form == "npz" or form == "safetensors":
        with captured.timings.stage("encode"):
            body = file_parts(captured.capture.file(form))
    else:
        by_effect, picture = options.rank == "effect", captured.shown.picture
        body = encoded(lambda: capture_sheet(captured, options.top, by_effect), form, captured.timings, picture)
    return _response(body, form, Facts(captured.model, [captured.target], captured.timings))


@blueprint.post("/intervene")
@Declaration(
    "What edits of inputs, outputs and gradients change",
    options=InterveneOptions,
    answers=(InterveneAnswer, SweepAnswer),
    other="The picture that the op `swap` takes from.",
)
def intervene() -> Response:
    """Answer with what edits change; with each_channel, with the channels ranked by it."""
    body: Body
    upload = read_request(request, other="other")
    options = parse(InterveneOptions, upload.fields)
    form: InterveneFormat = format_of(options.format)
    if options.each_channel:
        swept = HookService(service()).sweep(upload.picture, upload.other, options)
        if form == "json":
            body = sweep_document(swept).model_dump_json().encode()
        else:
            body = encoded(lambda: sweep_drawing(swept, options.top), form, swept.timings, swept.shown.picture)
        return _response(body, form, Facts(swept.model, [swept.target], swept.timings, [swept.sweep.layer]))
    intervened = HookService(service()).intervene(upload.picture, upload.other, options)
    if form == "json":
        body = intervention_body(intervened, options.values, service().settings.max_json_values)
    else:
        picture = intervened.intervention.before.picture
        body = encoded(lambda: intervention_drawing(intervened), form, intervened.timings, picture)
    sides = (intervened.intervention.before, intervened.intervention.after)
    targets = [sides[0].target]
    facts = Facts(intervened.model, targets, intervened.timings, sides[0].layers, intervened.method.name, sides)
    return _response(body, form, facts)


def _response(body: Body, form: str, facts: Facts) -> Response:
    response = respond(body, MEDIA_TYPES[form], service().settings.download_seconds)
    response.headers.extend(facts.headers)
    response.headers["Vary"] = "Accept"
    return response
