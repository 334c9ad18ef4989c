"""The routes about hooks: /hooks/trace, /hooks/capture, /hooks/intervene."""

from flask import Blueprint, Response, request

from seewhy.app.answers.hook_documents import capture_body, intervention_body, sweep_body, trace_body
from seewhy.app.answers.schemas import CaptureAnswer, InterveneAnswer, SweepAnswer, TraceAnswer
from seewhy.app.answers.stream import Body, respond
from seewhy.app.http.declaration import Declaration, SecondPicture, current_declaration
from seewhy.app.http.headers import Facts
from seewhy.app.http.routes import format_of, service
from seewhy.app.http.uploads import read_request
from seewhy.app.pipeline.choices import DRAWINGS, CaptureFormat, InterveneFormat, TraceFormat
from seewhy.app.pipeline.inspection import HookService
from seewhy.app.pipeline.options import MEDIA_TYPES, CaptureOptions, InterveneOptions, TraceOptions
from seewhy.app.pipeline.parse import parse

blueprint = Blueprint("hooks", __name__, url_prefix="/hooks")


@blueprint.post("/trace")
@Declaration(
    "Timeline of every hook call in one forward and backward pass",
    options=TraceOptions,
    answers=(TraceAnswer,),
)
def trace() -> Response:
    """Return the timeline of all hook calls in one forward and backward pass."""
    upload = read_request(request)
    options = parse(TraceOptions, upload.fields)
    form: TraceFormat = format_of(options.format)
    result = HookService(service()).trace(upload.picture, options)
    return _response(trace_body(result, form), form, Facts(result.model, [result.target], result.timings))


@blueprint.post("/capture")
@Declaration(
    "Activations and gradients of layers: statistics, arrays, or the strongest feature maps",
    options=CaptureOptions,
    answers=(CaptureAnswer,),
)
def capture() -> Response:
    """Return activations and gradients of layers: statistics, arrays, or the strongest feature maps."""
    upload = read_request(request)
    options = parse(CaptureOptions, upload.fields)
    form: CaptureFormat = format_of(options.format)
    result = HookService(service()).capture(upload.picture, options, sheet=form in DRAWINGS)
    return _response(capture_body(result, form, options), form, Facts(result.model, [result.target], result.timings))


@blueprint.post("/intervene")
@Declaration(
    "Effect of edits of inputs, outputs and gradients",
    options=InterveneOptions,
    answers=(InterveneAnswer, SweepAnswer),
    second=SecondPicture("other", "The picture whose activations the op `swap` uses."),
)
def intervene() -> Response:
    """Return the effect of edits; with each_channel, the channels ranked by their effect."""
    upload = read_request(request, current_declaration().second)
    options = parse(InterveneOptions, upload.fields)
    form: InterveneFormat = format_of(options.format)
    hooks = HookService(service())
    if options.each_channel:
        sweep = hooks.sweep(upload.picture, upload.other, options)
        facts = Facts(sweep.model, [sweep.target], sweep.timings, [sweep.sweep.layer])
        return _response(sweep_body(sweep, form, options), form, facts)
    result = hooks.intervene(upload.picture, upload.other, options)
    body = intervention_body(result, form, options.values, service().settings.max_json_values)
    sides = (result.intervention.before, result.intervention.after)
    facts = Facts(result.model, [sides[0].target], result.timings, sides[0].layers, result.method.name, sides)
    return _response(body, form, facts)


def _response(body: Body, form: str, facts: Facts) -> Response:
    response = respond(body, MEDIA_TYPES[form], service().settings.download_seconds)
    response.headers.extend(facts.headers)
    response.headers["Vary"] = "Accept"
    return response
