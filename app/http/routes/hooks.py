"""The routes about hooks: /hooks/trace, /hooks/capture, /hooks/intervene."""

from flask import Blueprint, Response, request

from seewhy.app.answers.hook_documents import capture_body, intervention_body, sweep_body, trace_body
from seewhy.app.answers.schemas import CaptureAnswer, InterveneAnswer, SweepAnswer, TraceAnswer
from seewhy.app.http.declaration import Declaration, SecondPicture, current_declaration
from seewhy.app.http.headers import Facts
from seewhy.app.http.routes import format_of, picture_response, service
from seewhy.app.http.uploads import read_request
from seewhy.app.pipeline import inspection
from seewhy.app.pipeline.choices import DRAWINGS, CaptureFormat, InterveneFormat, TraceFormat
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions, TraceOptions
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
    result = inspection.trace(service(), upload.picture, options)
    return picture_response(trace_body(result, form), form, Facts(result.model, [result.target], result.timings))


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
    result = inspection.capture(service(), upload.picture, options, sheet=form in DRAWINGS)
    facts = Facts(result.model, [result.target], result.timings)
    return picture_response(capture_body(result, form, options), form, facts)


@blueprint.post("/intervene")
@Declaration(
    "Effect of edits of inputs, outputs and gradients",
    options=InterveneOptions,
    answers=(InterveneAnswer, SweepAnswer),
    second=SecondPicture("other", "Picture whose activations the op `swap` uses."),
)
def intervene() -> Response:
    """Return the effect of edits; with each_channel, the channels ranked by their effect."""
    upload = read_request(request, current_declaration().second)
    options = parse(InterveneOptions, upload.fields)
    form: InterveneFormat = format_of(options.format)
    if options.each_channel:
        sweep = inspection.sweep(service(), upload.picture, upload.other, options)
        facts = Facts(sweep.model, [sweep.target], sweep.timings, [sweep.sweep.layer])
        return picture_response(sweep_body(sweep, form, options), form, facts)
    result = inspection.intervene(service(), upload.picture, upload.other, options)
    body = intervention_body(result, form, options.values, service().settings.max_json_values)
    sides = (result.intervention.before, result.intervention.after)
    facts = Facts(result.model, [sides[0].target], result.timings, sides[0].layers, result.method.name, sides)
    return picture_response(body, form, facts)
