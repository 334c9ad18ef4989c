"""Errors of the service. `KINDS` gives each error its status and code; `http/problems.py` turns them into answers."""

from dataclasses import dataclass

from seewhy.explainers import errors as explainer_errors
from seewhy.models import errors as model_errors

RETRY_AFTER = 5
"""Seconds after which a refused client should try again."""

_MEMORY_WORDS = ("out of memory", "allocate memory", "failed to allocate", "bad_alloc", "bad allocation")
"""Messages of libraries without a specific exception for this."""


class ServiceError(Exception):
    """Base class of the service's errors. `field` names the field at fault, if any."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MalformedRequestError(ServiceError):
    """The request has no picture, or its body cannot be parsed."""


class KeyRequiredError(ServiceError):
    """The request has no key, and the route needs one."""


class KeyRefusedError(ServiceError):
    """The key is not valid for this service."""


class NotFoundError(ServiceError):
    """The path names something that does not exist."""


class ModelNotFoundError(NotFoundError):
    """The path names a model that does not exist."""


class VersionNotFoundError(NotFoundError):
    """The path names a version that the model does not have."""


class NotAcceptableError(ServiceError):
    """The service has none of the formats that the client accepts."""


class UnsupportedBodyError(ServiceError):
    """The content type is not one that carries a picture."""


class FieldError(ServiceError):
    """A field has an invalid value."""


class TooMuchWorkError(FieldError):
    """The request needs more passes through the model than fit before the deadline."""


class TooCostlyError(ServiceError):
    """The request costs more than the remaining quota of the client."""


class InvalidOptionsError(ServiceError):
    """The options do not match their schema; `faults` pairs each field with its error."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        super().__init__(" ".join(f"{field}: {message}" for field, message in faults))
        self.faults = faults


class TooManyPicturesError(ServiceError):
    """The request contains more pictures than allowed."""


class BodyTooLargeError(ServiceError):
    """The body contains more lists, objects and strings than allowed."""


class AnswerTooLargeError(ServiceError):
    """The response would contain more numbers than allowed."""


class OverloadedError(ServiceError):
    """Too many requests are waiting. `retry_after`: seconds until the client should retry."""

    def __init__(self, message: str, retry_after: int = RETRY_AFTER) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoMoreError(OverloadedError):
    """The server is stopping: it finishes accepted requests and refuses new ones."""


class OutOfMemoryError(ServiceError):
    """There is not enough memory for the request, even for one picture at a time, or not at present."""


class NotReadyError(ServiceError):
    """The default model is still loading."""


class BrokenError(ServiceError):
    """This process can no longer handle requests and does not recover."""


class StoppingError(NotReadyError):
    """The server is stopping, and will not be ready again."""


class KeysUnavailableError(ServiceError):
    """The key file cannot be read, so all requests are refused."""


class DeadlineError(ServiceError):
    """The deadline was exceeded."""


class ClientGoneError(ServiceError):
    """The client no longer waits for the response."""


EXPECTED = (ServiceError, explainer_errors.ExplainerError, model_errors.ModelError)
"""Errors whose message is enough; they are logged without a traceback."""


@dataclass(frozen=True)
class Kind:
    """A kind of problem: status, code (the end of its `type`), title, and the field that is usually at fault."""

    status: int
    code: str
    title: str
    field: str | None = None


KINDS: dict[type[Exception], Kind] = {
    MalformedRequestError: Kind(400, "malformed-request", "The request is malformed"),
    KeyRequiredError: Kind(401, "key-required", "An API key is required"),
    KeyRefusedError: Kind(401, "key-refused", "The API key is not valid"),
    NotFoundError: Kind(404, "not-found", "Not found"),
    NotAcceptableError: Kind(406, "not-acceptable", "No acceptable format"),
    UnsupportedBodyError: Kind(415, "unsupported-body", "Unsupported content type"),
    FieldError: Kind(422, "bad-option", "An option is invalid"),
    InvalidOptionsError: Kind(422, "bad-option", "An option is invalid"),
    TooMuchWorkError: Kind(422, "too-much-work", "The request cannot finish before its deadline"),
    TooCostlyError: Kind(429, "rate-limited", "Too many requests"),
    TooManyPicturesError: Kind(413, "too-many-pictures", "The request has too many pictures"),
    BodyTooLargeError: Kind(413, "upload-too-large", "The request body is too large"),
    AnswerTooLargeError: Kind(413, "answer-too-large", "The response would be too large"),
    OverloadedError: Kind(503, "overloaded", "Too many requests are waiting"),
    NoMoreError: Kind(503, "overloaded", "The service is stopping"),
    OutOfMemoryError: Kind(503, "out-of-memory", "Not enough memory for this request at present"),
    MemoryError: Kind(503, "out-of-memory", "Not enough memory for this request at present"),
    NotReadyError: Kind(503, "not-ready", "The service is still starting"),
    BrokenError: Kind(503, "broken", "This process is broken and will be replaced"),
    StoppingError: Kind(503, "not-ready", "The service is stopping"),
    KeysUnavailableError: Kind(503, "keys-unavailable", "The API keys cannot be read"),
    DeadlineError: Kind(504, "deadline-exceeded", "The deadline was exceeded"),
    explainer_errors.UnreadablePictureError: Kind(415, "unreadable-picture", "Not a readable picture", "image"),
    explainer_errors.PictureTooLargeError: Kind(413, "picture-too-large", "The picture has too many pixels", "image"),
    explainer_errors.CaptureTooLargeError: Kind(413, "capture-too-large", "The capture would be too large", "layer"),
    explainer_errors.EditError: Kind(422, "bad-edit", "An edit cannot be applied", "edits"),
    explainer_errors.OptionError: Kind(422, "bad-option", "An option is invalid"),
    explainer_errors.UnsuitableModelError: Kind(
        422, "unsuitable-model", "The model lacks what the request needs", "method"
    ),
    explainer_errors.LayerError: Kind(422, "bad-layer", "The layer cannot be used", "layer"),
    explainer_errors.UnsupportedOperationError: Kind(
        422, "unsupported-operation", "The method has no rule for an operation of the model", "method"
    ),
    explainer_errors.TargetError: Kind(422, "bad-target", "The model has no such target", "target"),
    explainer_errors.ExplainerError: Kind(500, "model-failed", "The model returned no usable output"),
    model_errors.UnknownModelError: Kind(422, "unknown-model", "Unknown model", "model"),
    model_errors.WeightsUnavailableError: Kind(503, "weights-unavailable", "The weights are not available", "model"),
    model_errors.ModelError: Kind(503, "model-unusable", "The model cannot be loaded", "model"),
}

HTTP_KINDS = {
    KINDS[error].status: KINDS[error]
    for error in (MalformedRequestError, NotFoundError, BodyTooLargeError, TooCostlyError)
} | {
    405: Kind(405, "method-not-allowed", "Method not allowed"),
}
"""Kinds of the errors of werkzeug and Flask, by status."""

INTERNAL = Kind(500, "internal", "Internal server error")
CLIENT_GONE = "client-gone"
"""The code, in metrics and logs, of a request whose client disconnected."""

CODES = sorted({*(kind.code for kind in (*KINDS.values(), *HTTP_KINDS.values(), INTERNAL)), CLIENT_GONE})
"""All problem codes."""


def field_of(error: Exception) -> str | None:
    """Return the field of the request that is at fault, if any."""
    field = error.field if isinstance(error, ServiceError | explainer_errors.ExplainerError) else None
    return field or kind_of(error).field


BAD_INPUT, FAILED = 2, 1
"""Exit statuses of commands: the input is invalid, as in argparse and click; a valid command failed."""


def exit_status(error: Exception) -> int:
    """Return the exit status of a command that ends with an error."""
    is_input = kind_of(error).status == 422 or isinstance(error, model_errors.ModelsFileError)
    return BAD_INPUT if is_input else FAILED


def with_notes(error: BaseException) -> str:
    """Return the message of an error with its notes, such as paths, for whoever runs this process."""
    return " ".join([str(error), *vars(error).get("__notes__", [])])


def lacks_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: in Python, PyTorch, Pillow or a runtime."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(words in message for words in _MEMORY_WORDS)
    )


def kind_of(error: Exception) -> Kind:
    """Return the kind of an exception: that of its nearest listed base class, or out-of-memory."""
    if lacks_memory(error):
        return KINDS[MemoryError]
    return next((KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in KINDS), INTERNAL)
