"""An explanation as a stream of server-sent events, for whoever watches it grow; see docs/http.md.

A `progress` comes when there is more to tell, then one `answer` or one `error`. Closing the connection cancels the
explanation. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import time
from base64 import b64encode
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.answers import document, encode
from app.errors import ClientGoneError, problem_of
from app.schemas import ExplainOptions, ProgressAnswer
from app.service import Explained, Service, Underway
from explainers.explanation import draw_map

MEDIA_TYPE = "text/event-stream"

_GLANCE = 0.1
"""Seconds between two looks at a model's progress."""

_SILENCE = 10.0
"""Seconds after which a comment is sent, so that a closed connection is noticed."""

_SIDE = 512
"""Longest side of a drawing of an unfinished map."""

Steps = Generator[Underway, None, Explained]


def stream(service: Service, upload: bytes, options: ExplainOptions) -> Iterator[str]:
    """Return the events of an explanation whose model has been asked by now.

    Raises:
        ServiceError, ExplainerError, ModelError: before there is an event, as `Service.explain`.
    """
    steps = service.steps(upload, options, watched=True)
    return _events(service, options, steps, next(steps))


def _events(service: Service, options: ExplainOptions, steps: Steps, underway: Underway) -> Iterator[str]:
    started = time.monotonic()
    try:
        while True:
            yield from _watched(service, underway, started)
            try:
                underway = next(steps)
            except StopIteration as end:
                explained: Explained = end.value
                break
        with service.processors:
            answer = document(explained, options.values, service.settings.max_json_values)
        yield _event("answer", answer.model_dump_json(exclude_unset=True))
    except ClientGoneError:
        return
    except Exception as error:
        yield _event("error", problem_of(error).get_data(as_text=True))
    finally:
        steps.close()


def _watched(service: Service, underway: Underway, started: float) -> Iterator[str]:
    """Yield what there is to tell until the model is done."""
    told: Any = None
    seen: NDArray[np.float32] | None = None
    spoken = time.monotonic()
    while True:
        is_over = underway.wait(_GLANCE)
        now, state = time.monotonic(), (*underway.progress, underway.jobs[0].progress.map)
        if state[:2] != told or state[2] is not seen:
            preview = None if state[2] is seen or state[2] is None else _drawn(service, underway, state[2])
            told, seen, spoken = state[:2], state[2], now
            elapsed = round((now - started) * 1000, 3)
            progress = ProgressAnswer(done=told[0], total=told[1], elapsed_ms=elapsed, preview=preview)
            yield _event("progress", progress.model_dump_json(exclude_none=True))
        elif now - spoken > _SILENCE:
            spoken = now
            yield ": still at work\n\n"
        if is_over:
            return


def _drawn(service: Service, underway: Underway, found: NDArray[np.float32]) -> str:
    """Return a map that is not finished, drawn as the answer will be, as a data URL."""
    style = replace(underway.style, max_side=min(_SIDE, underway.style.max_side or _SIDE))
    with service.processors:
        drawn = draw_map(underway.decoded.picture, underway.decoded.geometry, found, underway.signed, style)
        return f"data:image/jpeg;base64,{b64encode(encode(drawn, 'jpeg')).decode('ascii')}"


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"
