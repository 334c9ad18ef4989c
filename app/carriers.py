"""The three ways in which a request carries a picture and its options; the names are the same in all of them.

- multipart form: the file field ``image``, options as fields
- the picture's bytes as the body with an ``image/*`` content type, options in the query string
- JSON: ``image`` as base64 (a data URL will do), options as members

In all of them, options may also stand in the query string; a repeated field is a list.
"""

import base64
import binascii
from typing import Any

from flask import Request
from werkzeug.datastructures import MultiDict

from app.errors import FieldError, MalformedRequestError, UnsupportedBodyError

_HOW = (
    "Send it as the multipart file field 'image' (curl -F image=@cat.png), as the body with an image/* content type, "
    "or as base64 in the JSON member 'image'."
)


def read_request(request: Request) -> tuple[bytes, dict[str, Any]]:
    """Return the picture's bytes and the options, values still unchecked.

    Raises:
        MalformedRequestError: no picture, or a body that cannot be parsed.
        UnsupportedBodyError: another content type.
        FieldError: a field twice where it may stand once, or an `image` that is no base64.
    """
    kind = request.mimetype
    if kind == "multipart/form-data":
        return _read_form(request)
    if kind.startswith("image/"):
        if not request.content_length and not request.get_data(cache=True):
            raise MalformedRequestError(f"The body is empty: there is no picture. {_HOW}")
        return request.get_data(), _flat(request.args)
    if kind == "application/json" or kind.endswith("+json"):
        return _read_json(request)
    if not kind and not request.content_length:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    raise UnsupportedBodyError(f"The content type {kind or 'of the body'!r} carries no picture. {_HOW}")


def _read_form(request: Request) -> tuple[bytes, dict[str, Any]]:
    files = request.files.getlist("image")
    if len(files) > 1:
        raise FieldError("Send one picture per request.", field="image")
    surplus = [name for name in request.files if name != "image"]
    if surplus:
        raise FieldError("Only 'image' may be a file; send options as plain fields.", field=surplus[0])
    if not files:
        hint = "The field 'image' is text, not a file. " if "image" in request.form else ""
        raise MalformedRequestError(f"{hint}There is no picture. {_HOW}")
    options = MultiDict(request.args)
    options.update(request.form)
    return files[0].read(), _flat(options)


def _read_json(request: Request) -> tuple[bytes, dict[str, Any]]:
    body = request.get_json(silent=True)
    if not isinstance(body, dict):
        raise MalformedRequestError("The body is not a JSON object.")
    options = {**_flat(request.args), **body}
    encoded = options.pop("image", None)
    if encoded is None:
        raise MalformedRequestError(f"There is no picture. {_HOW}")
    if not isinstance(encoded, str):
        raise FieldError("image must be a string of base64.", field="image")
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        return base64.b64decode("".join(encoded.split()), validate=True), options
    except (binascii.Error, ValueError) as error:
        raise FieldError("image is not valid base64.", field="image") from error


def _flat(values: "MultiDict[str, str]") -> dict[str, Any]:
    """Return one value or a list per name; an empty value, which forms send for what was left blank, is none."""
    given = ((name, [value for value in found if value]) for name, found in values.lists())
    return {name: found[0] if len(found) == 1 else found for name, found in given if found}
