"""Streaming of large answers: they are encoded while they are sent, without a copy of their source."""

import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any
from uuid import uuid4

from flask import Response, request
from numpy.typing import NDArray
from pydantic_core import to_json

from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.explainers.results.array_files import ArrayFile

_BAND = 2**14
"""Numbers formatted in one step."""

_SMALL = 2**20
"""Largest answer without a time limit for sending: it fits into the buffers of systems and proxies."""

_NUMBER_TEXT = 26
"""Maximum characters of a number in JSON, with its separator."""


@dataclass(frozen=True, eq=False)
class BodyStream:
    """A body made in pieces.

    Attributes:
        source_bytes: size of its source.
        most_bytes: maximum size of the body.
        length: size of the body; None if unknown beforehand.
    """

    pieces: Callable[[], Iterator[bytes]]
    source_bytes: int
    most_bytes: int
    length: int | None = None

    def join(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self.pieces())


Body = bytes | BodyStream


def file_parts(file: ArrayFile) -> BodyStream:
    """Return a file of arrays as a body."""
    length = file.length
    return BodyStream(file.pieces, file.nbytes, length or 2 * file.nbytes, length)


def json_parts(document: Any) -> BodyStream:
    """Return JSON as a body.

    Args:
        document: document made of dicts, lists and plain values; NumPy arrays among them become nested lists.
    """
    arrays: list[NDArray[Any]] = []
    place = uuid4().hex  # cannot occur in a document, even on purpose

    def set_apart(array: NDArray[Any]) -> str:
        arrays.append(array)
        return place

    head, *texts = to_json(document, fallback=set_apart, inf_nan_mode="null").split(f'"{place}"'.encode())

    def pieces() -> Iterator[bytes]:
        yield head
        for array, text in zip(arrays, texts, strict=True):
            yield from _lists(array)
            yield text

    text_bytes = len(head) + sum(map(len, texts))
    most_bytes = text_bytes + sum(_NUMBER_TEXT * array.size + 3 * _list_count(array) for array in arrays)
    return BodyStream(pieces, text_bytes + sum(array.nbytes for array in arrays), most_bytes)


def _list_count(array: NDArray[Any]) -> int:
    return sum(prod(array.shape[:axis]) for axis in range(array.ndim))


def _lists(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield an array as nested lists of JSON."""
    yield b"["
    if array.ndim > 2:
        for number, part in enumerate(array):
            yield b"," if number else b""
            yield from _lists(part)
    else:
        rows = max(1, _BAND // max(1, array[:1].size))
        for start in range(0, len(array), rows):
            yield b"," if start else b""
            yield to_json(array[start : start + rows].tolist(), inf_nan_mode="null")[1:-1]
    yield b"]"


def respond(body: Body, mimetype: str, seconds: float) -> Response:
    """Return the response with a body; from now on the request holds only the body's memory.

    Args:
        seconds: time limit for sending a large one; then the connection is closed.
    """
    if isinstance(body, bytes):
        if len(body) <= _SMALL:
            return Response(body, mimetype=mimetype)
        content, size = body, len(body)
        body = BodyStream(lambda: iter([content]), size, size, size)
    account().keep(min(account().holdings, body.source_bytes), ANSWER)
    response = Response(in_time(body.pieces(), seconds), mimetype=mimetype)
    if body.length is not None:
        response.content_length = body.length
    return response


def in_time(pieces: Iterator[bytes], seconds: float) -> Iterator[bytes]:
    """Yield pieces of the answer to this request, and shut its connection once the time is up.

    That frees a thread that waits for a slow reader.

    Args:
        pieces: the pieces, closed with the returned iterator.
        seconds: time limit from the first piece until the last one has been sent.
    """
    return _until(seconds, pieces, request.environ.get("gunicorn.socket"))


def _until(seconds: float, pieces: Iterator[bytes], connection: object) -> Iterator[bytes]:
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), _shut, [connection])
    timer.daemon = True
    timer.start()
    try:
        for piece in pieces:
            if piece:
                yield piece
    finally:
        timer.cancel()
        if isinstance(pieces, Generator):
            pieces.close()


def _shut(connection: object) -> None:
    if isinstance(connection, socket.socket):
        with suppress(OSError):  # already closed
            connection.shutdown(socket.SHUT_RDWR)
