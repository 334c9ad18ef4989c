"""The jobs of model threads: one picture each, what to do with it, and how long somebody waits."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seewhy.app.errors import ClientGoneError, DeadlineError
from seewhy.app.pipeline.computation import Computation
from seewhy.app.pipeline.disconnect import DisconnectCheck, never
from seewhy.app.pipeline.record import Record, current
from seewhy.app.pipeline.timings import Interval
from seewhy.explainers.core.ask import Ask

T = TypeVar("T")

_GLANCE = 0.25
"""Seconds after which one who waits looks again whether its own client still does."""

_GONE = "The client closed its connection."
_TOO_LATE = (
    "The answer was not ready in time. Ask for fewer classes, samples or steps, for a layer of fewer channels or for a "
    "cheaper method (`seewhy methods` or GET /methods tells the costs), or try again later; SEEWHY_DEADLINE is the "
    "limit."
)


@dataclass(frozen=True)
class Deadline:
    """The moment after which nobody waits for the answer.

    Attributes:
        at: on the monotonic clock.
        is_disconnected: whether nobody waits even before.
    """

    at: float
    is_disconnected: DisconnectCheck = never

    @classmethod
    def after(cls, seconds: float, is_disconnected: DisconnectCheck = never) -> "Deadline":
        """Return the deadline that many seconds from now."""
        return cls(time.monotonic() + seconds, is_disconnected)

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise `DeadlineError` if the moment has passed, `ClientGoneError` if nobody waits."""
        if self.is_disconnected():
            raise ClientGoneError(_GONE)
        if not self.remaining:
            raise DeadlineError(_TOO_LATE)

    def wait(self, future: "Future[T]") -> "T":
        """Return the result of a future; raise what it raises, or what `check` raises."""
        while True:
            try:
                return future.result(min(self.remaining, _GLANCE))
            except FutureTimeoutError:
                if future.done():  # the very error that the work raised
                    return future.result()
                self.check()


@dataclass(frozen=True)
class Outcome:
    """What comes of one job.

    Attributes:
        result: of its computation.
        queued, ran: seconds that the job waited, and that its batch took.
        started: when that began, on the monotonic clock.
        batch: the trace of the batch, if there is one.
    """

    result: Any
    queued: float
    ran: float
    started: float
    batch: Any = None

    def intervals(self, stage: str) -> Iterator[Interval]:
        """Yield when the job waited, and when its batch ran, which is a stage of the request."""
        yield Interval("queue", self.started - self.queued, self.queued)
        yield Interval(stage, self.started, self.ran, self.batch)


@dataclass(eq=False)
class Progress:
    """How far a job is.

    Attributes:
        passes: how many are done of the work of its batch, and of how many; 0 of 0 before it starts.
        is_abandoned: whether nobody waits for it any more.
        is_watched: whether somebody wants to see how its map grows.
        map: (h, w) float32, as far as it has grown, where it is watched; None where there is nothing to see.
    """

    passes: tuple[int, int] = (0, 0)
    is_abandoned: bool = False
    is_watched: bool = False
    map: "NDArray[np.float32] | None" = None

    def look(self, grown: "NDArray[np.float32]") -> None:
        """Keep a map that has grown, if there is anything new to see."""
        is_old = self.map is not None and np.array_equal(grown, self.map)
        if grown.any() and np.isfinite(grown).all() and not is_old:
            self.map = grown

    @property
    def share(self) -> float:
        """How much of the work is done, 0 to 1."""
        done, total = self.passes
        return done / total if total else 0.0

    def __str__(self) -> str:
        return f"About {100 * self.share:.0f} % of the work was done." if self.passes[1] > 1 else ""


@dataclass(frozen=True, eq=False)
class Job:
    """One picture, and what a model is to do with it.

    Attributes:
        computation: jobs with equal computations can share a batch.
        image: (C, H, W) float32, normalised.
        ask: what is asked about the picture (N = 1).
        deadline: a job that is still waiting then is dropped, and one that runs in many passes ends.
        record: of the request that asks for it.
    """

    computation: Computation
    image: Tensor
    ask: Ask
    deadline: Deadline
    future: "Future[Outcome]" = field(default_factory=Future)
    created: float = field(default_factory=time.monotonic)
    progress: Progress = field(default_factory=Progress)
    record: Record = field(default_factory=current)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return self.deadline.remaining > 0 and not self.progress.is_abandoned and not self.deadline.is_disconnected()

    def result(self) -> Outcome:
        """Wait for the job.

        Raises:
            DeadlineError: it was not done in time; if it still waits, it will not run.
            ClientGoneError: nobody waits for it any more.
        """
        try:
            return self.deadline.wait(self.future)
        except (ClientGoneError, DeadlineError):
            self.abandon()
            raise late(self) from None

    def abandon(self) -> None:
        """Give it up: if it waits, it will not run; if it runs in many passes, it ends before the next."""
        self.future.cancel()
        self.progress.is_abandoned = True


def results(jobs: Sequence[Job]) -> list[Outcome]:
    """Wait for jobs.

    Raises:
        DeadlineError, ClientGoneError: as `Job.result`.
        ExplainerError: the model or the method failed.
    """
    try:
        return [job.result() for job in jobs]
    except BaseException:
        for job in jobs:  # nobody waits for the others any more
            job.abandon()
        raise


def late(job: Job) -> Exception:
    """Return why nobody waits for a job any more."""
    return (
        ClientGoneError(_GONE)
        if job.deadline.is_disconnected()
        else DeadlineError(f"{_TOO_LATE} {job.progress}".strip())
    )
