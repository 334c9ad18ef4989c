"""The targets of fuzzing: functions that take any bytes and may raise only errors that clients are told of."""

import io
import json
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from flask import Request
from werkzeug.exceptions import HTTPException
from werkzeug.test import EnvironBuilder

from seewhy.app.errors import ServiceError
from seewhy.app.http.declaration import SecondPicture
from seewhy.app.http.uploads import read_request
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions, ExplainOptions, Options, PredictOptions, TraceOptions
from seewhy.app.pipeline.parse import parse
from seewhy.app.pipeline.strict_json import loads
from seewhy.explainers.errors import EditError, PictureError
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.inspection.edits import OPS, parse_edits
from tools.hostile import pictures

MAX_LENGTH = 4096
"""Maximum bytes of an input."""

SCHEMAS: tuple[type[Options], ...] = (ExplainOptions, PredictOptions, TraceOptions, CaptureOptions, InterveneOptions)
KINDS = ("multipart/form-data; boundary=x", "application/json", "image/png", "", "application/vnd.a+json", "text/plain")

_EDIT_WORDS = sorted({*OPS, *(name for op in OPS.values() for name in op.model_fields), *get_args(Kind), "sum", "norm"})
_OPTION_WORDS = sorted(
    {*_EDIT_WORDS, *(name for schema in SCHEMAS for name in schema.model_fields), "png", "0,1", "inf,nan"}
)


def picture(content: bytes) -> None:
    """Decode, whole and reduced."""
    for decode in (lambda: read_picture(content, 100_000), lambda: pictures.reduced(content, (8, 8), 100_000)[0]):
        try:
            result = decode()
        except PictureError:
            continue
        image = getattr(result, "picture", result)
        assert image.mode == "RGB"
        assert image.tobytes()


def request(content: bytes) -> None:
    """Read a request: a byte for its content type, one for the length of its query string, the rest is the body."""
    kind, cut, rest = content[:1], content[1:2], content[2:]
    query, body = rest[: ord(cut or b"\0")], rest[ord(cut or b"\0") :]
    builder = EnvironBuilder(
        method="POST",
        query_string=query.decode("latin-1"),
        content_type=KINDS[ord(kind or b"\0") % len(KINDS)],
        input_stream=io.BytesIO(body),
        content_length=len(body),
    )
    try:
        with Request(builder.get_environ()) as incoming:
            incoming.max_content_length = MAX_LENGTH
            upload = read_request(incoming, SecondPicture("other", "") if ord(kind or b"\0") & 64 else None)
            assert isinstance(upload.picture, bytes)
            parse(SCHEMAS[len(query) % len(SCHEMAS)], upload.fields)
    except (ServiceError, PictureError, HTTPException) as error:
        str(error).encode("utf-8", "backslashreplace")
    finally:
        builder.close()


def value_of(content: Iterator[int], words: Sequence[str], depth: int = 0) -> Any:
    """Build a JSON value: a byte decides its kind, the next ones its content."""
    kind = next(content, 0) % 10
    if kind < 3 and depth < 5:
        count = range(next(content, 0) % 6)
        if kind < 2:
            return [value_of(content, words, depth + 1) for _ in count]
        return {words[next(content, 0) % len(words)]: value_of(content, words, depth + 1) for _ in count}
    if kind < 6:
        return words[next(content, 0) % len(words)]
    number = struct.unpack("<q", bytes(next(content, 0) for _ in range(8)))[0]
    small, real = number % 256 - 16, struct.unpack("<d", struct.pack("<q", number))[0]
    return {6: small, 7: real, 8: number, 9: (None, True, False, str(small), "")[small % 5]}[kind]


def built(content: bytes, words: Sequence[str]) -> Any:
    """Return the value of the bytes as JSON, or else one that is built from them."""
    try:
        return loads(content)
    except (ValueError, RecursionError):
        return value_of(iter(content), words)


def options(content: bytes) -> None:
    """Check options: a byte for the route, and the rest for the options."""
    fields = built(content[1:], _OPTION_WORDS)
    if isinstance(fields, dict):
        try:
            checked = parse(SCHEMAS[content[0] % len(SCHEMAS)], fields)
        except ServiceError as error:
            str(error).encode("utf-8", "backslashreplace")
            return
        checked.model_dump_json()


def edits(content: bytes) -> None:
    """Check edits."""
    candidates = built(content, _EDIT_WORDS)
    try:
        checked = parse_edits(candidates)
    except EditError as error:
        if not error.field.startswith("edits"):
            raise
        return
    for edit in checked:
        assert parse_edits([edit.model_dump()]) == (edit,)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "picture": picture,
    "request": request,
    "options": options,
    "edits": edits,
}


def run(name: str, content: bytes) -> None:
    """Pass an input to a target, and hide Pillow's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TARGETS[name](content)


def seeds(name: str) -> Iterator[bytes]:
    """Yield inputs to start from; they are generated, not stored."""
    if name == "picture":
        families = (pictures.kinds, pictures.exif, pictures.directories, pictures.profiles, pictures.frames)
        yield from (pictures.encoded(pictures.photograph(5, 4), kind) for kind in pictures.FORMATS)
        yield from (case.content for family in families for case in family() if len(case.content) <= MAX_LENGTH)
    else:
        edit = {"op": "clamp", "layer": "a", "min": -1, "at": "grad_input", "channels": [1], "region": [0, 0, 1, 1]}
        body = {"target": ["a", 1], "layer": "a", "alpha": 0.5, "scale": "0,1", "top": 2, "method": "a,b", "x": [1.5]}
        for place in range(len(SCHEMAS)):
            fields = json.dumps({**body, "edits": [edit, {"op": "swap", "layer": "b"}]}).encode()
            form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nGIF\r\n--x--\r\n'
            yield {
                "edits": json.dumps([edit, {"op": "noise", "layer": "b", "value": 1e3, "seed": 2}]).encode(),
                "options": bytes([place]) + fields,
                "request": struct.pack("BB", place, 9) + b"top=1&a=b" + (form if place == 0 else fields),
            }[name]
