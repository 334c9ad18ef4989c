"""An explanation as a stream of server-sent events, for whoever watches it grow; see docs/http.md.

A `progress` comes when there is more to tell, then one `answer` or one `error`. Closing the connection cancels the
explanation. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import logging
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seewhy.app.answers.documents import encode
from seewhy.app.answers.schemas import ProgressAnswer
from seewhy.app.answers.stream import Body
from seewhy.app.errors import GONE, ClientGoneError, kind_of
from seewhy.app.http.problems import problem_of
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.plan import Explained, Underway
from seewhy.app.pipeline.record import current
from seewhy.explainers.results.explanation import draw_map

MEDIA_TYPE = "text/event-stream"

_GLANCE = 0.1
"""Seconds between two looks at a model's progress."""

_SILENCE = 10.0
"""Seconds after which a comment is sent, so that a closed connection is noticed."""

_SIDE = 512
"""Longest side of a drawing of an unfinished map."""

_WHOLE = 1000
"""Parts of the whole work."""

_log = logging.getLogger(__name__)

Steps = Generator[Underway, None, Explained]


def stream(service: Service, steps: Steps, underway: Underway, finish: Callable[[Explained], Body]) -> Iterator[bytes]:
    """Yield the events of an explanation.

    Args:
        service: whose explanation it is.
        steps: of the explanation, begun; whoever made them closes them.
        underway: what the first of them gave.
        finish: makes the body of the answer, JSON.
    """
    record = current()
    started = time.monotonic()
    try:
        while True:
            yield from _watched(service, underway, started)
            try:
                underway = next(steps)
            except StopIteration as end:
                explained: Explained = end.value
                break
        body = finish(explained)
        yield b"event: answer\ndata: "  # JSON has no line breaks
        yield from [body] if isinstance(body, bytes) else body.pieces()
        yield b"\n\n"
    except GeneratorExit:
        record.problem = GONE
        raise
    except ClientGoneError:
        record.problem = GONE
        _log.info("A client left a stream before its end.")
    except Exception as error:
        record.problem = kind_of(error).code  # the status, 200, is sent
        _log.info("A stream ended with the problem %s.", record.problem)
        yield event("error", problem_of(error).get_data(as_text=True))


def event(name: str, data: str) -> bytes:
    """Return an event; data without line breaks, as JSON is."""
    return f"event: {name}\ndata: {data}\n\n".encode()


def _watched(service: Service, underway: Underway, started: float) -> Iterator[bytes]:
    """Yield what there is to tell until the model is done."""
    told: int | None = -1
    seen: NDArray[np.float32] | None = None
    spoken = time.monotonic()
    while True:
        is_over = underway.wait(_GLANCE)
        now, share, found = time.monotonic(), underway.share, underway.jobs[0].progress.map
        done = None if share is None else int(_WHOLE * share)
        if done != told or found is not seen:
            preview = None if found is seen or found is None else _drawn(service, underway, found)
            told, seen, spoken = done, found, now
            progress = ProgressAnswer(
                done=done or 0,
                total=0 if done is None else _WHOLE,
                elapsed_ms=round((now - started) * 1000, 3),
                preview=preview,
            )
            yield event("progress", progress.model_dump_json(exclude_none=True))
        elif now - spoken > _SILENCE:
            spoken = now
            yield b": still at work\n\n"
        if is_over:
            return


def _drawn(service: Service, underway: Underway, found: NDArray[np.float32]) -> str | None:
    """Return a map that is not finished, drawn as the answer will be, as a data URL; None where that fails."""
    style = underway.style
    side = _SIDE // 2 if style.view == "side-by-side" else _SIDE
    try:
        with service.processors:
            small = replace(style, max_side=min(side, style.max_side or side))
            drawn = draw_map(underway.decoded.picture, underway.decoded.geometry, found, underway.signed, small)
            return f"data:image/jpeg;base64,{b64encode(encode(drawn, 'jpeg')).decode('ascii')}"
    except Exception:  # for a look nobody is to lose the answer
        _log.exception("A map cannot be drawn before it is finished")
        return None
