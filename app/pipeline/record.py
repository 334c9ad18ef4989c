"""Records of requests. The code that does the work fills them in, and does not know metrics, logs or traces.

Those are made from the record when the request is over.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """Start of a stage on the monotonic clock and its duration in seconds; `batch` is the trace of its batch."""

    stage: str
    started: float
    seconds: float
    batch: Any = None


@dataclass
class Timings:
    """The intervals in which the stages of a request ran."""

    intervals: list[Interval] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.intervals.append(Interval(name, started, time.monotonic() - started))

    @property
    def stages(self) -> dict[str, float]:
        """Total milliseconds of each stage."""
        return _totals(self.intervals)

    @property
    def milliseconds(self) -> dict[str, float]:
        """Milliseconds of each stage, for JSON answers."""
        return {name: round(milliseconds, 3) for name, milliseconds in self.stages.items()}

    @property
    def header(self) -> str:
        """The value of a Server-Timing header."""
        return ", ".join(f"{name};dur={milliseconds:.1f}" for name, milliseconds in self.stages.items())


Charge = Callable[[int, int, bool], None]
"""Takes the charge so far, the cost now, and whether to count it or only to test the limit.

It raises `TooCostlyError` if that is too much."""


def uncharged(before: int, now: int, counts: bool) -> None:
    """A `Charge` without limits."""


DisconnectCheck = Callable[[], bool]
"""Returns whether a client has closed its connection."""


def never() -> bool:
    """Return False: the client stays, or its connection is unknown."""
    return False


Watch = Callable[[Any], None]
"""Takes the `Ticket` of work that a request is about to wait for."""


def unwatched(ticket: Any) -> None:
    """A `Watch` that shows nothing."""


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
        charge: charges the client.
        is_disconnected: returns whether the client has left.
        watch: shows the progress of the work.
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
    charge: Charge = uncharged
    is_disconnected: DisconnectCheck = never
    watch: Watch = unwatched

    def timed(self) -> Timings:
        """Add timings to this request and return them."""
        self.timings.append(Timings())
        return self.timings[-1]

    @property
    def stages(self) -> dict[str, float]:
        """Total milliseconds of each stage over all timings."""
        return _totals(interval for timings in self.timings for interval in timings.intervals)


def _totals(intervals: Iterable[Interval]) -> dict[str, float]:
    total: dict[str, float] = {}
    for interval in intervals:
        total[interval.stage] = total.get(interval.stage, 0.0) + interval.seconds * 1000
    return total


_record: ContextVar[Record | None] = ContextVar("record", default=None)


def begin(record: Record | None) -> None:
    """Set the record of this thread's request; None when it has none."""
    _record.set(record)


def current() -> Record:
    """Return the record of this thread's request; without a request, an unused record."""
    return _record.get() or Record()
