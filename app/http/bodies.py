"""Request bodies: decompression and JSON."""

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
"""Maximum lists, objects and strings in a JSON body. Each may be two characters, and takes 50 to 80 bytes in Python."""

MOST_OPTIONS = 100_000
"""Maximum values in the JSON of a request whose only numbers are options and edits."""

SPARE = 8
"""A growing buffer reserves one eighth more than it holds."""

_VALUE_BYTES = 64
"""A number of two digits and a comma: an object of 32 bytes, its slot in a list, and in an array and its copy."""

_PART_BYTES = 250
"""A list, an object or a string: the size of an object with one member, or of a member's name and slot."""

_PIECE = 2**16

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""zlib window sizes, which also select the expected header."""


def read_body(request: Request) -> bytes:
    """Return the decompressed body of a request; its memory is counted as it grows.

    Raises:
        UnsupportedBodyError: the Content-Encoding is unknown.
        MalformedRequestError: the body does not match its Content-Encoding.
        RequestEntityTooLarge: the body is, or decompresses to, more than the application allows.
        OutOfMemoryError, BodyTooLargeError: there is no memory for the body, at present or ever.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", *_WINDOWS):
        raise UnsupportedBodyError(f"Content-Encoding {encoding!r} is not supported; send gzip or deflate.")
    body, limit = io.BytesIO(), request.max_content_length
    while piece := request.stream.read(_PIECE):
        body.write(piece)
    # A body of unknown length that reaches the limit was cut there.
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
        raise MalformedRequestError(
            f"The body is not {encoding}, although its Content-Encoding says so; compress it, or leave that header out."
        ) from error
    if not reader.eof or reader.unused_data or packed.read(1):
        fault = "has data after its end" if reader.eof else "is truncated"
        raise MalformedRequestError(f"The {encoding} body {fault}; send one complete stream.")
    return body.getvalue()


def parse_json(text: bytes, most_values: int | None = None) -> Any:
    """Parse JSON; its memory is counted before it is parsed.

    Args:
        most_values: maximum members and list items, where few are needed; None for as many as memory allows.

    Raises:
        MalformedRequestError: the text is not JSON, which has no NaN or Infinity.
        BodyTooLargeError: it has more lists, objects and strings than one request may, more than `most_values` values,
            or more than memory could ever hold.
        OutOfMemoryError: there is no memory for it at present.
        FieldError: an object repeats a member, so its value is ambiguous.
    """

    def refuse(name: str) -> Any:
        raise MalformedRequestError(f"The body contains {name}, which is not JSON; send finite numbers.")

    count = text.count(b"[") + text.count(b"{") + text.count(b'"') // 2
    if count > MOST_PARTS:
        raise BodyTooLargeError(
            f"The body has {count:,} lists, objects and strings; one request may have {MOST_PARTS:,}. Send a picture "
            "as base64 of its file, or as an array with the channels first, [3, H, W], which has a list for each row "
            "and not for each pixel."
        )
    values = text.count(b",") + 1
    if most_values is not None and values > most_values:
        raise BodyTooLargeError(
            f"The body has {values:,} values; this route reads at most {most_values:,}. Send the picture as base64 of "
            "its file; /v1 and /v2 accept pictures as numbers."
        )
    current().take(len(text) * (1 if text.isascii() else 4) * 2 + values * _VALUE_BYTES + count * _PART_BYTES, BODY)
    try:
        return loads(text, parse_constant=refuse)
    except RepeatedMemberError as error:
        raise FieldError(f"In the JSON, {error}.", field=error.name[:100]) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(
            f'The body is not JSON: {error}. Quote names and texts with ", put no comma after the last member, and let '
            "curl read it from a file (curl --json @request.json)."
        ) from error
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("The body has a number that is too long, or lists nested too deeply.") from error


def parse_object(text: bytes, most_values: int | None = None) -> dict[str, Any]:
    """Parse a JSON object; arguments as for `parse_json`.

    Raises:
        MalformedRequestError, BodyTooLargeError, OutOfMemoryError: as in `parse_json`; or the JSON is not an object.
    """
    content = parse_json(text, most_values)
    if not isinstance(content, dict):
        raise MalformedRequestError("The body is not a JSON object.")
    return content
