"""A batch of jobs on a model: its passes, retries after errors, and previews of its maps."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seewhy.app.errors import ClientGoneError, DeadlineError, OutOfMemoryError, lacks_memory
from seewhy.app.pipeline.computation import Computation
from seewhy.app.pipeline.jobs import Job, Outcome, hopeless, late
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.scheduler import CLEARLY, MOST_PASSES, TIERS, Pace, Tier, tier_of, time_left
from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import ExplainerError, LayerError, TargetError
from seewhy.explainers.execution.chunks import one_by_one
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.models import LoadedModel, ModelError

_log = logging.getLogger(__name__)

_FRAME = 0.5
"""Seconds between two previews of a map."""

_NO_MEMORY = (
    "There is not enough memory for this request, even with one picture per pass. Use a layer with fewer channels or "
    "a cheaper method, or try again when the server is less busy."
)


@dataclass(frozen=True, eq=False)
class QueuedJob:
    """A job in the queue.

    Attributes:
        passes: number of its passes; None if unknown.
    """

    job: Job
    passes: Passes | None

    @property
    def tier(self) -> Tier:
        """The tier of the job's passes."""
        return tier_of(None if self.passes is None else self.passes.total)


@dataclass(eq=False)
class RunningBatch:
    """A batch that has started; it shares the model with others by turns.

    Attributes:
        first: the job that waited longest.
        most: maximum number of jobs.
        fills: whether it may wait a moment for more jobs.
        seconds: total time of its turns.
    """

    first: QueuedJob
    most: int
    tier: Tier
    fills: bool
    jobs: list[Job] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0
    since: float = 0.0
    thread: threading.Thread | None = None

    @property
    def computation(self) -> Computation:
        """The computation of all its jobs."""
        return self.first.job.computation

    @property
    def is_wanted(self) -> bool:
        """Whether any client still waits for one of its jobs."""
        return any(job.is_wanted for job in self.jobs) or not self.jobs

    @property
    def remaining(self) -> Passes:
        """Approximate number of remaining passes; zero if unknown."""
        passes = self.first.passes or Passes()
        left = sum(1 - job.progress.share for job in self.jobs)
        return Passes(round(passes.forwards * left), round(passes.backwards * left))

    def count(self, seconds: float) -> None:
        """Count a turn; a batch with more turns than its tier has passes moves to the next tier."""
        self.turns += 1
        self.seconds += seconds
        if self.turns > MOST_PASSES[self.tier]:
            self.tier = TIERS[TIERS.index(self.tier) + 1]


class BatchRunner:
    """Runs batches of one model, in whichever thread has the turn."""

    def __init__(self, name: str, observer: Observer, pace: Pace, clock: Callable[[], float]) -> None:
        self._name = name
        self._observer = observer
        self._pace = pace
        self._clock = clock

    def measure(self, model: LoadedModel, computation: Computation | None, most: int) -> None:
        """Measure the pace of the model before its first request; the first run only warms it up."""
        passes = None if computation is None else computation.passes(model)
        if computation is None or passes is None:
            return
        images = torch.zeros(most, *model.spec.image_shape, device=model.device)
        try:
            for learns in (False, True):
                started, busy = self._clock(), time.thread_time()
                computation.run(model, images, DEFAULT_ASK, SILENT)
                if learns:
                    self._pace.learn(passes * most, self._clock() - started, time.thread_time() - busy)
        except Exception as error:  # the model fails on an empty picture; requests measure it too
            _log.info("The pace of the model %s is not measured yet: %s", self._name, error)

    def run(self, model: LoadedModel, batch: RunningBatch, offer_turn: Callable[[], None]) -> None:
        """Answer the jobs of a batch."""
        # A job whose client has left is dropped here, before it costs anything.
        jobs = [job for job in batch.jobs if job.is_wanted and job.future.set_running_or_notify_cancel()]
        if jobs:
            self._answer(model, batch, jobs, offer_turn)

    def _answer(
        self,
        model: LoadedModel,
        batch: RunningBatch,
        jobs: list[Job],
        offer_turn: Callable[[], None],
        frugal: bool = False,
    ) -> None:
        """Run one pass for all jobs; if it fails, run each separately, so that a bad one fails alone.

        If memory runs out in a computation of many passes, it runs again with one picture in each (`frugal`).
        """
        started, busy, before = time.monotonic(), time.thread_time(), batch.seconds
        self._observer.batch_started(self._name, jobs)
        try:
            with one_by_one() if frugal else nullcontext():
                results = _results(model, jobs, batch, offer_turn)
        except BaseException as error:  # even a model that calls sys.exit must not end this thread
            self._observer.batch_finished(self._name, jobs, started, time.monotonic() - started, succeeded=False)
            lacks = lacks_memory(error) or isinstance(error, torch.OutOfMemoryError)  # whose message may differ
            if lacks:
                _release(error)
            if lacks and len(jobs) == 1 and not frugal:
                self._answer(model, batch, jobs, offer_turn, frugal=True)
            elif groups := _parts(jobs, error):
                for group in groups:
                    self._answer(model, batch, group, offer_turn)
            else:
                _fail(jobs, OutOfMemoryError(_NO_MEMORY) if lacks and len(jobs) == 1 else error)
            return
        seconds = time.monotonic() - started
        part = batch.computation.part
        if batch.first.passes is not None and (part is not None or batch.computation.runs_whole):
            turn = batch.seconds - before + self._clock() - batch.since
            self._pace.learn(batch.first.passes * len(jobs), turn, time.thread_time() - busy, part)
        trace = self._observer.batch_finished(self._name, jobs, started, seconds, succeeded=True)
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(Outcome(result, started - job.created, seconds, started, trace))


def _parts(jobs: list[Job], error: BaseException) -> list[list[Job]]:
    """Return the jobs to run again after an error: those without a contrast together, if a contrast may be at fault.

    Jobs have equal computations: a bad layer is bad for all of them. If no client waits, nothing runs again.
    """
    if len(jobs) == 1 or isinstance(error, LayerError | DeadlineError | ClientGoneError):
        return []
    plain = [job for job in jobs if job.ask.against is None]
    shared = plain if isinstance(error, TargetError) and len(plain) < len(jobs) else []
    return [part for part in (shared, *([job] for job in jobs if job not in shared)) if part]


def _fail(jobs: Sequence[Job], error: BaseException) -> None:
    for job in jobs:
        is_late = isinstance(error, DeadlineError | ClientGoneError) and not job.is_wanted
        reason = late(job) if is_late else error
        job.future.set_exception(without_frames(reason, ExplainerError))


def _release(error: BaseException) -> None:
    """Free the tensors in the frames of an error, and PyTorch's cache of GPU memory."""
    _log.warning("Out of memory: %s", error)
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def without_frames(error: BaseException, root: type[Exception]) -> Exception:
    """Return an error for a future, without the frames that keep tensors and models in memory.

    An error that is not an `Exception` (such as that of sys.exit) must not end the waiting thread: it becomes `root`.
    """
    if not isinstance(error, ExplainerError | ModelError | DeadlineError | ClientGoneError | OutOfMemoryError):
        _log.exception("A model failed", exc_info=error)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error if isinstance(error, Exception) else root(f"The model raised {type(error).__name__}.")


def _results(model: LoadedModel, jobs: list[Job], batch: RunningBatch, offer_turn: Callable[[], None]) -> Sequence[Any]:
    """Run all jobs as one batch, offering the turn between its passes; end it early once it is clearly too slow."""
    images = _stacked([job.image for job in jobs], model.device)
    turns, seconds = batch.turns, batch.seconds

    def cancel() -> None:
        if not any(job.is_wanted for job in jobs):
            raise late(jobs[0])

    def report(done: int, total: int) -> None:
        for job in jobs:
            if done * job.progress.passes[1] >= job.progress.passes[0] * total:  # a rerun starts from zero
                job.progress.passes = done, total
        offer_turn()
        cancel()  # again, because the turn may have taken long to come back
        left = time_left(done, total, batch.turns - turns, batch.seconds - seconds)
        if left > CLEARLY * max(job.deadline.remaining for job in jobs):
            raise hopeless(jobs[0], left)

    ask = Ask.stacked([job.ask for job in jobs])
    return jobs[0].computation.run(model, images, ask, Progress(report, _show(jobs), cancel))


def _show(jobs: Sequence[Job]) -> Callable[[Callable[[], Tensor]], None]:
    """Return a function that shows previews of the maps to the jobs that are watched."""
    last = time.monotonic()

    def show(maps: Callable[[], Tensor]) -> None:
        nonlocal last
        watched = [(row, job.progress) for row, job in enumerate(jobs) if job.progress.is_watched and job.is_wanted]
        if not watched or time.monotonic() - last < _FRAME:
            return
        try:
            previews = maps().float()
            for row, progress in watched:
                progress.look(previews[row].cpu().numpy().copy())
        except Exception:  # a failed preview must not fail the answer
            _log.exception("A preview could not be made")
            for _, progress in watched:
                progress.is_watched = False
        last = time.monotonic()

    return show


def _stacked(images: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return images (C, H, W) as a batch on a device; one picture that several jobs ask about is there once."""
    if all(image is images[0] for image in images):
        return _moved(images[0][None], device).expand(len(images), -1, -1, -1)
    return _moved(torch.stack(list(images)), device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; copies to a GPU are asynchronous, through pinned memory."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
