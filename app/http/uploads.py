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
from typing import Any

from flask import Request
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import RequestEntityTooLarge

from seewhy.app.errors import BodyTooLargeError, FieldError, MalformedRequestError, UnsupportedBodyError
from seewhy.app.http.bodies import MOST_OPTIONS, parse_object, read_body
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import BODY

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
        return Upload(picture, None, flatten(request.args))
    if kind == "application/json" or kind.endswith("+json"):
        return _read_json(request, other)
    if not kind and not request.content_length:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    carrier = f"The content type {kind!r}" if kind else "A body of no type"
    raise UnsupportedBodyError(f"{carrier} carries no picture. {_HOW}")


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


def file_bytes(file: FileStorage) -> bytes:
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
    other_picture = file_bytes(request.files[other]) if other is not None and other in request.files else None
    return Upload(
        file_bytes(request.files["image"]), other_picture, merge(flatten(request.args), flatten(request.form))
    )


def _read_json(request: Request, other: str | None) -> Upload:
    body = parse_object(read_body(request), MOST_OPTIONS)
    image = body.pop("image", None)
    if image is None:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    other_picture = None if other is None else body.pop(other, None)
    options = {name: value for name, value in body.items() if value is not None}  # null is the default
    return Upload(
        decode_base64("image", image),
        None if other_picture is None else decode_base64(other or "", other_picture),
        merge(flatten(request.args), options),
    )


def decode_base64(field: str, text: Any) -> bytes:
    """Return the bytes that base64, or a data URL, stands for.

    Raises:
        FieldError: it is neither; `field` is at fault.
    """
    if not isinstance(text, str):
        raise FieldError(f"{field} must be a string of base64.", field=field)
    if text.startswith("data:"):
        text = text.partition(",")[2]
    account().take(len(text), BODY)  # decoded
    try:
        with account().holding(2 * len(text), BODY):  # without its spaces, and as bytes
            return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        hint = " URLs are not fetched; send the picture itself." if re.match(r"\s*https?:", text) else ""
        raise FieldError(f"{field} is not valid base64.{hint}", field=field) from error


def merge(query: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a query string and of a body.

    Raises:
        FieldError: one that stands in both.
    """
    for name in query:
        if name in body:
            raise FieldError(f"{name} stands in the query string and in the body; give it once.", field=name)
    return {**query, **body}


def flatten(values: "MultiDict[str, str]") -> dict[str, Any]:
    """Return one value or a list per name; an empty value, which forms send for what was left blank, is none."""
    lists = ((name, [value for value in items if value]) for name, items in values.lists())
    return {name: items[0] if len(items) == 1 else items for name, items in lists if items}
