"""What is known about a request. The code that does the work fills in its record, and knows no metrics, logs or traces.

These are made from the record when the request is over.
"""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from seewhy.app.pipeline.timings import Timings


@dataclass(eq=False)
class Record:
    """One request.

    Attributes:
        verb, route: the HTTP method; the template of the path, or ``other``.
        request_id, client, address: its identifier, the name of the client's key, and where it comes from.
        model, method: which model was asked, once it is loaded, and by which method of explanation; ``several`` for
            more than one. Both are names of the catalogues, never what a client made up.
        options: names of the options given, those that exist.
        problem: the code of the problem that it was answered with.
        cache: ``unchanged`` where the client has the answer already.
        status, received, sent: of the answer; bytes of the body each way, None where nobody counted.
        timings: of each explanation or prediction within the request.
        started, began: on the monotonic clock; nanoseconds since 1970.
        seconds: how long it took in all.
        span, trace_id: of the trace, if there is one.
        cost: what the work is worth; see `seewhy.app.pipeline.costs`. 0 where no model was asked.
        charged: what of it counts, because the work was accepted.
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
        """Return new timings that count as this request's."""
        self.timings.append(Timings())
        return self.timings[-1]

    @property
    def stages(self) -> dict[str, float]:
        """Milliseconds of each stage, all timings together."""
        total: dict[str, float] = {}
        for timings in self.timings:
            for name, milliseconds in timings.stages.items():
                total[name] = total.get(name, 0.0) + milliseconds
        return total


_record: ContextVar[Record | None] = ContextVar("record", default=None)

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that this thread answers."""


def begin(record: Record | None) -> None:
    """Make a record that of the request which this thread answers from now on; None when it answers none."""
    _record.set(record)


def current() -> Record:
    """Return the record of the request that this thread answers; without one, a record that nobody reads."""
    return _record.get() or Record()
