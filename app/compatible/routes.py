"""Common code of other servers' routes: options from parameters, and errors in their format."""

from functools import partial
from typing import Any

from flask import Response
from openapi_pydantic.util import PydanticSchema
from pydantic import BaseModel
from werkzeug.routing import BaseConverter

from seewhy.app.compatible.instances import PictureReader, Range
from seewhy.app.compatible.schemas import ProtocolError, ReadyModel, TorchServeError, V1Models
from seewhy.app.errors import FieldError, TooManyPicturesError, VersionNotFoundError
from seewhy.app.http.declaration import BINARY, Declaration, Protocol, Schema
from seewhy.app.http.problems import ErrorReport
from seewhy.app.http.routes import json_response, model_spec, service
from seewhy.models.errors import WeightsUnavailableError
from seewhy.models.spec import ModelSpec

PICTURE: Schema = {**BINARY, "minLength": 1}
BYTES = "application/octet-stream"

VERSION = "1"
"""The only version of each model."""

EXPLAIN = "those of POST /explain except `model` and `format`, and `range`."
"""Description of the options of explanations."""

_ERRORS = {
    400: "The request is invalid",
    404: "Unknown model or version",
    413: "Too many bytes, pixels, pictures or values",
    500: "Internal server error",
    503: "Busy, still starting, or the weights are not available",
    504: "The deadline was exceeded",
}
_protocol = partial(
    Protocol,
    titles=_ERRORS,
    reading=(404, 500, 503),
    asking=tuple(_ERRORS),
    parts={
        "name": "A name from GET /models.",
        "version": f"Each model has version {VERSION}; TorchServe's routes also accept {VERSION}.0.",
    },
)

KServe = partial(Declaration, protocol=_protocol(ProtocolError))
"""A declaration of KServe's protocols."""

TorchServe = partial(Declaration, protocol=_protocol(TorchServeError))
"""A declaration of TorchServe's routes."""


def json_request(schema: type[BaseModel], *media_types: str) -> Any:
    """Return a function that makes the schemas of bodies: JSON of a schema, or bytes of other media types."""
    content: dict[str, Any] = {"application/json": {"schema": PydanticSchema(schema_class=schema)}}
    return lambda _: content | {media: {"schema": PICTURE} for media in media_types}


class ModelName(BaseConverter):
    """A model's name in a path, which may contain slashes. A route's suffix is not part of it: otherwise the routes
    that describe a model would also match ``:predict`` and ``/infer``.
    """

    part_isolating = False
    regex = r"(?!/)(?:(?!/(?:ready|config|stats|infer|explain|versions)(?:/|$))[^:])+"


def versioned_spec(name: str, version: str) -> ModelSpec:
    """Describe the model in a path that also names its version.

    Raises:
        ModelNotFoundError, VersionNotFoundError: there is no such model, or no such version of it.
    """
    spec = model_spec(name)
    if version != VERSION:
        raise VersionNotFoundError(f"The model {name!r} has no version {version!r}, only {VERSION}.")
    return spec


@KServe("The available models", answers=(V1Models,))
def models() -> Response:
    """List the models whose weights are available."""
    registry = service().models.registry
    names = [spec.name for spec in registry.specs() if registry.missing_weights(spec) is None]
    return json_response(V1Models(models=names))


@KServe("Whether a model is ready", answers=(ReadyModel,))
def model_ready(name: str, version: str = VERSION) -> Response:
    """Answer whether a request for a model would be answered; that request may have to load it."""
    spec = versioned_spec(name, version)
    missing = service().models.registry.missing_weights(spec)
    if missing is not None and not service().settings.download:
        raise WeightsUnavailableError(missing)
    return json_response(ReadyModel(name=spec.name, ready=True))


def picture_reader(spec: ModelSpec, meaning: Range | None) -> PictureReader:
    """Return the reader of pictures for a model."""
    return PictureReader(spec.preprocess, service().settings.max_pixels, meaning)


def check_count(count: int) -> None:
    """Refuse a request without pictures, or with too many."""
    most = service().settings.max_instances
    if count < 1:
        raise FieldError("There is no picture; send one or more.", field="instances")
    if count > most:
        raise TooManyPicturesError(f"{count} pictures are more than the {most} allowed in one request.")


def options_of(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the options in a request's parameters, with the model in the path; null means the default.

    Raises:
        FieldError: the path or the protocol decides an option.
    """
    for option, reason in (("model", "The path names the model"), ("format", "The protocol decides the format")):
        if option in parameters:
            raise FieldError(f"{reason}; leave the option {option!r} out.", field=option)
    return {"model": name} | {option: value for option, value in parameters.items() if value is not None}


def protocol_error(error: Exception, report: ErrorReport) -> Response:
    """Return an error in the format of KServe's protocols."""
    return json_response(ProtocolError(error=report.detail), status_of(report))


def status_of(report: ErrorReport) -> int:
    """Return the status of an error; other servers answer 400 to invalid requests except for 404 and 413."""
    return 400 if report.kind.status in (406, 415, 422) else report.kind.status
