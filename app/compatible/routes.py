"""What the routes of other servers share: parameters become options, and errors take their form."""

from typing import Any

from flask import Response
from pydantic import BaseModel
from werkzeug.routing import BaseConverter

from seewhy.app.compatible.schemas import ProtocolError
from seewhy.app.compatible.service import InstanceService
from seewhy.app.errors import FieldError
from seewhy.app.http.problems import ErrorReport
from seewhy.app.http.routes import service


class ModelName(BaseConverter):
    """A model's name in a path, which may hold slashes. What a route adds to it is no part of it: otherwise the routes
    that describe a model would answer at ``:predict`` and ``/infer`` too.
    """

    part_isolating = False
    regex = r"(?!/)(?:(?!/(?:ready|infer|explain|versions)(?:/|$))[^:])+"


def instances() -> InstanceService:
    """Return the service of the running application for several pictures."""
    return InstanceService(service())


def options_of(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the options that parameters of a request give, with the model that the path names; null is the default.

    Raises:
        FieldError: an option that the path or the protocol decides.
    """
    for taken, who in (("model", "The path names the model"), ("format", "The protocol decides the format")):
        if taken in parameters:
            raise FieldError(f"{who}; leave the option {taken!r} out.", field=taken)
    return {"model": name} | {option: value for option, value in parameters.items() if value is not None}


def protocol_error(error: Exception, report: ErrorReport) -> Response:
    """Tell of an error as the protocols of KServe have it: what the client can mend is 400, 404 or 413."""
    status = 400 if report.kind.status in (406, 415, 422) else report.kind.status
    return answer(ProtocolError(error=report.detail), status)


def answer(document: BaseModel, status: int = 200) -> Response:
    """Return a document as JSON."""
    return Response(document.model_dump_json(exclude_unset=True), status=status, mimetype="application/json")
