"""What is known about a request. The code that does the work fills in its record, and knows no metrics, logs or traces.

These are made from the record when the request is over. An `Observer` hears what happens to models.
"""

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seewhy.app.pipeline.timings import Timings

if TYPE_CHECKING:
    from seewhy.app.pipeline.jobs import Job
    from seewhy.app.pipeline.scheduler import Tier
    from seewhy.explainers.results.explanation import Explanation
    from seewhy.models import LoadedModel


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


class Observer:
    """Is told what happens to requests and models, in the threads where it happens. This one listens to nothing."""

    def begun(self, record: Record, headers: Mapping[str, str]) -> None:
        """A request has come, with these headers, their names in lower case."""

    def answered(self, record: Record) -> None:
        """A request is over, and its answer sent."""

    def loaded(self, model: "LoadedModel", seconds: float) -> None:
        """A model was loaded, in so many seconds."""

    def not_loaded(self, name: str, error: BaseException) -> None:
        """A model could not be loaded."""

    def missing(self, name: str, error: Exception) -> None:
        """A model was asked for whose weights are not on this machine."""

    def unloaded(self, model: "LoadedModel") -> None:
        """A model has made room for another one."""

    def waiting(self, name: str, jobs: int) -> None:
        """So many jobs wait for a model."""

    def starting(self, name: str, jobs: "Sequence[Job]") -> None:
        """Jobs start to run as one batch."""

    def finished(self, name: str, jobs: "Sequence[Job]", started: float, seconds: float) -> Any:
        """A batch has run, or failed. Return its trace, for the requests whose jobs were in it."""

    def underway(self, name: str, batches: "Mapping[Tier, int]") -> None:
        """So many batches of a model are under way, by tier."""

    def yielded(self, name: str, tier: "Tier") -> None:
        """A batch of a tier lets others run before its next pass."""

    def rests(self, name: str, model: "LoadedModel") -> None:
        """A model has run all that waited."""

    def memory(self, used: int, size: int) -> None:
        """Requests hold so many bytes of memory, of those that they may take together."""

    def explained(self, model: "LoadedModel", found: "Sequence[Explanation]") -> None:
        """A request has its explanations."""

    def close(self) -> None:
        """Nothing more happens in this process."""


UNOBSERVED = Observer()
