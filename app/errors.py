"""What can go wrong in the service. `KINDS` gives each error its status and code; `http/problems.py` makes answers."""

from dataclasses import dataclass

from seewhy.explainers import errors as explainer_errors
from seewhy.models import errors as model_errors

RETRY_AFTER = 5
"""Seconds after which a refused client should try again."""

_MEMORY_WORDS = ("out of memory", "allocate memory", "failed to allocate", "bad_alloc", "bad allocation")
"""How libraries without an error of their own put it."""


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
    """Memory does not suffice for the request, even for one picture at a time, or not at present."""


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
"""Errors whose message says all; logs need no traceback of them."""


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
    explainer_errors.EditError: Kind(422, "bad-edit", "An edit cannot be applied", "edits"),
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
CLIENT_GONE = "client-gone"
"""The code in metrics and logs of a request whose client has left."""

CODES = sorted({*(kind.code for kind in (*KINDS.values(), *HTTP_KINDS.values(), INTERNAL)), CLIENT_GONE})
"""All codes of problems."""


def field_of(error: Exception) -> str | None:
    """Return the field of a request that is at fault, if one is."""
    named = error.field if isinstance(error, ServiceError | explainer_errors.ExplainerError) else None
    return named or kind_of(error).field


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, PyTorch's, Pillow's or a runtime's."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(words in message for words in _MEMORY_WORDS)
    )


def kind_of(error: Exception) -> Kind:
    """Return the kind of an exception: that of its nearest listed ancestor, or out-of-memory where it says so."""
    if lacks_memory(error):
        return KINDS[MemoryError]
    return next((KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in KINDS), INTERNAL)
