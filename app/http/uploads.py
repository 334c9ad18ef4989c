"""The three ways to send a picture and its options, with the same names in all of them.

- multipart form: the file field ``image``, options as fields
- the picture's bytes as the body, options in the query string; with an ``image/*`` content type, or with one that says
  nothing, if the first bytes are those of a picture
- JSON: ``image`` as base64 or a data URL, options as members

In all of them, options may also be in the query string; a repeated field is a list.
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
from seewhy.app.http.declaration import SecondPicture
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import BODY
from seewhy.explainers.errors import UnreadablePictureError
from seewhy.explainers.imaging.upload_checks import is_picture, unreadable

_HOW = (
    "Send it as the multipart file field 'image' (curl -F image=@cat.png), as the body (curl --data-binary @cat.png), "
    "or as base64 in the member 'image' of JSON (with -H 'Content-Type: application/json')."
)


_LONGEST_NAME = 255
"""Characters of a file's name that are kept."""

_SILENT = ("", "application/octet-stream", "binary/octet-stream", "application/x-www-form-urlencoded")
"""Content types that say nothing about a body; the last is that of ``curl --data-binary``."""


class InMemoryRequest(Request):
    """A request whose files stay in memory: the size of a body is limited, and a full disk does not matter."""

    def _get_file_stream(self, *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO()


@dataclass(frozen=True)
class Upload:
    """The content of a request.

    Attributes:
        other: the bytes of the second picture, if the route takes one and it was sent.
        fields: the options, with unchecked values.
        name: name of the picture's file, as the client gives it; empty if it gives none.
    """

    picture: bytes
    other: bytes | None
    fields: dict[str, Any]
    name: str = ""

    @property
    def pictures(self) -> list[bytes]:
        """The picture, and the second one if it was sent."""
        return [self.picture] if self.other is None else [self.picture, self.other]


def read_request(request: Request, second: SecondPicture | None = None) -> Upload:
    """Return the bytes of the pictures, and the options.

    Args:
        second: the second picture, if the route takes one.

    Raises:
        MalformedRequestError: there is no picture, a required second one is missing, or the body cannot be parsed.
        UnsupportedBodyError: the content type is not supported.
        FieldError: a field is repeated that may not be, or `image` is not base64.
        BodyTooLargeError: the body has more strings or values than a request needs.
        OutOfMemoryError: there is no memory for the body at present.
    """
    upload = _read(request, None if second is None else second.name)
    if second is not None and second.is_required and upload.other is None:
        raise MalformedRequestError(
            f"There is no second picture. Send both as multipart file fields (curl -F image=@cat.png -F "
            f"{second.name}=@dog.png), or as base64 in the members 'image' and '{second.name}' of JSON; a body with "
            "an image/* content type contains only one picture.",
            field=second.name,
        )
    account().keep(len(upload.picture) + len(upload.other or b""), BODY)  # the rest of the body has been freed
    return upload


def _read(request: Request, other: str | None) -> Upload:
    kind = request.mimetype
    if other is not None and other in request.args:
        raise FieldError(f"{other} must be a file of a form, or base64 in JSON.", field=other)
    if kind == "multipart/form-data":
        return _read_form(request, other)
    if kind.startswith("image/"):
        picture = read_body(request)
        if not picture:
            raise MalformedRequestError(f"The body is empty: there is no picture. {_HOW}")
        return Upload(picture, None, flatten(request.args))
    if kind == "application/json" or kind.endswith("+json"):
        return _read_json(request, other)
    if kind in _SILENT:
        body = read_body(request)
        if is_picture(body):
            return Upload(body, None, flatten(request.args))
        if not body:
            raise MalformedRequestError(f"There is no picture. {_HOW}")
        if not body.lstrip().startswith((b"{", b"image=")):
            raise UnreadablePictureError(unreadable(body))
    carrier = f"The content type {kind!r}" if kind else "A body without a content type"
    hint = " for a body of text" if kind in _SILENT else ""
    raise UnsupportedBodyError(f"{carrier} is not supported{hint}. {_HOW}")


def read_texts(request: Request) -> None:
    """Parse a form, whose text fields have limits besides that of the whole body.

    Raises:
        BodyTooLargeError: the fields are too large or too many.
    """
    try:
        request.form  # noqa: B018 - werkzeug parses the form on first access
    except RequestEntityTooLarge as error:
        limit = request.max_content_length
        if limit is not None and (request.content_length is None or request.content_length > limit):
            raise
        raise BodyTooLargeError(
            f"The form's text has more than {request.max_form_memory_size:,} bytes, or there are too many fields "
            f"(more than {request.max_form_parts:,}). Send the picture as a file (curl -F image=@cat.png), or as "
            "base64 in JSON."
        ) from error


def file_bytes(file: FileStorage) -> bytes:
    """Return the bytes of a form's file without copying them: `InMemoryRequest` has them in memory."""
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
            raise FieldError(f"The field of the picture is 'image', not {surplus[0]!r}. {_HOW}", field=surplus[0])
        files = "Only 'image'" if other is None else f"Only 'image' and '{other}'"
        raise FieldError(
            f"{files} may be a file; send options as plain fields (curl -F '{surplus[0]}=<FILE' sends a file's text).",
            field=surplus[0],
        )
    if not (request.files or request.form) and (request.content_length or request.content_length is None):
        raise MalformedRequestError(
            "The form has no readable fields: it is truncated, compressed, or its boundary differs from that in "
            f"Content-Type. {_HOW}"
        )
    if "image" not in request.files:
        hint = "The field 'image' is text, not a file. " if "image" in request.form else ""
        raise MalformedRequestError(f"{hint}There is no picture. {_HOW}")
    if other is not None and any(request.form.getlist(other)):
        raise FieldError(f"{other} must be a file.", field=other)
    image, second = request.files["image"], None if other is None else request.files.get(other)
    other_picture = None if second is None else file_bytes(second)
    # Forms also send fields that nobody filled in: browsers an empty file without a name, Swagger UI an empty text.
    if second is not None and not (second.filename or other_picture):
        other_picture = None
    fields = merge(flatten(request.args), flatten(request.form, is_form=True))
    return Upload(file_bytes(image), other_picture, fields, (image.filename or "")[:_LONGEST_NAME])


def _read_json(request: Request, other: str | None) -> Upload:
    body = parse_object(read_body(request), MOST_OPTIONS)
    image = body.pop("image", None)
    if image is None:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    other_picture = None if other is None else body.pop(other, None)
    options = {name: value for name, value in body.items() if value is not None}  # null means the default
    return Upload(
        decode_base64("image", image),
        None if other_picture is None else decode_base64(other or "", other_picture),
        merge(flatten(request.args), options),
    )


def decode_base64(field: str, text: Any) -> bytes:
    """Return the bytes of base64 or of a data URL.

    Raises:
        FieldError: the text is neither; `field` is at fault.
    """
    if not isinstance(text, str):
        raise FieldError(f"{field} must be a base64 string.", field=field)
    if text.startswith("data:"):
        text = text.partition(",")[2]
    account().take(len(text), BODY)  # decoded
    try:
        with account().holding(2 * len(text), BODY):  # without spaces, and as bytes
            return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        what = "Addresses and paths are not opened; encode" if re.search(r"[.:]", text) else "Encode"
        raise FieldError(f"{field} is not valid base64. {what} the bytes of the file.", field=field) from error


def merge(query: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the query string and of the body, none of which may be in both."""
    for name in query:
        if name in body:
            raise FieldError(f"{name} is in both the query string and the body; give it once.", field=name)
    return {**query, **body}


def flatten(values: "MultiDict[str, str]", is_form: bool = False) -> dict[str, Any]:
    """Return one value or a list per name; of a form without its blank fields, which browsers send too."""
    lists = ((name, [value for value in items if value or not is_form]) for name, items in values.lists())
    return {name: items[0] if len(items) == 1 else items for name, items in lists if items}
