"""Tickets for submitted work: progress and results."""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seewhy.app.errors import FieldError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import OUTPUTS
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Job, Outcome
from seewhy.app.pipeline.plan import Plan
from seewhy.app.pipeline.record import Timings
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import TargetError
from seewhy.explainers.view import View


@dataclass(frozen=True)
class Submission:
    """One picture and its plan."""

    plan: Plan
    picture: View
    timings: Timings


class Ticket:
    """Submitted work of a model.

    It is queued in parts that leave room for others. If the most probable classes are explained, there are two rounds:
    the classes are known once the first one has been explained.

    Args:
        submissions: pictures for one model, with one deadline.
        most_queued: maximum number of jobs queued at once.
        watched: whether previews of the first map are wanted.

    Raises:
        OverloadedError, TooCostlyError, ModelError, DeadlineError: the work is not accepted.
    """

    def __init__(
        self, engine: Engine, submissions: Sequence[Submission], most_queued: int, watched: bool = False
    ) -> None:
        self.submissions = tuple(submissions)
        self._engine = engine
        self._most_queued = most_queued
        self._account = account()
        self._outputs: dict[int, Tensor] = {}
        """The model's outputs in the outcomes, by address: questions about one picture may share them."""
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
        """The plan of the first picture; the others have the same model, deadline and computation."""
        return self.submissions[0].plan

    def wait(self, seconds: float) -> bool:
        """Wait for the model, at most `seconds`; return whether `result` would return at once. Errors as there."""
        running = wait([job.future for _, job in self._running], seconds).not_done
        deadline = self.plan.deadline
        if running and deadline.remaining and not deadline.is_disconnected():
            return False
        return not self._advance()

    def result(self) -> list[list[Outcome]]:
        """Wait for the work; return the outcomes of each picture, in the order of its classes.

        Raises:
            DeadlineError, ClientGoneError: no client waits any longer.
            FieldError: the class to contrast with is invalid.
            ExplainerError: the model or the method failed.
            OutOfMemoryError, AnswerTooLargeError: there is no memory for what the model returned.
        """
        while self._advance():
            pass
        return self._outcomes

    def release(self, remainder: int) -> None:
        """Drop the outcomes, and give back the memory of the model's outputs, except a remainder of bytes."""
        size = sum(outputs.nbytes for outputs in self._outputs.values())
        self._outcomes, self._outputs = [[] for _ in self.submissions], {}
        self._account.give(size - remainder)

    @property
    def share(self) -> float | None:
        """Share of the work done, 0 to 1; None before it starts."""
        finished = sum(map(len, self._outcomes))
        if not (finished or any(job.progress.passes[1] for _, job in self._running)):
            return None
        underway = sum(job.progress.share for _, job in self._running)
        return min(1.0, (finished + underway) / sum(submission.plan.count for submission in self.submissions))

    @property
    def preview(self) -> NDArray[np.float32] | None:
        """The latest map (h, w) of the first class; None if there is none."""
        return self._progress.map

    def cancel(self) -> None:
        """Cancel the remaining work; it ends before its next pass."""
        self._parts.clear()
        for _, job in self._running:
            job.abandon()

    def _advance(self) -> bool:
        """Wait for the queued jobs, and queue the next ones; return whether there are any."""
        if not self._running:
            return False
        for (place, job), outcome in zip(self._running, self._results(), strict=True):
            self._count(job.computation.outputs(outcome.result))
            self._outcomes[place].append(outcome)
        last_of_round = not self._parts
        for place in {place for place, _ in self._running} - {place for part in self._parts for place, _ in part}:
            submission = self.submissions[place]
            submission.timings.intervals.extend(self._outcomes[place][-1].intervals(submission.plan.stage))
        self._running = []
        if last_of_round and self._is_first_round:
            self._is_first_round = False
            pairs = zip(self.submissions, self._outcomes, strict=True)
            self._begin_round(submission.plan.further_asks(outcomes[0]) for submission, outcomes in pairs)
        if self._parts:
            self._submit()
        return bool(self._running)

    def _count(self, outputs: Iterable[Tensor]) -> None:
        """Take the memory of a model's outputs, unless they are counted already."""
        new = {part.data_ptr(): part for part in outputs if part.data_ptr() not in self._outputs}
        self._account.take(sum(part.nbytes for part in new.values()), OUTPUTS)
        self._outputs |= new

    def _begin_round(self, asks: Iterable[Sequence[Ask]]) -> None:
        """Create the jobs for the questions about each picture."""
        jobs = []
        for place, (submission, questions) in enumerate(zip(self.submissions, asks, strict=True)):
            plan, image = submission.plan, submission.picture.image
            geometry = submission.picture.geometry
            jobs += [(place, Job(plan.computation, image, ask.placed(geometry), plan.deadline)) for ask in questions]
        self._parts.extend(jobs[start : start + self._most_queued] for start in range(0, len(jobs), self._most_queued))

    def _submit(self) -> None:
        part = self._parts.popleft()
        self._engine.submit(self.plan.model.name, [job for _, job in part])
        self._running = part

    def _results(self) -> list[Outcome]:
        """Wait for jobs; the explained classes are valid, so a bad class is the one to contrast with."""
        jobs = [job for _, job in self._running]
        try:
            return [job.result() for job in jobs]
        except BaseException as error:
            for job in jobs:  # the others are not needed any longer
                job.abandon()
            if isinstance(error, TargetError) and any(job.ask.against is not None for job in jobs):
                raise FieldError(str(error), field="against") from error
            raise
