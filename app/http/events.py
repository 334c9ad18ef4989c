"""An explanation as a stream of server-sent events; see docs/http.md.

Each step sends a `progress`, then comes one `answer` or one `error`. Closing the connection cancels the
explanation. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seewhy.app.answers.documents import encode
from seewhy.app.answers.schemas import ProgressAnswer
from seewhy.app.answers.stream import Body
from seewhy.app.errors import CLIENT_GONE, ClientGoneError, kind_of
from seewhy.app.http.problems import problem_of
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.ticket import Ticket
from seewhy.explainers.imaging.png import data_url
from seewhy.explainers.results.map_drawing import draw_map

MEDIA_TYPE = "text/event-stream"

_GLANCE = 0.1
"""Seconds between two checks of the progress."""

_SILENCE = 10.0
"""Seconds of silence after which a comment is sent, so that a closed connection is noticed."""

_SIDE = 512
"""Longest side of a preview, in pixels."""

_WHOLE = 1000
"""Parts of the whole work."""

_log = logging.getLogger(__name__)


def stream(service: Service, ticket: Ticket, finish: Callable[[], Body]) -> Iterator[bytes]:
    """Yield the events of an explanation.

    Args:
        ticket: the ticket of the explanation; the caller cancels it.
        finish: waits for the explanation and returns the JSON body of the answer.
    """
    record = current()
    try:
        yield from _watch(service, ticket)
        body = finish()
        yield b"event: answer\ndata: "  # JSON has no line breaks
        yield from [body] if isinstance(body, bytes) else body.pieces()
        yield b"\n\n"
    except GeneratorExit:
        record.problem = CLIENT_GONE
        raise
    except ClientGoneError:
        record.problem = CLIENT_GONE
        _log.info("A client closed a stream before its end.")
    except Exception as error:
        record.problem = kind_of(error).code  # the status, 200, is sent
        _log.info("A stream ended with the problem %s.", record.problem)
        yield event("error", problem_of(error).get_data(as_text=True))


def event(name: str, data: str) -> bytes:
    """Return an event; the data must have no line breaks, like JSON."""
    return f"event: {name}\ndata: {data}\n\n".encode()


def _watch(service: Service, ticket: Ticket) -> Iterator[bytes]:
    """Yield an event for each progress, until the model has finished."""
    start = last_event = time.monotonic()
    last_parts: int | None = -1
    last_map: NDArray[np.float32] | None = None
    is_over = False
    while not is_over:
        is_over = ticket.wait(_GLANCE)
        now, share, unfinished = time.monotonic(), ticket.share, ticket.preview
        parts = None if share is None else int(_WHOLE * share)
        if parts != last_parts or unfinished is not last_map:
            answer = ProgressAnswer(
                done=parts or 0,
                total=0 if parts is None else _WHOLE,
                elapsed_ms=round((now - start) * 1000, 3),
                preview=None if unfinished is last_map else _preview(service, ticket, unfinished),
            )
            last_parts, last_map, last_event = parts, unfinished, now
            yield event("progress", answer.model_dump_json(exclude_none=True))
        elif now - last_event > _SILENCE:
            last_event = now
            yield b": still at work\n\n"


def _preview(service: Service, ticket: Ticket, unfinished: NDArray[np.float32] | None) -> str | None:
    """Draw an unfinished map like the final answer; return a data URL, or None if that fails."""
    submission = ticket.submissions[0]
    plan, picture = submission.plan, submission.picture
    side = _SIDE // plan.style.across
    if unfinished is None:
        return None
    try:
        with service.processors:
            small = replace(plan.style, max_side=min(side, plan.style.max_side or side))
            drawing = draw_map(picture.picture, picture.geometry, unfinished, plan.signed, small)
            return data_url(encode(drawing, "jpeg"), "jpeg")
    except Exception:  # a failed preview must not fail the answer
        _log.exception("A preview could not be drawn")
        return None
