"""The threads of one model. Exactly one runs the model at any moment: the one that has the turn.

Short work runs in the thread that loaded the model. A longer batch gets its own thread, because a thread cannot do
anything else between two passes of a batch: it offers the turn whenever the method reports progress, and waits until
the turn comes back. Hook sessions, gradient mode and context variables belong to a thread, so batches do not interfere.
"""

import gc
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil

from seewhy.app.errors import OverloadedError
from seewhy.app.pipeline.batches import BatchRunner, QueuedJob, RunningBatch, without_frames
from seewhy.app.pipeline.computation import Computation
from seewhy.app.pipeline.jobs import Job
from seewhy.app.pipeline.observer import UNOBSERVED, Observer
from seewhy.app.pipeline.scheduler import CLEARLY, MOST_UNDERWAY, TIERS, Pace, Shares, Tier
from seewhy.explainers import process_wide
from seewhy.explainers.core.costs import Passes
from seewhy.models import LoadedModel, ModelError

_log = logging.getLogger(__name__)

MOST_BATCHES = 8
"""Maximum number of running batches over all tiers: work that is longer than announced changes its tier."""

MOST_RETRY = 600
"""Maximum seconds in Retry-After."""

_NO_THREAD = "The server cannot start another thread; try again in a few seconds."


@dataclass(frozen=True)
class EngineOptions:
    """Options for loading and running models.

    Attributes:
        load: loads a model; runs in the model's own thread.
        max_models: number of models to keep; the least recently used idle one is dropped first.
        queue_size: maximum number of jobs waiting for one model.
        max_wait: maximum seconds that the oldest waiting job waits for the batch to fill.
        warm_up: computation that a model runs twice once it is loaded, the second time to measure its pace.
    """

    load: Callable[[str], LoadedModel]
    max_models: int
    max_batch: int
    queue_size: int
    max_wait: float = 0.0
    observer: Observer = UNOBSERVED
    warm_up: Computation | None = None
    clock: Callable[[], float] = time.monotonic


class ModelThreads:
    """The threads of one model; the first one loads it.

    Args:
        earlier: error of the last attempt to load it.

    Raises:
        OverloadedError: the system has no free thread.
    """

    def __init__(self, name: str, options: EngineOptions, earlier: Exception | None = None) -> None:
        # A failure is stored as a result: once raised, it would keep the frames of waiting requests and their bodies.
        self.loaded: Future[LoadedModel | Exception] = Future()
        self.pace = Pace()
        self._name = name
        self._options = options
        self._observer = options.observer
        self._clock = options.clock
        self._earlier = earlier
        self._runner = BatchRunner(name, options.observer, self.pace, options.clock)
        self._waiting: deque[QueuedJob] = deque()
        self._batches: list[RunningBatch] = []  # ordered by their last turns, the oldest first
        self._turn: RunningBatch | None = None
        self._first_batch: RunningBatch | None = None  # the batch of the first thread
        self._shares = Shares()
        self._look: list[str] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._worked = time.monotonic()
        self._thread = threading.Thread(target=_serve_and_drop, args=([self],), name=f"model-{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left
            raise OverloadedError(_NO_THREAD) from error

    def submit(self, jobs: Sequence[Job]) -> bool:
        """Queue all jobs or none; return False if this model has been stopped to make room.

        Raises:
            OverloadedError: the queue is full, or the jobs ahead take longer than these have.
        """
        model = self.loaded.result()
        if isinstance(model, Exception):
            return False
        sizes = {job.computation: job.computation.passes(model) for job in jobs}
        queued = [QueuedJob(job, sizes[job.computation]) for job in jobs]
        with self._changed:
            if self._stopped:
                return False
            self._drop_cancelled()
            # All or none: of a request that is queued in part, the other part would have run for nothing.
            if len(self._waiting) + len(jobs) > self._options.queue_size:
                raise OverloadedError("The queue of this model is full; try again in a few seconds.", self._retry(0.0))
            self._require_time(queued)
            self._waiting.extend(queued)
            if self._turn is None:  # an idle model starts at once: waiting for company would only cost time
                self._pass_on(fills=False)
            self._observer.queue_changed(self._name, len(self._waiting))
            self._changed.notify_all()  # last: a thread that wakes earlier only waits for this lock
            return True

    @property
    def failed(self) -> bool:
        """Whether the model could not be loaded."""
        return self.loaded.done() and self.failure is not None

    @property
    def failure(self) -> Exception | None:
        """Why the model could not be loaded; while it loads, in the last attempt."""
        outcome = self.loaded.result() if self.loaded.done() else self._earlier
        return outcome if isinstance(outcome, Exception) else None

    @property
    def lost(self) -> bool:
        """Whether a thread has ended that should be running: it was not stopped, or it has an unfinished batch."""
        with self._changed:
            threads = [batch.thread for batch in self._batches] + (
                [] if self._stopped or self.failed else [self._thread]
            )
            return not all(thread is None or thread.is_alive() for thread in threads)

    @property
    def idle(self) -> bool:
        """Whether no job waits or runs."""
        with self._changed:
            return self.loaded.done() and not self._waiting and not self._batches

    def look(self) -> list[str]:
        """Return what differs from PyTorch's state at the start: a new list, unless the model is busy.

        A busy model may have changed the state temporarily; it is checked whenever the turn passes to another batch.
        """
        with self._changed:
            if self.loaded.done() and self._turn is None:
                self._take_look()
            return self._look

    def _take_look(self) -> None:
        """Check, unless another thread is changing PyTorch's state temporarily."""
        changes = process_wide.changes()
        if changes is not None:
            self._look = changes

    @property
    def worked(self) -> float:
        """When the model last loaded or ran, by `time.monotonic`: now, while it does or jobs wait."""
        return self._worked if self.idle else time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the running batch began its current pass; 0 while there is none."""
        with self._changed:
            return 0.0 if self._turn is None else self._clock() - self._turn.since

    def stop(self) -> None:
        """End the threads once the queue is empty; this frees the model."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, at most `timeout` seconds."""
        self._thread.join(timeout)

    def _serve(self) -> None:
        """Load the model and run short work; the first thread is also the last to end."""
        started = time.monotonic()
        try:
            model = self._options.load(self._name)
            self._runner.measure(model, self._options.warm_up, self._options.max_batch)
        except BaseException as error:
            self._worked = time.monotonic()
            self._observer.model_failed(self._name, error)
            self.loaded.set_result(without_frames(error, ModelError))
            return
        self._worked = time.monotonic()
        self._observer.model_loaded(model, self._worked - started)
        self.loaded.set_result(model)
        while (batch := self._await_batch()) is not None:
            self._run_batch(model, batch)
            del batch
        self._observer.model_dropped(model)

    def _await_batch(self) -> RunningBatch | None:
        """Wait for a batch for the first thread; None means that no more will come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._first_batch is not None or (self._stopped and not self._waiting and not self._batches)
            )
            return self._first_batch

    def _run_batch(self, model: LoadedModel, batch: RunningBatch) -> None:
        """Run a batch, which has the turn, to its end; pass the turn on in any case."""
        try:
            self._fill(batch)
            self._runner.run(model, batch, lambda: self._offer_turn(batch))
        finally:
            self._end(model, batch)

    def _fill(self, batch: RunningBatch) -> None:
        """Add waiting jobs with equal work to a batch before it starts."""

        def is_full() -> bool:
            return 1 + sum(queued.job.computation == batch.computation for queued in self._waiting) >= batch.most

        with self._changed:
            if batch.fills:
                left = batch.first.job.created + self._options.max_wait - time.monotonic()
                self._changed.wait_for(lambda: self._stopped or is_full(), max(0.0, left))
            batch.jobs = [batch.first.job]
            rest: deque[QueuedJob] = deque()
            for queued in self._waiting:
                if len(batch.jobs) < batch.most and queued.job.computation == batch.computation:
                    batch.jobs.append(queued.job)
                else:
                    rest.append(queued)
            self._waiting = rest
            self._observer.queue_changed(self._name, len(rest))
            batch.since = self._clock()

    def _end(self, model: LoadedModel, batch: RunningBatch) -> None:
        """Pass the turn on from a finished batch."""
        with self._changed:
            is_last = len(self._batches) == 1 and not self._waiting
        if is_last:  # outside the lock: listeners may take long, and requests must be able to queue meanwhile
            self._observer.model_idle(self._name, model)
        with self._changed:
            self._charge(batch)
            self._worked = time.monotonic()
            self._batches.remove(batch)
            if self._first_batch is batch:
                self._first_batch = None
            self._turn = None
            self._take_look()
            self._pass_on(fills=True)
            self._tell_underway()
            self._changed.notify_all()

    def _offer_turn(self, batch: RunningBatch) -> None:
        """Let other batches run between two passes of this one if they are due, and wait for the turn to come back."""
        with self._changed:
            self._charge(batch)
            # To the end, so that batches of one tier take turns: `_pass_on` resumes the first of each.
            self._batches.remove(batch)
            self._batches.append(batch)
            self._turn = None
            self._pass_on(fills=True)
            if self._turn is not batch:
                self._take_look()
                self._observer.batch_paused(self._name, batch.tier)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn is batch)
            batch.since = self._clock()

    def _charge(self, batch: RunningBatch) -> None:
        """Count the time of the turn that ends."""
        seconds = max(0.0, self._clock() - batch.since)
        self._shares.charge(batch.tier, seconds)
        tier = batch.tier
        batch.count(seconds)  # which may move it to the next tier: its passes were more than it announced
        if tier != batch.tier:
            self._tell_underway()

    def _pass_on(self, fills: bool) -> None:
        """Give the free turn to the next batch, a running or a new one.

        Args:
            fills: whether a new batch may wait a moment to fill.
        """
        self._drop_cancelled()
        unwanted = next((batch for batch in self._batches if not batch.is_wanted), None)
        if unwanted is not None:  # it ends at once and frees its memory
            self._turn = unwanted
            return
        resumable: dict[Tier, RunningBatch] = {}
        for batch in self._batches:
            resumable.setdefault(batch.tier, batch)
        startable: dict[Tier, QueuedJob] = {}
        underway = Counter(batch.tier for batch in self._batches)
        for queued in self._waiting:
            if underway[queued.tier] < MOST_UNDERWAY[queued.tier] and len(self._batches) < MOST_BATCHES:
                startable.setdefault(queued.tier, queued)
        tiers = resumable.keys() | startable.keys()
        if not tiers:
            return
        tier = self._shares.choose(tiers)
        if tier not in startable:
            self._turn = resumable[tier]
        elif not self._start(startable[tier], fills):
            self._pass_on(fills)  # that job has failed for want of a thread; the next one may need none

    def _start(self, first: QueuedJob, fills: bool) -> bool:
        """Start a batch: a short one in the first thread if that is free, any other in its own thread.

        Returns:
            Whether it has started. If there is no thread for it, its job has failed and the turn is free.
        """
        model = self.loaded.result()
        if isinstance(model, Exception):
            raise TypeError("A model that could not be loaded has no jobs.")
        most = min(self._options.max_batch, first.job.computation.most(model) or self._options.max_batch)
        batch = RunningBatch(first, most, first.tier, fills, since=self._clock())
        self._waiting.remove(first)
        if first.tier == TIERS[0] and self._first_batch is None:
            self._first_batch = batch
            batch.thread = self._thread
        else:
            batch.thread = threading.Thread(
                target=self._run_batch, args=(model, batch), name=f"model-{self._name}-{batch.tier}", daemon=True
            )
            try:
                batch.thread.start()  # it waits for the lock held here
            except RuntimeError as error:  # the system has no thread left
                _log.warning("A batch of %s cannot start: %s", self._name, error)
                if first.job.future.set_running_or_notify_cancel():
                    first.job.future.set_exception(OverloadedError(_NO_THREAD))
                self._observer.queue_changed(self._name, len(self._waiting))
                return False
        self._batches.append(batch)
        self._turn = batch
        self._tell_underway()
        return True

    def _drop_cancelled(self) -> None:
        if any(queued.job.future.cancelled() for queued in self._waiting):
            self._waiting = deque(queued for queued in self._waiting if not queued.job.future.cancelled())
            self._observer.queue_changed(self._name, len(self._waiting))

    def _tell_underway(self) -> None:
        counts = Counter(batch.tier for batch in self._batches)
        self._observer.batches_changed(self._name, {tier: counts[tier] for tier in TIERS})

    def _require_time(self, jobs: Sequence[QueuedJob]) -> None:
        """Refuse jobs that cannot finish in time because of those ahead of them.

        In the same tier, a longer job ahead has had at least as many turns as these when they finish, and a shorter
        one has finished by then. The time of other tiers comes on top.
        """
        tier, passes = jobs[0].tier, sum((queued.passes or Passes() for queued in jobs), Passes())
        least = self.pace.least(passes)
        if tier == TIERS[0] or not least:
            return
        ahead = [batch.remaining for batch in self._batches if batch.tier == tier]
        ahead += [queued.passes for queued in self._waiting if queued.tier == tier and queued.passes]
        seconds = least + sum(min(self.pace.least(work), least) for work in ahead)
        left = jobs[0].job.deadline.remaining
        if ahead and seconds > CLEARLY * left:
            raise OverloadedError(
                "Similar work is waiting for this model. Including that work, this request takes about "
                f"{ceil(seconds)} s, but it has {left:.0f} s (SEEWHY_DEADLINE). Try again later, or use a method with "
                "fewer passes.",
                self._retry(seconds - left),
            )

    def _retry(self, seconds: float) -> int:
        """Return the seconds for Retry-After: the given ones, or when half of the queue may have finished."""
        passes = sum((queued.passes or Passes() for queued in self._waiting), Passes())
        return max(5, min(MOST_RETRY, ceil(seconds or self.pace.usual(passes) / 2)))


def _serve_and_drop(threads: list[ModelThreads]) -> None:
    """Run the first thread of a model, and drop the model at its end: weights are in reference cycles."""
    threads.pop()._serve()
    gc.collect()
