"""The routes that take a picture: /explain and /predict."""

from flask import Blueprint, Response, request

from seewhy.app.answers.documents import explain_body, layers_of, prediction_document
from seewhy.app.answers.schemas import ExplainAnswer, PredictAnswer
from seewhy.app.answers.stream import Body, in_time, respond
from seewhy.app.http import events
from seewhy.app.http.declaration import Declaration, current_declaration
from seewhy.app.http.headers import Facts
from seewhy.app.http.routes import format_of, json_response, service
from seewhy.app.http.uploads import read_request
from seewhy.app.pipeline.choices import Format
from seewhy.app.pipeline.options import MEDIA_TYPES, ExplainOptions, PredictOptions
from seewhy.app.pipeline.parse import parse
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import ExplainResult

blueprint = Blueprint("pictures", __name__)

_EVENTS = (
    "Server-sent events: `progress` (ProgressAnswer) while the method runs, then one `answer` (ExplainAnswer) "
    "or one `error` (Problem). Closing the connection cancels the explanation."
)


@blueprint.post("/explain")
@Declaration(
    "Explain a prediction",
    options=ExplainOptions,
    answers=(ExplainAnswer,),
    media={events.MEDIA_TYPE: {"type": "string", "description": _EVENTS}},
    has_tag=True,
)
def explain() -> Response:
    """Explain the model's prediction for a picture."""
    upload = read_request(request)
    picture, options = upload.picture, parse(ExplainOptions, upload.fields)
    if options.format is None and _prefers_events():
        return _streamed(picture, options)
    form: Format = format_of(options.format)
    tag = service().etag(picture, options, MEDIA_TYPES[form])
    tags = request.if_none_match
    if tag is not None and not tags.star_tag and tags.contains_weak(tag):
        response = Response(status=304)
        current().cache = "unchanged"
    else:
        result = service().explain(picture, options, drawn=form != "npz")
        tag = tag or service().etag(picture, options, MEDIA_TYPES[form])
        with service().processors:
            body = explain_body(result, form, options.values, service().settings)
        response = respond(body, MEDIA_TYPES[form], service().settings.download_seconds)
        response.headers.extend(_facts(result).headers)
    if tag is not None:
        response.set_etag(tag, weak=True)
    response.headers["Vary"] = "Accept"
    return response


@blueprint.post("/predict")
@Declaration("Classify a picture", options=PredictOptions, answers=(PredictAnswer,))
def predict() -> Response:
    """Classify a picture."""
    upload = read_request(request)
    result = service().predict(upload.picture, parse(PredictOptions, upload.fields))
    response = json_response(prediction_document(result))
    response.headers["Server-Timing"] = result.timings.header
    return response


def _prefers_events() -> bool:
    """Whether the client's Accept header prefers an event stream."""
    media_types = current_declaration().media_types
    return request.accept_mimetypes.best_match(media_types) == events.MEDIA_TYPE


def _streamed(picture: bytes, options: ExplainOptions) -> Response:
    pipeline = service()  # the stream outlives Flask's request context
    ticket = pipeline.ask([picture], [options], watched=True)

    def finish() -> Body:
        (result,) = pipeline.present(ticket)
        with pipeline.processors:
            return explain_body(result, "json", options.values, pipeline.settings)

    pieces = events.stream(pipeline, ticket, finish)
    seconds = ticket.plan.deadline.remaining + pipeline.settings.download_seconds
    response = Response(in_time(pieces, seconds), mimetype=events.MEDIA_TYPE)
    response.call_on_close(ticket.cancel)
    # Neither a cache nor a proxy (nginx) may hold events back.
    response.headers.update({"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept"})
    return response


def _facts(result: ExplainResult) -> Facts:
    methods = ", ".join(method.name for method, _ in result.methods)
    return Facts(result.model, result.targets, result.timings, layers_of(result), methods, result.explanations)
