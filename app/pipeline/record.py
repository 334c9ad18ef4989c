"""Records of requests. The code that does the work fills them in, and does not know metrics, logs or traces.

Those are made from the record when the request is over.
"""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from seewhy.app.pipeline.timings import Timings


@dataclass(eq=False)
class Record:
    """The record of a request.

    Attributes:
        verb, route: the HTTP method; the template of the path, or ``other``.
        request_id, client, address: the request's id, the name of the client's key, and the client's address.
        model, method: the model, once it is loaded, and the method of explanation; ``several`` for more than one. Both
            are names of the catalogues, never arbitrary input.
        options: names of the given options, if they exist.
        problem: the problem code of the answer, if any.
        cache: ``unchanged`` if the client already has the answer.
        status, received, sent: status of the answer; bytes of the bodies, None if unknown.
        timings: timings of each explanation or prediction in the request.
        started, began: start on the monotonic clock; start in nanoseconds since 1970.
        seconds: total duration.
        span, trace_id: span and id of the trace, if any.
        cost: cost of the work, see `seewhy.app.pipeline.costs`; 0 without a model.
        charged: the part of the cost that counts, because the work was accepted.
    """

    verb: str = ""
    route: str = ""
    request_id: str = ""
    client: str = ""
    address: str = ""
    model: str = ""
    method: str = ""
    options: tuple[str, ...] = ()
    problem: str = ""
    cache: str = ""
    status: int = 0
    received: int | None = None
    sent: int | None = None
    timings: list[Timings] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    began: int = field(default_factory=time.time_ns)
    seconds: float = 0.0
    span: Any = None
    trace_id: str = ""
    cost: int = 0
    charged: int = 0

    def timed(self) -> Timings:
        """Add timings to this request and return them."""
        self.timings.append(Timings())
        return self.timings[-1]

    @property
    def stages(self) -> dict[str, float]:
        """Total milliseconds of each stage over all timings."""
        total: dict[str, float] = {}
        for timings in self.timings:
            for name, milliseconds in timings.stages.items():
                total[name] = total.get(name, 0.0) + milliseconds
        return total


_record: ContextVar[Record | None] = ContextVar("record", default=None)

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of this thread's request."""


def begin(record: Record | None) -> None:
    """Set the record of this thread's request; None when it has none."""
    _record.set(record)


def current() -> Record:
    """Return the record of this thread's request; without a request, an unused record."""
    return _record.get() or Record()
