"""Pictures that a model was asked about: how far the work is, and what comes of it."""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.decode import PreparedPicture
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Job, Outcome, results
from seewhy.app.pipeline.plan import Plan
from seewhy.app.pipeline.timings import Timings
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import TargetError


@dataclass(frozen=True)
class Submission:
    """One picture, and what the model is to do with it.

    Attributes:
        plan: what to do.
        picture: as the model needs it.
        timings: of the picture's stages so far.
    """

    plan: Plan
    picture: PreparedPicture
    timings: Timings


@dataclass(frozen=True)
class TicketProgress:
    """How far a ticket is.

    Attributes:
        share: of the work that is done, 0 to 1; None before any of it began.
        map: (h, w) float32 of the first class, as far as it has grown; None where there is nothing to see.
    """

    share: float | None
    map: "np.ndarray[Any, np.dtype[np.float32]] | None"


class Ticket:
    """Work that a model was asked for, and that is not done yet.

    It is queued in parts that leave room for others. Where the most probable classes are to be explained, there are two
    rounds: which classes these are is known once the first one is explained.

    Args:
        engine: runs the model.
        submissions: pictures for one model, with one deadline.
        most_queued: jobs that may be queued at a time.
        watched: whether somebody wants to see how the first map grows.

    Raises:
        OverloadedError, TooCostlyError, ModelError, DeadlineError: the work is not accepted.
    """

    def __init__(
        self, engine: Engine, submissions: Sequence[Submission], most_queued: int, watched: bool = False
    ) -> None:
        self.submissions = tuple(submissions)
        self._engine = engine
        self._most_queued = most_queued
        self._outcomes: list[list[Outcome]] = [[] for _ in submissions]
        self._parts: deque[list[tuple[int, Job]]] = deque()
        self._running: list[tuple[int, Job]] = []
        self._is_first_round = True
        self._begin_round(submission.plan.asks for submission in submissions)
        self._progress = self._parts[0][0][1].progress
        self._progress.is_watched = watched
        self._submit()

    @property
    def plan(self) -> Plan:
        """The plan of the first picture; those of the others have the same model, deadline and computation."""
        return self.submissions[0].plan

    def wait(self, seconds: float) -> bool:
        """Wait for the model, for so many seconds at most; return whether `result` would not wait any more.

        Raises:
            Exception: what `result` raises.
        """
        running = wait([job.future for _, job in self._running], seconds).not_done
        deadline = self.plan.deadline
        if running and deadline.remaining and not deadline.is_disconnected():
            return False
        return not self._advance()

    def result(self) -> list[list[Outcome]]:
        """Wait for the work; return the outcomes for each picture, in the order of its classes.

        Raises:
            DeadlineError, ClientGoneError: nobody waits for it any more.
            FieldError: the class that is contrasted with cannot be.
            ExplainerError: the model or the method failed.
        """
        while self._advance():
            pass
        return self._outcomes

    def progress(self) -> TicketProgress:
        """Return how far the work is."""
        share = None
        finished = sum(map(len, self._outcomes))
        if finished or any(job.progress.passes[1] for _, job in self._running):
            underway = sum(job.progress.share for _, job in self._running)
            total = sum(submission.plan.count for submission in self.submissions)
            share = min(1.0, (finished + underway) / total)
        return TicketProgress(share, self._progress.map)

    def cancel(self) -> None:
        """Give up what is not done yet; it ends before its next pass."""
        self._parts.clear()
        for _, job in self._running:
            job.abandon()

    def _advance(self) -> bool:
        """Wait for what is queued, and queue what comes next; return whether there is any."""
        if not self._running:
            return False
        for (place, _), outcome in zip(self._running, self._results(), strict=True):
            self._outcomes[place].append(outcome)
        last_of_round = not self._parts
        for place in {place for place, _ in self._running} - {place for part in self._parts for place, _ in part}:
            submission = self.submissions[place]
            for interval in self._outcomes[place][-1].intervals(submission.plan.stage):
                submission.timings.add(interval)
        self._running = []
        if last_of_round and self._is_first_round:
            self._is_first_round = False
            pairs = zip(self.submissions, self._outcomes, strict=True)
            self._begin_round(submission.plan.others(outcomes[0]) for submission, outcomes in pairs)
        if self._parts:
            self._submit()
        return bool(self._running)

    def _begin_round(self, asks: Iterable[Sequence[Ask]]) -> None:
        """Make the jobs for what is asked of each picture."""
        jobs = []
        for place, (submission, questions) in enumerate(zip(self.submissions, asks, strict=True)):
            plan, image = submission.plan, submission.picture.image
            jobs += [(place, Job(plan.computation, image, ask, plan.deadline)) for ask in questions]
        self._parts.extend(jobs[start : start + self._most_queued] for start in range(0, len(jobs), self._most_queued))

    def _submit(self) -> None:
        part = self._parts.popleft()
        self._engine.submit(self.plan.model.name, [job for _, job in part])
        self._running = part

    def _results(self) -> list[Outcome]:
        """Wait for jobs; classes to explain are known by now, so what is at fault is what they are contrasted with."""
        jobs = [job for _, job in self._running]
        try:
            return results(jobs)
        except TargetError as error:
            if any(job.ask.against is not None for job in jobs):
                raise FieldError(str(error), field="against") from error
            raise
