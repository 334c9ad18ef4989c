"""The three ways in which a request carries a picture and its options; the names are the same in all of them.

- multipart form: the file field ``image``, options as fields
- the picture's bytes as the body with an ``image/*`` content type, options in the query string
- JSON: ``image`` as base64 (a data URL will do), options as members

In all of them, options may also stand in the query string; a repeated field is a list.
"""

import base64
import binascii
import io
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Request
from pydantic import BaseModel, ValidationError
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import RequestEntityTooLarge

from seewhy.app.errors import (
    BodyTooLargeError,
    FieldError,
    InvalidOptionsError,
    MalformedRequestError,
    UnsupportedBodyError,
)
from seewhy.app.http.bodies import MOST_OPTIONS, parse_object, read_body
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import BODY
from seewhy.app.pipeline.record import current
from seewhy.explainers.errors import near_matches, plain_fault
from seewhy.explainers.inspection.edits import NO_LIST, edit_fault
from seewhy.explainers.methods.catalogue import METHODS

Parsed = TypeVar("Parsed", bound=BaseModel)

MAX_VALUES = 1000
"""Most options in a request, and most values of an option. Each is checked, and may be compared for near matches."""

MAX_FAULTS = 20
"""Most faults that one answer lists."""

_HOW = (
    "Send it as the multipart file field 'image' (curl -F image=@cat.png), as the body with an image/* content type, "
    "or as base64 in the member 'image' of JSON (with -H 'Content-Type: application/json')."
)


class InMemoryRequest(Request):
    """A request whose files stay in memory: what a body may take is bounded, and a full disk does not matter."""

    def _get_file_stream(self, *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO()


@dataclass(frozen=True)
class Upload:
    """What a request carries.

    Attributes:
        picture: the bytes of the picture.
        other: those of a second one, where the route takes it.
        fields: the options, values still unchecked.
    """

    picture: bytes
    other: bytes | None
    fields: dict[str, Any]


def read_request(request: Request, other: str | None = None) -> Upload:
    """Return the pictures' bytes and the options.

    Args:
        request: of Flask.
        other: name of the second picture that the route takes, if it does.

    Raises:
        MalformedRequestError: no picture, or a body that cannot be parsed.
        UnsupportedBodyError: another content type.
        FieldError: a field twice where it may stand once, or an `image` that is no base64.
        BodyTooLargeError: more texts or values than a request needs.
        OutOfMemoryError: there is no memory for it at present.
    """
    upload = _read(request, other)
    account().keep(len(upload.picture) + len(upload.other or b""), BODY)  # the rest of the body is gone
    return upload


def _read(request: Request, other: str | None) -> Upload:
    kind = request.mimetype
    if kind == "multipart/form-data":
        return _read_form(request, other)
    if kind.startswith("image/"):
        picture = read_body(request)
        if not picture:
            raise MalformedRequestError(f"The body is empty: there is no picture. {_HOW}")
        return Upload(picture, None, flat(request.args))
    if kind == "application/json" or kind.endswith("+json"):
        return _read_json(request, other)
    if not kind and not request.content_length:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    carrier = f"The content type {kind!r}" if kind else "A body of no type"
    raise UnsupportedBodyError(f"{carrier} carries no picture. {_HOW}")


def parse(schema: type[Parsed], fields: dict[str, Any]) -> Parsed:
    """Return the options of a request as their schema has them.

    Raises:
        InvalidOptionsError: an option that is unknown, or a value that does not fit.
    """
    known = _options(schema)
    current().options = tuple(sorted(known.intersection(fields)))
    if len(fields) > MAX_VALUES:
        raise FieldError(f"{len(fields):,} options are more than the {MAX_VALUES:,} that are read; send fewer.")
    for name, value in fields.items():
        if isinstance(value, list) and len(value) > MAX_VALUES:
            raise FieldError(f"{len(value):,} values are more than the {MAX_VALUES:,} that are read.", field=name[:100])
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise InvalidOptionsError(_faults(schema, known, fields, error)) from error


def _options(schema: type[BaseModel]) -> set[str]:
    """Return the names of all options that a request of this schema may have, those of methods too."""
    takes_more = schema.model_config.get("extra") == "allow"
    return {*schema.model_fields, *(name for method in METHODS.values() if takes_more for name in method.options)}


def _faults(
    schema: type[BaseModel], known: set[str], fields: dict[str, Any], error: ValidationError
) -> list[tuple[str, str]]:
    """Return what is wrong with each field, once; `known` are the options that the request may have."""
    faults: dict[str, str] = {}
    # An option may be a number or a text. Of a text too long the message is about its length, not about numbers.
    for fault in sorted(error.errors()[:MAX_FAULTS], key=lambda fault: fault["type"] == "int_type"):
        if fault["loc"][:1] == ("edits",) and (len(fault["loc"]) > 1 or fault["type"] in NO_LIST):
            faults.setdefault(*edit_fault(fault, fault["loc"][1:]))
            continue
        field = str(fault["loc"][0]) if fault["loc"] else "options"
        message = plain_fault(fault)
        if fault["type"] == "extra_forbidden" or (fault["loc"] and field not in known):
            names = sorted(schema.model_fields)
            hint = near_matches(field, known) or (f"It takes {', '.join(names)}." if names else "It takes none.")
            message = f"There is no such option. {hint}"
        elif isinstance(fields.get(field), list) and len(fault["loc"]) == 1:
            message = "It is given several times; give it once."
        faults.setdefault(field, message)
    # A list without its refused items is too short as well; that is no fault of its own.
    return [
        (place, message)
        for place, message in faults.items()
        if not any(other.startswith(f"{place}[") for other in faults)
    ]


def read_texts(request: Request) -> None:
    """Parse a form, whose texts and fields are bounded beside the whole body.

    Raises:
        BodyTooLargeError: they are too large, or too many.
    """
    try:
        request.form  # noqa: B018 - werkzeug parses it when it is first looked at
    except RequestEntityTooLarge as error:
        limit = request.max_content_length
        if limit is not None and (request.content_length is None or request.content_length > limit):
            raise
        raise BodyTooLargeError(
            f"The texts in the form are more than {request.max_form_memory_size:,} bytes together, or it has too many "
            f"fields: more than {request.max_form_parts:,}. Send the picture as a file (curl -F image=@cat.png), or as "
            "base64 in JSON."
        ) from error


def content(file: FileStorage) -> bytes:
    """Return a file of a form, which `InMemoryRequest` has in memory, without a copy of it."""
    stream = file.stream
    return stream.getvalue() if isinstance(stream, io.BytesIO) else stream.read()


def _read_form(request: Request, other: str | None) -> Upload:
    read_texts(request)
    for name in ("image", other):
        if name is not None and len(request.files.getlist(name)) > 1:
            raise FieldError("Send one picture per request.", field=name)
    surplus = [name for name in request.files if name not in ("image", other)]
    if surplus:
        if "image" not in request.files and "image" not in request.form:
            raise FieldError(f"The picture's field is called 'image', not {surplus[0]!r}. {_HOW}", field=surplus[0])
        files = "Only 'image'" if other is None else f"Only 'image' and '{other}'"
        raise FieldError(
            f"{files} may be a file; send options as plain fields (curl -F '{surplus[0]}=<FILE' sends a file's text).",
            field=surplus[0],
        )
    if not (request.files or request.form) and (request.content_length or request.content_length is None):
        raise MalformedRequestError(
            "The form has no fields that can be read: it is cut short, compressed, or divided by another boundary than "
            f"its Content-Type says. {_HOW}"
        )
    if "image" not in request.files:
        hint = "The field 'image' is text, not a file. " if "image" in request.form else ""
        raise MalformedRequestError(f"{hint}There is no picture. {_HOW}")
    if other is not None and other in request.form:
        raise FieldError(f"{other} must be a file.", field=other)
    second = content(request.files[other]) if other is not None and other in request.files else None
    return Upload(content(request.files["image"]), second, merged(flat(request.args), flat(request.form)))


def _read_json(request: Request, other: str | None) -> Upload:
    body = parse_object(read_body(request), MOST_OPTIONS)
    encoded = body.pop("image", None)
    if encoded is None:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    second = None if other is None else body.pop(other, None)
    options = {name: value for name, value in body.items() if value is not None}  # null is the default
    return Upload(
        decoded("image", encoded),
        None if second is None else decoded(other or "", second),
        merged(flat(request.args), options),
    )


def decoded(name: str, encoded: Any) -> bytes:
    """Return the bytes that base64, or a data URL, stands for.

    Raises:
        FieldError: it is neither; `name` is the field at fault.
    """
    if not isinstance(encoded, str):
        raise FieldError(f"{name} must be a string of base64.", field=name)
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    account().take(len(encoded), BODY)  # decoded
    try:
        with account().holding(2 * len(encoded), BODY):  # without its spaces, and as bytes
            return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        hint = " URLs are not fetched; send the picture itself." if re.match(r"\s*https?:", encoded) else ""
        raise FieldError(f"{name} is not valid base64.{hint}", field=name) from error


def merged(query: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a query string and of a body.

    Raises:
        FieldError: one that stands in both.
    """
    for name in query:
        if name in body:
            raise FieldError(f"{name} stands in the query string and in the body; give it once.", field=name)
    return {**query, **body}


def flat(values: "MultiDict[str, str]") -> dict[str, Any]:
    """Return one value or a list per name; an empty value, which forms send for what was left blank, is none."""
    lists = ((name, [value for value in items if value]) for name, items in values.lists())
    return {name: items[0] if len(items) == 1 else items for name, items in lists if items}
