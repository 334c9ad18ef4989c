"""Common code of other servers' routes: options from parameters, and errors in their format."""

from typing import Any

from flask import Response
from pydantic import BaseModel
from werkzeug.routing import BaseConverter

from seewhy.app.compatible.instances import PictureReader, Range
from seewhy.app.compatible.schemas import ProtocolError
from seewhy.app.errors import FieldError, TooManyPicturesError
from seewhy.app.http.problems import ErrorReport
from seewhy.app.http.routes import model_spec, service
from seewhy.models.errors import WeightsUnavailableError
from seewhy.models.spec import ModelSpec


class ModelName(BaseConverter):
    """A model's name in a path, which may contain slashes. A route's suffix is not part of it: otherwise the routes
    that describe a model would also match ``:predict`` and ``/infer``.
    """

    part_isolating = False
    regex = r"(?!/)(?:(?!/(?:ready|infer|explain|versions)(?:/|$))[^:])+"


def available_names() -> list[str]:
    """Return the names of the models whose weights are available."""
    registry = service().models.registry
    return [spec.name for spec in registry.specs() if registry.missing_weights(spec) is None]


def ready_spec(name: str) -> ModelSpec:
    """Describe the model in a path, if a request for it would be answered; that request may have to load it.

    Raises:
        ModelNotFoundError: there is no such model.
        WeightsUnavailableError: its weights are not available, and may not be downloaded.
    """
    spec = model_spec(name)
    missing = service().models.registry.missing_weights(spec)
    if missing is not None and not service().settings.download:
        raise WeightsUnavailableError(missing)
    return spec


def picture_reader(spec: ModelSpec, meaning: Range | None) -> PictureReader:
    """Return the reader of pictures for a model."""
    return PictureReader(spec.preprocess, service().settings.max_pixels, meaning)


def check_count(count: int) -> None:
    """Refuse a request without pictures, or with too many.

    Raises:
        FieldError, TooManyPicturesError: there are no pictures, or too many.
    """
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
    return answer(ProtocolError(error=report.detail), status_of(report))


def status_of(report: ErrorReport) -> int:
    """Return the status of an error; other servers answer 400 to invalid requests except for 404 and 413."""
    return 400 if report.kind.status in (406, 415, 422) else report.kind.status


def answer(document: BaseModel, status: int = 200) -> Response:
    """Return a document as JSON."""
    return Response(document.model_dump_json(exclude_unset=True), status=status, mimetype="application/json")
