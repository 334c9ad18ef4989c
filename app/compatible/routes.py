"""What the routes of other servers share: parameters become options, and errors take their form."""

from typing import Any

from flask import Response
from pydantic import BaseModel
from werkzeug.routing import BaseConverter

from seewhy.app.compatible.instances import PictureReader, Range
from seewhy.app.compatible.schemas import ProtocolError
from seewhy.app.errors import FieldError, ModelNotFoundError, TooManyPicturesError
from seewhy.app.http.problems import ErrorReport
from seewhy.app.http.routes import service
from seewhy.models.errors import UnknownModelError, WeightsUnavailableError
from seewhy.models.spec import ModelSpec


class ModelName(BaseConverter):
    """A model's name in a path, which may hold slashes. What a route adds to it is no part of it: otherwise the routes
    that describe a model would answer at ``:predict`` and ``/infer`` too.
    """

    part_isolating = False
    regex = r"(?!/)(?:(?!/(?:ready|infer|explain|versions)(?:/|$))[^:])+"


def model_spec(name: str) -> ModelSpec:
    """Describe a model that a path names.

    Raises:
        ModelNotFoundError: there is no such model.
    """
    try:
        return service().models.registry.spec(name)
    except UnknownModelError as error:
        raise ModelNotFoundError(str(error)) from error


def available_names() -> list[str]:
    """Return the names of the models whose weights are at hand."""
    registry = service().models.registry
    return [spec.name for spec in registry.specs() if registry.availability(spec).available]


def ready_spec(name: str) -> ModelSpec:
    """Describe a model that a path names, if a request for it would be answered; that request may have to load it.

    Raises:
        ModelNotFoundError: there is no such model.
        WeightsUnavailableError: its weights are not at hand, and are not to be fetched.
    """
    spec = model_spec(name)
    availability = service().models.registry.availability(spec)
    if not availability.available and not service().settings.download:
        raise WeightsUnavailableError(availability.reason)
    return spec


def picture_reader(spec: ModelSpec, meaning: Range | None) -> PictureReader:
    """Return what reads pictures for a model.

    Args:
        spec: of the model.
        meaning: of numbers, where the request says it.
    """
    return PictureReader(spec.preprocess, service().settings.max_pixels, meaning)


def check_count(count: int) -> None:
    """Refuse a request without pictures, or with too many.

    Raises:
        FieldError, TooManyPicturesError: as it says.
    """
    most = service().settings.max_instances
    if count < 1:
        raise FieldError("There is no picture; send one or more.", field="instances")
    if count > most:
        raise TooManyPicturesError(f"{count} pictures are more than the {most} that one request may hold.")


def options_of(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the options that parameters of a request give, with the model that the path names; null is the default.

    Raises:
        FieldError: an option that the path or the protocol decides.
    """
    for option, reason in (("model", "The path names the model"), ("format", "The protocol decides the format")):
        if option in parameters:
            raise FieldError(f"{reason}; leave the option {option!r} out.", field=option)
    return {"model": name} | {option: value for option, value in parameters.items() if value is not None}


def protocol_error(error: Exception, report: ErrorReport) -> Response:
    """Return an error as the protocols of KServe have it."""
    return answer(ProtocolError(error=report.detail), status_of(report))


def status_of(report: ErrorReport) -> int:
    """Return the status of an error; other servers answer 400 to a request at fault, where it is not 404 or 413."""
    return 400 if report.kind.status in (406, 415, 422) else report.kind.status


def answer(document: BaseModel, status: int = 200) -> Response:
    """Return a document as JSON."""
    return Response(document.model_dump_json(exclude_unset=True), status=status, mimetype="application/json")
