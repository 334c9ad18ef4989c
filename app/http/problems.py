"""Errors as answers: problem+json (RFC 9457), with the status and code from `errors.py`."""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from flask import Flask, Response, current_app, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from seewhy.app.answers.schemas import FieldProblem, Problem
from seewhy.app.errors import (
    CLIENT_GONE,
    HTTP_KINDS,
    INTERNAL,
    RETRY_AFTER,
    ClientGoneError,
    InvalidOptionsError,
    Kind,
    MalformedRequestError,
    OverloadedError,
    field_of,
    kind_of,
    lacks_memory,
)
from seewhy.app.pipeline.record import current
from seewhy.explainers.errors import OptionError

_log = logging.getLogger(__name__)

_UPLOAD = " Send a picture in a POST request: curl --data-binary @cat.png does, curl -T does not."


class ErrorReport(NamedTuple):
    """The content of an error answer.

    Attributes:
        faults: fields at fault, each with its error.
    """

    kind: Kind
    detail: str
    faults: list[tuple[str, str]]


ErrorForm = Callable[[Exception, ErrorReport], Response]
"""Makes the answer in the format of another server's routes."""


def register_errors(app: Flask, forms: Mapping[str, ErrorForm] = MappingProxyType({})) -> None:
    """Turn every error of this application into a problem document.

    Args:
        forms: error formats of other servers' routes, by the first part of their paths.
    """

    def answer(error: Exception) -> Response:
        if isinstance(error, ParseException):  # raised by gunicorn while the body is read
            error = MalformedRequestError("The chunked body is malformed; send the body with Content-Length.")
        report = _http_report(error) if isinstance(error, HTTPException) else _report(error)
        current().problem = report.kind.code
        form = forms.get(request.path.split("/")[1])
        response = form(error, report) if form else _problem(report)
        if methods := _methods(error):
            response.headers["Allow"] = methods
        if response.status_code == 503:
            seconds = error.retry_after if isinstance(error, OverloadedError) else RETRY_AFTER
            response.headers["Retry-After"] = str(seconds)
        if response.status_code == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="SeeWhy"'
        return response

    app.register_error_handler(Exception, answer)
    app.register_error_handler(ClientGoneError, _answer_to_nobody)


def problem_of(error: Exception) -> Response:
    """Return the problem document of an exception."""
    return _problem(_report(error))


def _report(error: Exception) -> ErrorReport:
    kind = kind_of(error)
    if kind.status == 500:
        _log.exception("Request %s failed", current().request_id, exc_info=error)
        detail = "The server has logged the cause. Try again; if it fails again, contact the operator of the service."
        return ErrorReport(kind, str(error) if kind is not INTERNAL else detail, [])
    if lacks_memory(error):  # the message is empty, or the size of an array
        _log.warning("Out of memory: %s", error, exc_info=error)
        return ErrorReport(
            kind, "There is not enough memory for this request at present; try again when the server is less busy.", []
        )
    field = field_of(error)
    message = error.fault if isinstance(error, OptionError) else str(error)
    faults = error.faults if isinstance(error, InvalidOptionsError) else [(field, message)] if field else []
    # A client may have sent characters that UTF-8 cannot encode.
    return ErrorReport(kind, _printable(str(error)), [(_printable(name), _printable(text)) for name, text in faults])


def _answer_to_nobody(_: ClientGoneError) -> Response:
    current().problem = CLIENT_GONE
    return Response(status=499)


def _http_report(error: HTTPException) -> ErrorReport:
    kind = HTTP_KINDS.get(error.code or 500)
    if kind is None:
        kind = Kind(error.code or 500, error.name.lower().replace(" ", "-"), error.name)
    methods = _methods(error)
    details = {
        404: f"This path does not exist; {_instead()}",
        405: f"This path supports {methods}.{_UPLOAD if request.method == 'PUT' and 'POST' in methods else ''}",
        429: f"The limit is {error.description}; try again after the seconds in Retry-After.",
        413: "The body is too large; send a smaller picture: "
        f"{request.max_content_length or 0:,} bytes are allowed (SEEWHY_MAX_UPLOAD_BYTES).",
    }
    return ErrorReport(kind, _printable(details.get(kind.status, error.description or error.name)), [])


def _instead() -> str:
    """Return what to do about the path of this request, which does not exist."""
    routes, path = current_app.url_map.bind(""), request.path
    if path.endswith("/") and routes.allowed_methods(path.rstrip("/")):
        return "leave out the slash at its end."
    if request.method == "PUT" and "POST" in routes.allowed_methods(path.rpartition("/")[0]):
        return f"curl -T appends the name of the file to an address that ends in a slash.{_UPLOAD}"
    return "GET /openapi.json lists the paths."


def _methods(error: Exception) -> str:
    """Return the methods that a path supports, after a request with another one."""
    return ", ".join(sorted((isinstance(error, MethodNotAllowed) and error.valid_methods) or ()))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _problem(report: ErrorReport) -> Response:
    identity = current().request_id
    problem = Problem(
        type=f"urn:seewhy:problem:{report.kind.code}",
        title=report.kind.title,
        status=report.kind.status,
        detail=report.detail,
        instance=f"urn:seewhy:request:{identity}" if identity else None,
        errors=[FieldProblem(field=field, message=message) for field, message in report.faults] or None,
    )
    body = problem.model_dump_json(exclude_none=True)
    return Response(body, status=report.kind.status, mimetype="application/problem+json")
