"""The one place that turns what went wrong into problem+json (RFC 9457).

ServiceError
├── MalformedRequestError      400  no picture, or a body that cannot be parsed
├── KeyRequiredError           401  no key, where one is needed
├── KeyRefusedError            401  a key that is not one of the service's
├── NotFoundError              404  a path that names nothing
│   ├── ModelNotFoundError         404  a path that names no model
│   └── VersionNotFoundError       404  a path that names no version of a model
├── NotAcceptableError         406  no format that the client accepts
├── UnsupportedBodyError       415  a content type that carries no picture
├── FieldError                 422  one field at fault
│   └── TooMuchWorkError           422  more passes than can be done before the deadline
├── InvalidOptionsError        422  several fields may be at fault
├── TooCostlyError             429  more than what is left of the client's rate
├── TooManyPicturesError       413  more pictures than one request may hold
├── BodyTooLargeError          413  a body of more lists, objects and texts than allowed
├── AnswerTooLargeError        413  an answer of more numbers than allowed
├── OverloadedError            503  the queue is full
│   └── NoMoreError                503  the server is stopping, and takes no more
├── OutOfMemoryError           503  one picture, or a model, does not fit, or not beside what others hold
├── BrokenError                503  this process cannot answer any more, and is to be replaced
├── NotReadyError              503  the default model is still loading
│   └── StoppingError              503  the server is stopping
├── KeysUnavailableError       503  the file of keys is gone or broken
├── DeadlineError              504  not done in time
└── ClientGoneError            499  nobody is left to read it; only the log shows it
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from flask import Flask, Response, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import HTTPException

from app.envelope import request_id
from app.record import current
from app.schemas import FieldProblem, Problem
from explainers import errors as explainer_errors
from explainers.edits import EditError
from models import errors as model_errors

RETRY_AFTER = 5
"""Seconds after which a refused client should come back."""

_MEMORY_WORDS = ("out of memory", "allocate memory", "failed to allocate", "bad_alloc", "bad allocation")
"""What those say of it who have no error of their own."""

_log = logging.getLogger(__name__)


class ServiceError(Exception):
    """Root of what this floor raises on purpose. `field` names the field at fault, if one is."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MalformedRequestError(ServiceError):
    """The request has no picture, or a body that cannot be parsed."""


class KeyRequiredError(ServiceError):
    """The request has no key, and the route needs one."""


class KeyRefusedError(ServiceError):
    """The key is none of this service's."""


class NotFoundError(ServiceError):
    """The path names something that does not exist."""


class ModelNotFoundError(NotFoundError):
    """The path names a model that does not exist."""


class VersionNotFoundError(NotFoundError):
    """The path names a version that the model does not have."""


class NotAcceptableError(ServiceError):
    """None of the formats that the client accepts can be made."""


class UnsupportedBodyError(ServiceError):
    """The content type carries no picture."""


class FieldError(ServiceError):
    """A field has a value that it cannot take."""


class TooMuchWorkError(FieldError):
    """What is asked takes more passes through the model than can be done before the deadline."""


class TooCostlyError(ServiceError):
    """The request costs more than what is left of the client's rate."""


class InvalidOptionsError(ServiceError):
    """Options that do not fit their schema; `faults` pairs each field with what is wrong with it."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        super().__init__(" ".join(f"{field}: {message}" for field, message in faults))
        self.faults = faults


class TooManyPicturesError(ServiceError):
    """The request holds more pictures than allowed."""


class BodyTooLargeError(ServiceError):
    """The body holds more lists, objects and texts than allowed."""


class AnswerTooLargeError(ServiceError):
    """The answer would hold more numbers than allowed."""


class OverloadedError(ServiceError):
    """Too much is waiting already. `retry_after`: seconds after which to come back, where that is known."""

    def __init__(self, message: str, retry_after: int = RETRY_AFTER) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoMoreError(OverloadedError):
    """The server is stopping: it answers what it has, and takes no more."""


class OutOfMemoryError(ServiceError):
    """Memory is too small for what was asked, even for one picture at a time, or beside what others ask for."""


class NotReadyError(ServiceError):
    """The default model is still loading."""


class BrokenError(ServiceError):
    """This process cannot answer any more, and no waiting mends that."""


class StoppingError(NotReadyError):
    """The server is stopping, and will not be ready again."""


class KeysUnavailableError(ServiceError):
    """The file of keys cannot be read, so nobody can be let in."""


class DeadlineError(ServiceError):
    """The answer was not ready in time."""


class ClientGoneError(ServiceError):
    """Nobody waits for the answer any more."""


EXPECTED = (ServiceError, explainer_errors.ExplainerError, model_errors.ModelError)
"""What is told by its message alone."""


@dataclass(frozen=True)
class Kind:
    """One kind of problem: its status, its code (the end of its `type`), its title, the field it usually concerns."""

    status: int
    code: str
    title: str
    field: str | None = None


KINDS: dict[type[Exception], Kind] = {
    MalformedRequestError: Kind(400, "malformed-request", "The request is malformed"),
    KeyRequiredError: Kind(401, "key-required", "A key is needed"),
    KeyRefusedError: Kind(401, "key-refused", "The key is not accepted"),
    NotFoundError: Kind(404, "not-found", "There is nothing at this path"),
    NotAcceptableError: Kind(406, "not-acceptable", "No acceptable format"),
    UnsupportedBodyError: Kind(415, "unsupported-body", "The content type carries no picture"),
    FieldError: Kind(422, "bad-option", "An option has a bad value"),
    InvalidOptionsError: Kind(422, "bad-option", "An option has a bad value"),
    TooMuchWorkError: Kind(422, "too-much-work", "The work cannot be done in time"),
    TooCostlyError: Kind(429, "rate-limited", "Too many requests"),
    TooManyPicturesError: Kind(413, "too-many-pictures", "The request holds too many pictures"),
    BodyTooLargeError: Kind(413, "upload-too-large", "The request body is too large"),
    AnswerTooLargeError: Kind(413, "answer-too-large", "The answer would be too large"),
    OverloadedError: Kind(503, "overloaded", "Too many requests are waiting"),
    NoMoreError: Kind(503, "overloaded", "The service is stopping"),
    OutOfMemoryError: Kind(503, "out-of-memory", "Memory is too small for this request at present"),
    MemoryError: Kind(503, "out-of-memory", "Memory is too small for this request at present"),
    NotReadyError: Kind(503, "not-ready", "The service is still starting"),
    BrokenError: Kind(503, "broken", "This process is to be replaced"),
    StoppingError: Kind(503, "not-ready", "The service is stopping"),
    KeysUnavailableError: Kind(503, "keys-unavailable", "The keys cannot be read"),
    DeadlineError: Kind(504, "deadline-exceeded", "The answer was not ready in time"),
    explainer_errors.UnreadablePictureError: Kind(415, "unreadable-picture", "Not a readable picture", "image"),
    explainer_errors.PictureTooLargeError: Kind(413, "picture-too-large", "The picture has too many pixels", "image"),
    explainer_errors.CaptureTooLargeError: Kind(413, "capture-too-large", "The capture would be too large", "layer"),
    EditError: Kind(422, "bad-edit", "An edit cannot be applied", "edits"),
    explainer_errors.OptionError: Kind(422, "bad-option", "An option has a bad value"),
    explainer_errors.LayerError: Kind(422, "bad-layer", "The layer cannot be used", "layer"),
    explainer_errors.UnsupportedOperationError: Kind(
        422, "unsupported-operation", "The method has no rule for an operation of the model", "method"
    ),
    explainer_errors.TargetError: Kind(422, "bad-target", "The model has no such class", "target"),
    explainer_errors.ExplainerError: Kind(500, "model-failed", "The model gave no usable output"),
    model_errors.UnknownModelError: Kind(422, "unknown-model", "There is no such model", "model"),
    model_errors.WeightsUnavailableError: Kind(503, "weights-unavailable", "The weights are not at hand", "model"),
    model_errors.ModelError: Kind(503, "model-unusable", "The model cannot be loaded", "model"),
}

HTTP_KINDS = {
    400: Kind(400, "malformed-request", "The request is malformed"),
    404: Kind(404, "not-found", "There is nothing at this path"),
    405: Kind(405, "method-not-allowed", "This path does not answer that method"),
    413: Kind(413, "upload-too-large", "The request body is too large"),
    429: Kind(429, "rate-limited", "Too many requests"),
}
INTERNAL = Kind(500, "internal", "Something went wrong here, not with your request")
GONE = "client-gone"
"""What metrics and logs call it where nobody is left to read an answer."""

CODES = sorted({*(kind.code for kind in (*KINDS.values(), *HTTP_KINDS.values(), INTERNAL)), GONE})
"""All codes of problems."""


class Told(NamedTuple):
    """What a client is told of an error.

    Attributes:
        kind: status, code and title.
        detail: what is wrong, and what to do next.
        faults: fields at fault, each with what is wrong with it.
    """

    kind: Kind
    detail: str
    faults: list[tuple[str, str]]


Form = Callable[[Exception, Told], Response]
"""How routes of another server tell of an error."""


def register_errors(app: Flask, forms: Mapping[str, Form] = MappingProxyType({})) -> None:
    """Make every error of this application a problem document.

    Args:
        app: the application.
        forms: by the first part of a path, how its routes tell of errors instead.
    """

    def answer(error: Exception) -> Response:
        if isinstance(error, ParseException):  # gunicorn finds out as the body is read
            error = MalformedRequestError("The chunks of the body are not what they say; send it with its length.")
        told = _told_of_http(error) if isinstance(error, HTTPException) else _told_of(error)
        current().problem = told.kind.code
        form = forms.get(request.path.split("/")[1])
        response = form(error, told) if form else _problem(told)
        if allowed := getattr(error, "valid_methods", None):
            response.headers["Allow"] = ", ".join(sorted(allowed))
        if response.status_code == 503:
            response.headers["Retry-After"] = str(getattr(error, "retry_after", RETRY_AFTER))
        if response.status_code == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="SeeWhy"'
        return response

    app.register_error_handler(Exception, answer)
    app.register_error_handler(ClientGoneError, _gone)


def lacks_memory(error: BaseException) -> bool:
    """Whether it says that memory could not be had: Python's error, PyTorch's, Pillow's, or a runtime's."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(words in said for words in _MEMORY_WORDS)
    )


def kind_of(error: Exception) -> Kind:
    """Return the kind of an exception: that of its nearest listed ancestor, or of memory that could not be had."""
    if lacks_memory(error):
        return KINDS[MemoryError]
    return next((KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in KINDS), INTERNAL)


def problem_of(error: Exception) -> Response:
    """Return the problem document that tells of an exception."""
    return _problem(_told_of(error))


def _told_of(error: Exception) -> Told:
    kind = kind_of(error)
    if kind.status == 500:
        _log.exception("Request %s failed", request_id.get(), exc_info=error)
        detail = "The server has logged the cause. Try again; if it fails again, tell whoever runs this service."
        return Told(kind, str(error) if kind is not INTERNAL else detail, [])
    if lacks_memory(error):  # it says nothing, or how large an array was
        _log.warning("Memory does not suffice: %s", error, exc_info=error)
        return Told(kind, "Memory does not suffice for this at present; try again when the server has less to do.", [])
    field = getattr(error, "field", None) or kind.field
    said = getattr(error, "fault", str(error))
    faults = error.faults if isinstance(error, InvalidOptionsError) else [(field, said)] if field else []
    # What a client sent may hold characters that UTF-8 cannot.
    return Told(kind, _printable(str(error)), [(_printable(name), _printable(said)) for name, said in faults])


def _gone(_: ClientGoneError) -> Response:
    current().problem = GONE
    return Response(status=499)


def _told_of_http(error: HTTPException) -> Told:
    kind = HTTP_KINDS.get(error.code or 500)
    if kind is None:
        kind = Kind(error.code or 500, error.name.lower().replace(" ", "-"), error.name)
    details = {
        404: "There is nothing at this path; GET /openapi.json lists the paths.",
        405: f"This path answers {', '.join(sorted(getattr(error, 'valid_methods', None) or ()))}.",
        429: f"No more than {error.description} are answered; come back after the seconds that Retry-After says.",
        413: "The body is too large; send a smaller picture: "
        f"{request.max_content_length or 0:,} bytes are allowed (SEEWHY_MAX_UPLOAD_BYTES).",
    }
    return Told(kind, _printable(details.get(kind.status, error.description or error.name)), [])


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _problem(told: Told) -> Response:
    identity = request_id.get()
    problem = Problem(
        type=f"urn:seewhy:problem:{told.kind.code}",
        title=told.kind.title,
        status=told.kind.status,
        detail=told.detail,
        instance=f"urn:seewhy:request:{identity}" if identity else None,
        errors=[FieldProblem(field=field, message=message) for field, message in told.faults] or None,
    )
    body = problem.model_dump_json(exclude_none=True)
    return Response(body, status=told.kind.status, mimetype="application/problem+json")
