"""The body of a request: its bytes, whatever their encoding, and the JSON in them."""

import json
import zlib
from typing import Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from app.errors import BodyTooLargeError, FieldError, MalformedRequestError, UnsupportedBodyError
from app.schemas import RepeatedMemberError, loads

MOST_PARTS = 1_000_000
"""Lists, objects and texts that one JSON body may hold. Python takes 50 to 80 bytes for one of two characters."""

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""What zlib is told of the header that it will find."""


def read_body(request: Request) -> bytes:
    """Return the body of a request, uncompressed.

    Raises:
        UnsupportedBodyError: a Content-Encoding that is not known.
        MalformedRequestError: it is not what its Content-Encoding says.
        RequestEntityTooLarge: it is, or becomes, larger than the application allows.
    """
    body = request.get_data()
    limit = request.max_content_length
    # One of unstated length that reaches the limit was cut there.
    if request.content_length is None and limit is not None and len(body) >= limit:
        raise RequestEntityTooLarge
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    return _uncompressed(body, encoding, limit) if encoding not in ("", "identity") else body


def _uncompressed(body: bytes, encoding: str, limit: int | None) -> bytes:
    if encoding not in _WINDOWS:
        raise UnsupportedBodyError(f"There is no way to read Content-Encoding {encoding!r} here; send gzip or deflate.")
    reader = zlib.decompressobj(_WINDOWS[encoding])
    try:
        body = reader.decompress(body, 0 if limit is None else limit + 1)
    except zlib.error as error:
        raise MalformedRequestError(f"The body is not {encoding}, as its Content-Encoding says.") from error
    if limit is not None and len(body) > limit:
        raise RequestEntityTooLarge
    if not reader.eof or reader.unused_data:
        wrong = "goes on after its end" if reader.eof else "is cut short"
        raise MalformedRequestError(f"The {encoding} of the body {wrong}; send one whole stream.")
    return body


def parse_json(text: bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
        MalformedRequestError: it is no JSON, which has no NaN or Infinity.
        BodyTooLargeError: more lists, objects and texts than one request may hold.
        FieldError: a member stands twice in an object: which one is meant cannot be known.
    """

    def refuse(name: str) -> Any:
        raise MalformedRequestError(f"The body holds {name}, which is no JSON; send finite numbers.")

    count = text.count(b"[") + text.count(b"{") + text.count(b'"') // 2
    if count > MOST_PARTS:
        raise BodyTooLargeError(
            f"The body holds {count:,} lists, objects and texts, more than the {MOST_PARTS:,} that one request may. "
            "Send a picture as base64 of its file, or an array with the channels first, [3, H, W], which has a list "
            "for each row and not for each pixel."
        )
    try:
        return loads(text, parse_constant=refuse)
    except RepeatedMemberError as error:
        raise FieldError(f"In the JSON {error}.", field=error.name[:100]) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"The body is not JSON: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("The body holds a number too long, or lists too deep, to be read.") from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Raises:
        MalformedRequestError, BodyTooLargeError: as `parse_json`, or it holds none.
    """
    found = parse_json(text)
    if not isinstance(found, dict):
        raise MalformedRequestError("The body is not a JSON object.")
    return found
