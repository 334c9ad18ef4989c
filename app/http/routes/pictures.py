"""The routes that take a picture: /explain and /predict."""

from dataclasses import replace
from typing import get_args

from flask import Blueprint, Response, request

from seewhy.app.answers.cache import Answer
from seewhy.app.answers.documents import arrays, drawing, json_body, layers_of, predicted
from seewhy.app.answers.stream import Body, Parts, file_parts, in_time, json_parts, respond
from seewhy.app.http import events
from seewhy.app.http.routes import negotiated, service
from seewhy.app.http.routes.headers import facts
from seewhy.app.http.uploads import parse, read_request
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.options import MEDIA_TYPES, ExplainOptions, Format, PredictOptions
from seewhy.app.pipeline.plan import Explained
from seewhy.app.pipeline.record import current
from seewhy.app.settings import Settings

FORMATS: tuple[Format, ...] = get_args(Format)

blueprint = Blueprint("pictures", __name__)


@blueprint.post("/predict")
def predict() -> Response:
    """Classify a picture."""
    sent = read_request(request)
    found = service().predict(sent.picture, parse(PredictOptions, sent.fields))
    response = Response(predicted(found).model_dump_json(), mimetype="application/json")
    response.headers["Server-Timing"] = found.timings.header
    return response


@blueprint.post("/explain")
def explain() -> Response:
    """Explain why the model says what it says of a picture."""
    sent = read_request(request)
    upload, options = sent.picture, parse(ExplainOptions, sent.fields)
    if options.format is None and accepts_events():
        return _streamed(upload, options)
    form = options.format or negotiated(FORMATS, events.MEDIA_TYPE)
    tag = service().etag(upload, options, MEDIA_TYPES[form])
    asked, cache = request.if_none_match, service().cache
    if tag is not None and not asked.star_tag and asked.contains_weak(tag):
        response = Response(status=304)
        current().cache = "unchanged"
    elif tag is not None and (kept := cache.get(tag)):
        response = _response(kept)
        response.headers["Server-Timing"] = "cache"
        current().cache = "hit"
    else:
        current().cache = "miss" if cache.limit else ""
        explained = service().explain(upload, options, drawn=form != "npz")
        tag = tag or service().etag(upload, options, MEDIA_TYPES[form])
        response = _response(_kept(service(), tag, explained, options, form))
        response.headers["Server-Timing"] = explained.timings.header
    if tag is not None:
        response.set_etag(tag, weak=True)
    response.headers["Vary"] = "Accept"
    return response


def accepts_events() -> bool:
    """Whether the client's Accept header likes a stream of events best."""
    offered = [*(MEDIA_TYPES[form] for form in FORMATS), events.MEDIA_TYPE]
    return request.accept_mimetypes.best_match(offered) == events.MEDIA_TYPE


def _streamed(upload: bytes, options: ExplainOptions) -> Response:
    tag = service().etag(upload, options, MEDIA_TYPES["json"])
    kept = service().cache.get(tag) if tag is not None else None
    if kept is not None:
        current().cache = "hit"
        told, seconds = events.last(kept.body), service().settings.download_seconds
        response = Response(in_time(told, seconds), mimetype=events.MEDIA_TYPE)
    else:
        asked = service()  # the stream outlives what Flask keeps of the request
        steps = asked.steps(upload, options, watched=True)
        underway = next(steps)
        tag = tag or asked.etag(upload, options, MEDIA_TYPES["json"])
        told = events.stream(asked, steps, underway, lambda explained: _kept(asked, tag, explained, options, "json"))
        seconds = underway.deadline.remaining + asked.settings.download_seconds
        response = Response(in_time(told, seconds), mimetype=events.MEDIA_TYPE)
        response.call_on_close(steps.close)  # which gives the work up where it is not finished
    # Neither a cache nor a proxy (nginx) is to keep events back.
    response.headers.update({"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept"})
    return response


def _response(answer: Answer) -> Response:
    response = respond(answer.body, answer.mimetype, service().settings.download_seconds)
    response.headers.extend(answer.headers)
    return response


def _kept(asked: Service, tag: str | None, explained: Explained, options: ExplainOptions, form: Format) -> Answer:
    """Make an answer, and keep it for who asks for the same again."""
    with asked.processors:
        answer = _answer(explained, options, form, asked.settings)
        if tag is not None and isinstance(answer.body, Parts) and answer.size <= asked.cache.limit:
            account().take(answer.body.most, ANSWER)
            answer = replace(answer, body=answer.body.whole())
    if tag is not None:
        asked.cache.put(tag, answer)
    return answer


def _answer(explained: Explained, options: ExplainOptions, form: Format, settings: Settings) -> Answer:
    body: Body
    if form == "json":
        body = json_parts(json_body([explained], options.values, settings.max_json_values)[0])
        body = body if options.values is True else body.whole()
    elif form == "npz":
        with explained.timings.stage("encode"):
            body = file_parts(arrays(explained, settings.max_values))
    else:
        body = drawing(explained, form)
    found = explained.explanations
    methods = ", ".join(method.name for method, _ in explained.methods)
    headers = facts(explained.model, explained.targets, explained.timings, layers_of(explained), methods, found)
    headers.pop("Server-Timing", None)  # of this time only
    return Answer(body, MEDIA_TYPES[form], tuple(headers.items()))
