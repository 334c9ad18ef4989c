"""TorchServe's inference routes /predictions, /explanations and /ping, with the answers of its image_classifier."""

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import numpy as np
from flask import Blueprint, Response, request

from seewhy.app.answers.documents import drawing
from seewhy.app.answers.schemas import HealthAnswer
from seewhy.app.answers.stream import json_parts, respond
from seewhy.app.compatible.instances import Numbers, Range
from seewhy.app.compatible.routes import (
    BYTES,
    EXPLAIN,
    PICTURE,
    VERSION,
    TorchServe,
    options_of,
    picture_reader,
    status_of,
)
from seewhy.app.compatible.schemas import ClassifyOptions, ExplainParameters, TorchServeError
from seewhy.app.errors import (
    BrokenError,
    FieldError,
    MalformedRequestError,
    ModelNotFoundError,
    NotReadyError,
    VersionNotFoundError,
)
from seewhy.app.http.bodies import parse_json, read_body
from seewhy.app.http.declaration import Declaration, Protocol, Schema
from seewhy.app.http.problems import ErrorReport
from seewhy.app.http.routes import format_of, json_response, liveness, model_spec, service
from seewhy.app.http.uploads import file_bytes, flatten, merge, read_texts
from seewhy.app.pipeline.choices import DRAWINGS, Drawing
from seewhy.app.pipeline.computation import ChannelGradients
from seewhy.app.pipeline.decode import Source
from seewhy.app.pipeline.options import MEDIA_TYPES
from seewhy.app.pipeline.parse import parse
from seewhy.app.pipeline.plan import build_explainers
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.tasks.segmentation import RegionPrediction
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("torchserve", __name__)

VERSIONS = (f"{VERSION}.0", VERSION)
"""Names of the only version of each model."""

METHOD = {"method": "integrated-gradients", "steps": "15", "scale": "robust"}
"""TorchServe's method of explanation, and the scale to draw it with: its maps have a few extreme pixels."""

_DATA = ("data", "body")
_PICTURE = {"description": "The picture: an image file, base64, or nested lists of numbers; also called `body`."}
_WHERE = "TorchServe's route. JSON may be the picture itself. Options go in the query string, the form or the object:"
_ROWS: Schema = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_MAPS: Schema = {"type": "array", "items": _ROWS}


def _body(options: Mapping[str, Schema], more: bool) -> dict[str, Any]:
    """Describe the bodies of requests; with `more`, they may also have options of methods."""
    body = {"type": "object", "required": ["data"]}
    form = {**body, "properties": {"data": PICTURE | _PICTURE}, "additionalProperties": True}
    document = {**body, "properties": {"data": _PICTURE, **options}, "additionalProperties": more}
    return {
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": document},
        BYTES: {"schema": PICTURE},
    }


def torchserve_error(error: Exception, report: ErrorReport) -> Response:
    """Return an error in TorchServe's format."""
    status = status_of(report)
    kind = _KINDS.get(type(error)) or _TYPES.get(status, "InternalServerException")
    return json_response(TorchServeError(code=status, type=kind, message=report.detail), status)


_KINDS: dict[type[Exception], str] = {
    ModelNotFoundError: "ModelNotFoundException",
    VersionNotFoundError: "ModelVersionNotFoundException",
}
_TYPES = {
    400: "BadRequestException",
    401: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    413: "BadRequestException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
    504: "RequestTimeoutException",
}


@blueprint.get("/ping")
@Declaration(
    "Whether the service is ready",
    answers=(HealthAnswer,),
    is_open=True,
    protocol=Protocol(HealthAnswer, titles={503: "No"}, reading=(503,)),
)
def ping() -> Response:
    """Answer whether the default model is loaded."""
    try:
        liveness().require()
        service().models.require_ready()
    except (BrokenError, NotReadyError):
        return json_response(HealthAnswer(status="Unhealthy"), HTTPStatus.SERVICE_UNAVAILABLE)
    return json_response(HealthAnswer(status="Healthy"))


@blueprint.route("/predictions/<path:name>/<version>", methods=["POST", "PUT"])
@blueprint.route("/predictions/<path:name>", methods=["POST", "PUT"])
@TorchServe(
    "Classify a picture",
    f"{_WHERE} `top`, `range`.",
    options=ClassifyOptions,
    option_names=("range", "top"),
    body=partial(_body, more=False),
    media={"application/json": {"type": "object", "additionalProperties": {"type": "number"}}},
)
def predict(name: str, version: str | None = None) -> Response:
    """Classify a picture: the most probable classes with their probabilities, values, or shares of the picture."""
    spec = _spec(name, version)
    data, fields = _read()
    options = parse(ClassifyOptions, options_of(fields, spec.name))
    (result,) = service().classify([_picture(data, spec, options.range)], spec.name, options.top)
    numbers: dict[str, float] = {}
    for prediction in result.predictions:  # of two classes with the same label, the more probable one
        share = prediction.area if isinstance(prediction, RegionPrediction) else prediction.probability
        numbers.setdefault(prediction.label, prediction.score if share is None else share)
    return Response(json.dumps(numbers), mimetype="application/json")


@blueprint.route("/explanations/<path:name>/<version>", methods=["POST", "PUT"])
@blueprint.route("/explanations/<path:name>", methods=["POST", "PUT"])
@TorchServe(
    "Explain a prediction",
    f"{_WHERE} {EXPLAIN} The default is integrated gradients with 15 steps, [C, H, W]; other methods return [1, H, W]. "
    "If Accept asks for a picture, the response is a picture.",
    options=ExplainParameters,
    option_names=("method", "target", "layer", "range"),
    body=partial(_body, more=True),
    forms=("json", *DRAWINGS),
    media={"application/json": _MAPS},
)
def explain(name: str, version: str | None = None) -> Response:
    """Explain a picture: a number for each value of the model's input, or a picture if Accept asks for one."""
    spec = _spec(name, version)
    data, fields = _read()
    form: Literal["json"] | Drawing = format_of(None)
    options = parse(ExplainParameters, options_of(fields if "method" in fields else METHOD | fields, spec.name))
    if options.proof:
        raise FieldError("This response has no place for a proof; omit it, or use POST /explain.", field="proof")
    picture = _picture(data, spec, options.range)
    if form == "json":
        parts = json_parts(_numbers(picture, spec, options))
        response = respond(parts, "application/json", service().settings.download_seconds)
    else:
        (result,) = service().present(service().ask([picture], [options]))
        with service().processors:
            response = Response(drawing(result, form), mimetype=MEDIA_TYPES[form])
    response.headers["Vary"] = "Accept"
    return response


def _numbers(picture: Source, spec: ModelSpec, options: ExplainParameters) -> Numbers:
    """Return (C, H, W) of integrated gradients or (1, H, W) of other methods, in coordinates of the model's input."""
    if max(options.top or 1, len(options.target), len(options.method)) > 1:
        raise FieldError(
            "This response has a single map; name one class and one method, or request a picture with Accept: "
            "image/png.",
            field="target",
        )
    ((_, explainer),) = build_explainers(options.method, options, service().settings)
    if isinstance(explainer, IntegratedGradients) and (explainer.sign, explainer.smooth) == ("signed", "none"):
        computation = ChannelGradients((explainer,))
        ((outcome,),) = service().ask([picture], [options], drawn=False, computation=computation, most=1).result()
        gradients: Numbers = outcome.result.numpy()
        return gradients
    (result,) = service().present(service().ask([picture], [options], drawn=False, most=1))
    height, width = result.model.preprocess.size
    (explanation,) = result.explanations
    input_geometry = Geometry(width, height, (0.0, 0.0, width, height), explanation.geometry.reach)
    return input_geometry.lay_back(explanation.map)[np.newaxis]


def _spec(name: str, version: str | None) -> ModelSpec:
    """Return the model of a path: its name may contain a slash, which also separates a version."""
    if version is None:
        return model_spec(name)
    try:
        return model_spec(f"{name}/{version}")
    except ModelNotFoundError:
        spec = model_spec(name)
    if version not in VERSIONS:
        raise VersionNotFoundError(f"Model version: {version} does not exist for model: {name}. It has {VERSIONS[0]}.")
    return spec


def _read() -> tuple[Any, dict[str, Any]]:
    """Return the request's picture, bytes or JSON, and its options."""
    if request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded"):
        return _read_form()
    options, body = flatten(request.args), read_body(request)
    if not body:
        raise MalformedRequestError(
            "The body is empty: send a picture in it (curl -T cat.png), or as the form's field data."
        )
    if request.mimetype != "application/json":
        return body, options
    document = parse_json(body)
    if not isinstance(document, dict):
        return document, options
    members = [name for name in _DATA if name in document]
    if len(members) != 1:
        raise MalformedRequestError("A JSON object must have the picture as its member data.")
    return document.pop(members[0]), merge(options, document)


def _read_form() -> tuple[Any, dict[str, Any]]:
    request.max_form_memory_size = service().settings.max_upload_bytes  # pictures may be sent as text
    read_texts(request)
    files = [file_bytes(file) for name in _DATA for file in request.files.getlist(name)]
    texts = [text for name in _DATA for text in request.form.getlist(name)]
    if len(files) + len(texts) != 1:
        raise MalformedRequestError(
            "Send one picture as the form field data (curl -F data=@cat.png), or as the body itself "
            "(curl -T cat.png); curl --data-binary needs -H 'Content-Type: application/octet-stream'."
        )
    fields = {name: value for name, value in flatten(request.form, is_form=True).items() if name not in _DATA}
    return files[0] if files else texts[0], merge(flatten(request.args), fields)


def _picture(data: Any, spec: ModelSpec, meaning: Range | None) -> Source:
    return data if isinstance(data, bytes) else picture_reader(spec, meaning).from_json(data, "data")
