"""The body of a request: its bytes, whatever their encoding, and the JSON in them."""

import io
import json
import zlib
from typing import Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from seewhy.app.errors import BodyTooLargeError, FieldError, MalformedRequestError, UnsupportedBodyError
from seewhy.app.memory.account import current
from seewhy.app.memory.budget import BODY
from seewhy.app.pipeline.strict_json import RepeatedMemberError, loads

MOST_PARTS = 1_000_000
"""Most lists, objects and texts in a JSON body. Each may be two characters, and takes Python 50 to 80 bytes."""

MOST_OPTIONS = 100_000
"""Most values in the JSON of a request that needs no numbers but a few options and edits."""

SPARE = 8
"""A growing buffer reserves an eighth more than it holds."""

_VALUE_BYTES = 64
"""A number of two digits and a comma: an object of 32 bytes, its place in a list, and that in an array and its copy."""

_PART_BYTES = 250
"""A list, an object or a text: that of an object with one member, or of a member's name and place."""

_PIECE = 2**16

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Window sizes, by which zlib knows the header to expect."""


def read_body(request: Request) -> bytes:
    """Return the body of a request, uncompressed; what it takes is counted as it grows.

    Raises:
        UnsupportedBodyError: a Content-Encoding that is not known.
        MalformedRequestError: it is not what its Content-Encoding says.
        RequestEntityTooLarge: it is, or becomes, larger than the application allows.
        OutOfMemoryError, BodyTooLargeError: there is no memory for it, at present or ever.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", *_WINDOWS):
        raise UnsupportedBodyError(f"There is no way to read Content-Encoding {encoding!r} here; send gzip or deflate.")
    body, limit = io.BytesIO(), request.max_content_length
    while piece := request.stream.read(_PIECE):
        body.write(piece)
    # One of unstated length that reaches the limit was cut there.
    if request.content_length is None and limit is not None and body.tell() >= limit:
        raise RequestEntityTooLarge
    return _uncompressed(body, encoding, limit) if encoding in _WINDOWS else body.getvalue()


def _uncompressed(packed: io.BytesIO, encoding: str, limit: int | None) -> bytes:
    reader, body = zlib.decompressobj(_WINDOWS[encoding]), io.BytesIO()
    packed.seek(0)
    try:
        while not reader.eof and (chunk := packed.read(_PIECE)):
            is_full = False
            while chunk or is_full:
                piece = reader.decompress(chunk, _PIECE)
                current().take(len(piece) + len(piece) // SPARE, BODY)
                body.write(piece)
                if limit is not None and body.tell() > limit:
                    raise RequestEntityTooLarge
                chunk, is_full = reader.unconsumed_tail, len(piece) == _PIECE
    except zlib.error as error:
        raise MalformedRequestError(f"The body is not {encoding}, as its Content-Encoding says.") from error
    if not reader.eof or reader.unused_data or packed.read(1):
        fault = "goes on after its end" if reader.eof else "is cut short"
        raise MalformedRequestError(f"The {encoding} of the body {fault}; send one whole stream.")
    return body.getvalue()


def parse_json(text: bytes, most_values: int | None = None) -> Any:
    """Return what a JSON text holds; what that takes is counted before it is parsed.

    Args:
        text: the body of a request.
        most_values: most members and items of lists where few are needed; None for as many as memory allows.

    Raises:
        MalformedRequestError: it is no JSON, which has no NaN or Infinity.
        BodyTooLargeError: more lists, objects and texts than one request may hold, or more than `most_values`; or there
            is never memory for what it holds.
        OutOfMemoryError: there is none at present.
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
    values = text.count(b",") + 1
    if most_values is not None and values > most_values:
        raise BodyTooLargeError(
            f"The body holds {values:,} values, more than the {most_values:,} that this route reads. Send the picture "
            "as base64 of its file; /v1 and /v2 take pictures as numbers."
        )
    current().take(len(text) * (1 if text.isascii() else 4) * 2 + values * _VALUE_BYTES + count * _PART_BYTES, BODY)
    try:
        return loads(text, parse_constant=refuse)
    except RepeatedMemberError as error:
        raise FieldError(f"In the JSON {error}.", field=error.name[:100]) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"The body is not JSON: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("The body holds a number too long, or lists too deep, to be read.") from error


def parse_object(text: bytes, most_values: int | None = None) -> dict[str, Any]:
    """Return the object that a JSON text holds; arguments as for `parse_json`.

    Raises:
        MalformedRequestError, BodyTooLargeError, OutOfMemoryError: as `parse_json`, or it holds none.
    """
    content = parse_json(text, most_values)
    if not isinstance(content, dict):
        raise MalformedRequestError("The body is not a JSON object.")
    return content
