"""The jobs of model threads: one picture each, with its computation and its deadline."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seewhy.app.errors import ClientGoneError, DeadlineError
from seewhy.app.pipeline.computation import Computation
from seewhy.app.pipeline.record import DisconnectCheck, Interval, Record, current, never
from seewhy.explainers.core.ask import Ask

T = TypeVar("T")

_GLANCE = 0.25
"""Seconds between two checks that the client still waits."""

_GONE = "The client closed its connection."
_LESS = (
    "Use fewer classes, samples or steps, a layer with fewer channels or a cheaper method (`seewhy methods` or GET "
    "/methods lists the costs), or try again later."
)
_TOO_LATE = f"The result was not ready within SEEWHY_DEADLINE. {_LESS}"


@dataclass(frozen=True)
class Deadline:
    """The time at which a request fails if it has not been answered.

    Attributes:
        at: time on the monotonic clock.
        is_disconnected: returns whether the client has left before.
    """

    at: float
    is_disconnected: DisconnectCheck = never

    @classmethod
    def after(cls, seconds: float, is_disconnected: DisconnectCheck = never) -> "Deadline":
        """Return the deadline in this many seconds."""
        return cls(time.monotonic() + seconds, is_disconnected)

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise `DeadlineError` if the deadline has passed, `ClientGoneError` if the client has left."""
        if self.is_disconnected():
            raise ClientGoneError(_GONE)
        if not self.remaining:
            raise DeadlineError(_TOO_LATE)

    def wait(self, future: "Future[T]") -> "T":
        """Return the result of a future; raise its error or that of `check`."""
        while True:
            try:
                return future.result(min(self.remaining, _GLANCE))
            except FutureTimeoutError:
                if future.done():  # the work itself raised this error
                    return future.result()
                self.check()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        queued, ran: seconds that the job waited, and that its batch ran.
    """

    result: Any
    queued: float
    ran: float
    started: float
    batch: Any = None

    def intervals(self, stage: str) -> Iterator[Interval]:
        """Yield the intervals in which the job waited and its batch ran, the latter as a stage of the request."""
        yield Interval("queue", self.started - self.queued, self.queued)
        yield Interval(stage, self.started, self.ran, self.batch)


@dataclass(eq=False)
class JobProgress:
    """The progress of a job.

    Attributes:
        passes: passes done and passes in all of its batch; (0, 0) before it starts.
        is_abandoned: whether no client waits for it any longer.
        is_watched: whether previews of its map are wanted.
        map: (h, w) float32, the latest preview if it is watched; None if there is none.
    """

    passes: tuple[int, int] = (0, 0)
    is_abandoned: bool = False
    is_watched: bool = False
    map: "NDArray[np.float32] | None" = None

    def look(self, preview: "NDArray[np.float32]") -> None:
        """Store a preview of the map, if it has anything new."""
        is_old = self.map is not None and np.array_equal(preview, self.map)
        if preview.any() and np.isfinite(preview).all() and not is_old:
            self.map = preview

    @property
    def share(self) -> float:
        """Share of the work done, 0 to 1."""
        done, total = self.passes
        return done / total if total else 0.0

    def __str__(self) -> str:
        return f"About {100 * self.share:.0f} % of the work was done." if self.passes[1] > 1 else ""


@dataclass(frozen=True, eq=False)
class Job:
    """One picture and the computation for it.

    Attributes:
        computation: jobs with equal computations can share a batch.
        ask: the question about the picture (N = 1).
    """

    computation: Computation
    image: Tensor
    ask: Ask
    deadline: Deadline
    future: "Future[Outcome]" = field(default_factory=Future)
    created: float = field(default_factory=time.monotonic)
    progress: JobProgress = field(default_factory=JobProgress)
    record: Record = field(default_factory=current)

    @property
    def is_wanted(self) -> bool:
        """Whether a client still waits for the job."""
        return self.deadline.remaining > 0 and not self.progress.is_abandoned and not self.deadline.is_disconnected()

    def result(self) -> Outcome:
        """Wait for the job.

        Raises:
            DeadlineError: the job did not finish in time; if it is still queued, it will not run.
            ClientGoneError: the client has left.
        """
        try:
            return self.deadline.wait(self.future)
        except (ClientGoneError, DeadlineError):
            self.abandon()
            raise late(self) from None

    def abandon(self) -> None:
        """Abandon the job: if it is queued, it will not run; if it runs in many passes, it ends before the next."""
        self.future.cancel()
        self.progress.is_abandoned = True


def late(job: Job) -> Exception:
    """Return the error of a job whose client no longer waits."""
    return (
        ClientGoneError(_GONE)
        if job.deadline.is_disconnected()
        else DeadlineError(f"{_TOO_LATE} {job.progress}".strip())
    )


def hopeless(job: Job, left: float) -> Exception:
    """Return the error of a job that ends early, because the rest of its work takes longer than its client waits.

    Args:
        left: seconds that the rest takes at the pace so far.
    """
    remaining = job.deadline.remaining
    return DeadlineError(
        f"The result would not be ready within SEEWHY_DEADLINE: the rest takes about {left:.0f} s, and "
        f"{remaining:.0f} s are left. {_LESS} {job.progress}"
    )
