"""The routes that take pictures: /explain, /evaluate, /predict, /detect, /segment and /similar."""

from collections.abc import Callable, Sequence

from flask import Blueprint, Response, request
from pydantic import BaseModel

from seewhy.app.answers.documents import (
    detect_document,
    evaluation_document,
    explain_body,
    layers_of,
    predict_document,
)
from seewhy.app.answers.likeness_documents import similar_body
from seewhy.app.answers.report import CONTENT_POLICY, report_body
from seewhy.app.answers.schemas import (
    DetectAnswer,
    EvaluateAnswer,
    ExplainAnswer,
    PredictAnswer,
    SegmentsAnswer,
    SimilarAnswer,
)
from seewhy.app.answers.segment_documents import segment_body
from seewhy.app.answers.stream import Body, in_time
from seewhy.app.http import events
from seewhy.app.http.declaration import Declaration, SecondPicture, current_declaration
from seewhy.app.http.headers import Facts
from seewhy.app.http.routes import format_of, json_response, picture_response, service
from seewhy.app.http.uploads import Upload, read_request
from seewhy.app.pipeline import option_table
from seewhy.app.pipeline.choices import DRAWINGS, ExplainFormat, Format
from seewhy.app.pipeline.evaluate import evaluate as measure
from seewhy.app.pipeline.likeness import similar as compare
from seewhy.app.pipeline.options import (
    MEDIA_TYPES,
    EvaluateOptions,
    ExplainOptions,
    Options,
    PredictOptions,
    SegmentOptions,
    SimilarOptions,
)
from seewhy.app.pipeline.parse import parse
from seewhy.app.pipeline.record import Timings, current
from seewhy.app.pipeline.validation import check_view

blueprint = Blueprint("pictures", __name__)

REFERENCE = SecondPicture("reference", "The picture to compare with.", is_required=True)
MASK = SecondPicture("mask", option_table.MASK)
TRUTH = SecondPicture("truth", option_table.TRUTH)

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
    second=MASK,
    has_tag=True,
)
def explain() -> Response:
    """Explain the model's prediction for a picture."""
    upload = read_request(request, MASK)
    options = parse(ExplainOptions, upload.fields)
    if options.format is None and _prefers_events():
        return _streamed(upload, options)
    form: ExplainFormat = format_of(options.format)

    def answer() -> Response:
        result = service().explain(upload.picture, options, form != "npz", upload.other)
        with service().processors:
            if form == "report":
                body: Body = report_body(result, options, upload.picture, upload.other, service().settings, upload.name)
            else:
                body = explain_body(result, form, options.values, service().settings)
        methods = ", ".join(method.name for method, _ in result.methods)
        facts = Facts(result.model, result.targets, result.timings, layers_of(result), methods, result.explanations)
        response = picture_response(body, form, facts)
        if form == "report":
            response.headers["Content-Security-Policy"] = CONTENT_POLICY
        return response

    names = [upload.name.encode("utf-8", "replace")] if form == "report" else []
    return _tagged([*upload.pictures, *names], options, form, answer)


@blueprint.post("/similar")
@Declaration(
    "Similarity of two pictures, with the patches that contribute most",
    options=SimilarOptions,
    answers=(SimilarAnswer,),
    second=REFERENCE,
    has_tag=True,
)
def similar() -> Response:
    """Compare two pictures: the cosine of their embeddings, both maps, the strongest pairs of patches."""
    upload = read_request(request, REFERENCE)
    options = parse(SimilarOptions, upload.fields)
    form: Format = format_of(options.format)

    def answer() -> Response:
        result = compare(service(), upload.picture, upload.other or b"", options, drawn=form != "npz")
        with service().processors:
            body = similar_body(result, form, service().settings)
        facts = Facts(result.model, [], result.timings, [result.likeness.layer], likeness=result.likeness)
        return picture_response(body, form, facts)

    return _tagged(upload.pictures, options, form, answer)


@blueprint.post("/evaluate")
@Declaration(
    "Metrics of methods on a picture, compared with controls",
    options=EvaluateOptions,
    answers=(EvaluateAnswer,),
    second=TRUTH,
)
def evaluate() -> Response:
    """Measure how good the maps of methods are."""
    upload = read_request(request, TRUTH)
    result = measure(service(), upload.picture, upload.other, parse(EvaluateOptions, upload.fields))
    return _timed(evaluation_document(result), result.timings)


@blueprint.post("/segment")
@Declaration("The class of each pixel of a picture", options=SegmentOptions, answers=(SegmentsAnswer,), has_tag=True)
def segment() -> Response:
    """Segment a picture: classes with their areas, and a mask of class indices."""
    upload = read_request(request)
    options = parse(SegmentOptions, upload.fields)
    form: Format = format_of(options.format)
    check_view(options.view, form)

    def answer() -> Response:
        is_drawing = form in DRAWINGS and options.view != "mask"
        result = service().segment(upload.picture, options, is_drawing)
        with service().processors:
            body = segment_body(result, form, service().settings)
        return picture_response(body, form, Facts(result.model, result.segments.classes, result.timings))

    return _tagged(upload.pictures, options, form, answer)


@blueprint.post("/predict")
@Declaration("Classify a picture", options=PredictOptions, answers=(PredictAnswer,))
def predict() -> Response:
    """Classify a picture."""
    upload = read_request(request)
    result = service().predict(upload.picture, parse(PredictOptions, upload.fields))
    return _timed(predict_document(result), result.timings)


@blueprint.post("/detect")
@Declaration("Boxes of a detector", options=Options, answers=(DetectAnswer,))
def detect() -> Response:
    """Detect things in a picture: boxes with their numbers, labels and scores."""
    upload = read_request(request)
    result = service().detect(upload.picture, parse(Options, upload.fields))
    return _timed(detect_document(result), result.timings)


def _timed(answer: BaseModel, timings: Timings) -> Response:
    response = json_response(answer)
    response.headers["Server-Timing"] = timings.header
    return response


def _tagged(pictures: Sequence[bytes], options: Options, form: str, answer: Callable[[], Response]) -> Response:
    """Return an answer with its ETag; 304, without any work, if the client has it already."""
    tag = service().etag(pictures, options, MEDIA_TYPES[form])
    tags = request.if_none_match
    if tag is not None and not tags.star_tag and tags.contains_weak(tag):
        response = Response(status=304)
        current().cache = "unchanged"
    else:
        response = answer()
        tag = tag or service().etag(pictures, options, MEDIA_TYPES[form])  # now that the model is loaded
    if tag is not None:
        response.set_etag(tag, weak=True)
    response.headers["Vary"] = "Accept"
    return response


def _prefers_events() -> bool:
    """Whether the client's Accept header prefers an event stream."""
    media_types = current_declaration().media_types
    return request.accept_mimetypes.best_match(media_types) == events.MEDIA_TYPE


def _streamed(upload: Upload, options: ExplainOptions) -> Response:
    pipeline = service()  # the stream outlives Flask's request context
    ticket = pipeline.ask([upload.picture], [options], watched=True, mask=upload.other)

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
