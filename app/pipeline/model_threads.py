"""The threads of one model, of which exactly one runs it at any moment: the one that has the turn.

Short work runs in the thread that loaded the model. A longer batch gets a thread of its own, because a thread cannot do
anything else between two passes of a batch: it offers the turn whenever the method reports, and waits until the turn
comes back. Sessions of hooks, gradient mode and context variables belong to a thread, so batches under way do not meet.
"""

import gc
import logging
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor

from seewhy.app.errors import ClientGoneError, DeadlineError, OutOfMemoryError, OverloadedError, lacks_memory
from seewhy.app.pipeline.jobs import Done, Job, Work, late
from seewhy.app.pipeline.record import Observer
from seewhy.app.pipeline.scheduler import MOST_PASSES, MOST_UNDERWAY, TIERS, Pace, Shares, Tier, tier_of
from seewhy.app.pipeline.work import Batch
from seewhy.explainers import process_wide
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.objective import MOST_PROBABLE, NO_CONTRAST
from seewhy.explainers.errors import ExplainerError, LayerError, TargetError
from seewhy.explainers.execution.chunks import Show, one_by_one, unreported
from seewhy.models import LoadedModel, ModelError

_log = logging.getLogger(__name__)

_FRAME = 0.5
"""Seconds between two looks at how a map grows."""

MOST_BATCHES = 8
"""Most batches under way, whatever their tiers: work that turns out longer than it said has left its own."""

CLEARLY = 1.25
"""How far the least time that work can take must exceed what it has, before it is refused for that."""

MOST_RETRY = 600
"""Most seconds after which a client is told to come back."""

_NO_THREAD = "This server cannot start another thread; try again in a few seconds."

_NO_MEMORY = (
    "Memory does not suffice for this, even with one picture in a pass. Ask for a layer of fewer channels or for a "
    "cheaper method, or try again when the server has less to do."
)


@dataclass(frozen=True, eq=False)
class Waiting:
    """A job in the queue.

    Attributes:
        job: which one.
        passes: that it takes; None where nobody knows.
    """

    job: Job
    passes: Passes | None

    @property
    def tier(self) -> Tier:
        """By its passes."""
        return tier_of(None if self.passes is None else self.passes.total)


@dataclass(eq=False)
class Lane:
    """A batch under way.

    Attributes:
        first: the job that waited longest.
        most: jobs that the batch may have.
        tier: of its work.
        fills: whether it may wait a moment for jobs to share it.
        jobs: of the batch.
        turns: how many it has had.
        seconds: how long these took.
        since: when the present one began.
        thread: that runs it.
    """

    first: Waiting
    most: int
    tier: Tier
    fills: bool
    jobs: list[Job] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0
    since: float = 0.0
    thread: threading.Thread | None = None

    @property
    def work(self) -> Work:
        """What all its jobs have in common."""
        return self.first.job.work

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for one of its jobs."""
        return any(job.is_wanted for job in self.jobs) or not self.jobs

    @property
    def remaining(self) -> Passes:
        """About how many passes its jobs still take; none where nobody knows."""
        passes = self.first.passes or Passes()
        left = sum(1 - job.progress.share for job in self.jobs)
        return Passes(round(passes.forwards * left), round(passes.backwards * left))

    def count(self, seconds: float) -> None:
        """Count a turn; what has had more of them than its tier has passes was longer than it said."""
        self.turns += 1
        self.seconds += seconds
        if self.turns > MOST_PASSES[self.tier]:
            self.tier = TIERS[TIERS.index(self.tier) + 1]


@dataclass(frozen=True, eq=False)
class Look:
    """What of PyTorch's state for the process was not as at the start, at a moment when a model had no turn.

    Attributes:
        changes: names, see `seewhy.explainers.process_wide`.
    """

    changes: frozenset[str] = frozenset()


class ModelThreads:
    """The threads of one model; the first one loads it.

    Args:
        name: of the model.
        load: makes it ready.
        max_batch, queue_size, max_wait, observer, warm_up, clock: as for `Engine`.
        earlier: why it could not be loaded the last time.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], LoadedModel],
        max_batch: int,
        queue_size: int,
        max_wait: float,
        observer: Observer,
        earlier: Exception | None = None,
        warm_up: Work | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A failure is a result: once raised, it would keep the frames of those who wait, and what they were sent.
        self.loaded: Future[LoadedModel | Exception] = Future()
        self.pace = Pace()
        self._earlier = earlier
        self._name = name
        self._observer = observer
        self._load = load
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._max_wait = max_wait
        self._warm_up = warm_up
        self._clock = clock
        self._waiting: deque[Waiting] = deque()
        self._lanes: list[Lane] = []  # those whose last turn is longest ago come first
        self._turn: Lane | None = None
        self._own: Lane | None = None  # what the first thread is at work on
        self._shares = Shares()
        self._look = Look()
        self._changed = threading.Condition()
        self._stopped = False
        self._worked = time.monotonic()
        self._thread = threading.Thread(target=_serve_and_drop, args=([self],), name=f"model-{name}", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> bool:
        """Queue jobs, all or none of them; return False if this model has been stopped to make room.

        Raises:
            OverloadedError: the queue is full, or what is ahead of them takes longer than they have.
        """
        model = self.loaded.result()
        if isinstance(model, Exception):
            return False
        sizes = {job.work: job.work.passes(model) for job in jobs}
        queued = [Waiting(job, sizes[job.work]) for job in jobs]
        with self._changed:
            if self._stopped:
                return False
            self._drop_cancelled()
            if len(self._waiting) + len(jobs) > self._queue_size:
                raise OverloadedError("The queue of this model is full; try again in a few seconds.", self._retry(0.0))
            self._require_time(queued)
            self._waiting.extend(queued)
            if self._turn is None:
                self._pass_on(fills=False)
            self._changed.notify_all()
            self._observer.waiting(self._name, len(self._waiting))
            return True

    @property
    def failed(self) -> bool:
        """Whether the model could not be loaded."""
        return self.loaded.done() and self.failure is not None

    @property
    def failure(self) -> Exception | None:
        """Why the model could not be loaded, now or, while it loads, the last time."""
        found = self.loaded.result() if self.loaded.done() else self._earlier
        return found if isinstance(found, Exception) else None

    @property
    def lost(self) -> bool:
        """Whether a thread has ended that should serve: nobody stopped it, or it is in the midst of a batch."""
        with self._changed:
            threads = [lane.thread for lane in self._lanes] + ([] if self._stopped or self.failed else [self._thread])
            return not all(thread is None or thread.is_alive() for thread in threads)

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        with self._changed:
            return self.loaded.done() and not self._waiting and not self._lanes

    def look(self) -> Look:
        """Return the latest look at what the model may have left changed: a new one, unless it is at work.

        While it is, it may have changed that for the moment; a look is taken whenever its turn goes to another batch.
        """
        with self._changed:
            if self.loaded.done() and self._turn is None:
                self._take_look()
            return self._look

    def _take_look(self) -> None:
        """Look, unless another thread changes PyTorch's state and puts it back."""
        changes = process_wide.changes()
        if changes is not None:
            self._look = Look(frozenset(changes))

    @property
    def worked(self) -> float:
        """When it last loaded or ran something, by `time.monotonic`: now, while it does or something waits."""
        return self._worked if self.idle else time.monotonic()

    def stop(self) -> None:
        """End the threads once the queue is empty; free the model with them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, at most so many seconds."""
        self._thread.join(timeout)

    def _serve(self) -> None:
        """Load the model, and run what is short; the first thread is also the last to end."""
        started = time.monotonic()
        try:
            model = self._load()
            self._measure(model)
        except BaseException as error:
            self._worked = time.monotonic()
            self._observer.not_loaded(self._name, error)
            self.loaded.set_result(_kept(error, ModelError))
            return
        self._worked = time.monotonic()
        self._observer.loaded(model, self._worked - started)
        self.loaded.set_result(model)
        while (lane := self._await_own()) is not None:
            self._run_lane(model, lane)
            del lane
        self._observer.unloaded(model)

    def _measure(self, model: LoadedModel) -> None:
        """Measure the pace of the model before it has answered anything; the first run only warms it up."""
        work = self._warm_up
        passes = None if work is None else work.passes(model)
        if work is None or passes is None:
            return
        images = torch.zeros(self._max_batch, *model.spec.image_shape, device=model.device)
        batch = Batch(images, torch.full((len(images),), MOST_PROBABLE), None, unreported)
        try:
            for learns in (False, True):
                started, busy = self._clock(), time.thread_time()
                work.run(model, batch)
                if learns:
                    self.pace.learn(passes * len(images), self._clock() - started, time.thread_time() - busy)
        except Exception as error:  # of a model that cannot bear an empty picture; requests measure it too
            _log.info("The pace of the model %s is not measured yet: %s", self._name, error)

    def _await_own(self) -> Lane | None:
        """Wait for a batch of the first thread; None means that there is no more to come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._own is not None or (self._stopped and not self._waiting and not self._lanes)
            )
            return self._own

    def _run_lane(self, model: LoadedModel, lane: Lane) -> None:
        """Run a batch, which has the turn, to its end; whatever happens, the turn is passed on."""
        try:
            self._fill(lane)
            self._run(model, lane)
        finally:
            self._end(model, lane)

    def _fill(self, lane: Lane) -> None:
        """Let jobs with equal work join a batch before it begins."""
        with self._changed:
            if lane.fills:
                left = lane.first.job.created + self._max_wait - time.monotonic()
                self._changed.wait_for(lambda: self._stopped or self._mates(lane) >= lane.most, max(0.0, left))
            lane.jobs = [lane.first.job]
            rest: deque[Waiting] = deque()
            for one in self._waiting:
                joins = len(lane.jobs) < lane.most and one.job.work == lane.work
                if joins:
                    lane.jobs.append(one.job)
                else:
                    rest.append(one)
            self._waiting = rest
            self._observer.waiting(self._name, len(rest))
            lane.since = self._clock()

    def _mates(self, lane: Lane) -> int:
        """Return how many jobs a batch would have by now."""
        return 1 + sum(one.job.work == lane.work for one in self._waiting)

    def _end(self, model: LoadedModel, lane: Lane) -> None:
        """Pass the turn on from a batch that is over."""
        with self._changed:
            is_last = len(self._lanes) == 1 and not self._waiting
        if is_last:
            self._observer.rests(self._name, model)
        with self._changed:
            self._charge(lane)
            self._worked = time.monotonic()
            self._lanes.remove(lane)
            if self._own is lane:
                self._own = None
            self._turn = None
            self._take_look()
            self._pass_on(fills=True)
            self._tell_underway()
            self._changed.notify_all()

    def _offer_turn(self, lane: Lane) -> None:
        """Let others run between two passes of a batch, if it is their turn, and wait until it is ours again."""
        with self._changed:
            self._charge(lane)
            self._lanes.remove(lane)
            self._lanes.append(lane)
            self._turn = None
            self._pass_on(fills=True)
            if self._turn is not lane:
                self._take_look()
                self._observer.yielded(self._name, lane.tier)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn is lane)
            lane.since = self._clock()

    def _charge(self, lane: Lane) -> None:
        """Count the time of the turn that ends."""
        seconds = max(0.0, self._clock() - lane.since)
        self._shares.charge(lane.tier, seconds)
        tier = lane.tier
        lane.count(seconds)
        if tier != lane.tier:
            self._tell_underway()

    def _pass_on(self, fills: bool) -> None:
        """Give the turn, which nobody has, to who is next: a batch under way, or a new one.

        Args:
            fills: whether a new batch may wait a moment to fill.
        """
        self._drop_cancelled()
        unwanted = next((lane for lane in self._lanes if not lane.is_wanted), None)
        if unwanted is not None:  # it ends at once, and gives its memory back
            self._turn = unwanted
            return
        resumable: dict[Tier, Lane] = {}
        for lane in self._lanes:
            resumable.setdefault(lane.tier, lane)
        startable: dict[Tier, Waiting] = {}
        underway = Counter(lane.tier for lane in self._lanes)
        for one in self._waiting:
            if underway[one.tier] < MOST_UNDERWAY[one.tier] and len(self._lanes) < MOST_BATCHES:
                startable.setdefault(one.tier, one)
        tiers = resumable.keys() | startable.keys()
        if not tiers:
            return
        tier = self._shares.choose(tiers)
        if tier not in startable:
            self._turn = resumable[tier]
        elif not self._start(startable[tier], fills):
            self._pass_on(fills)

    def _start(self, first: Waiting, fills: bool) -> bool:
        """Start a batch: a short one in the first thread, if that is free, any other in a thread of its own.

        Returns:
            Whether it has started. Where there is no thread for it, its job has failed, and nobody has the turn.
        """
        model = self.loaded.result()
        if isinstance(model, Exception):
            raise TypeError("A model that could not be loaded has no jobs.")
        most = min(self._max_batch, first.job.work.most(model) or self._max_batch)
        lane = Lane(first, most, first.tier, fills, since=self._clock())
        self._waiting.remove(first)
        if first.tier == TIERS[0] and self._own is None:
            self._own = lane
            lane.thread = self._thread
        else:
            lane.thread = threading.Thread(
                target=self._run_lane, args=(model, lane), name=f"model-{self._name}-{lane.tier}", daemon=True
            )
            try:
                lane.thread.start()  # it waits for the lock that this one holds
            except RuntimeError as error:  # the system has no thread left
                _log.warning("A batch of %s cannot begin: %s", self._name, error)
                if first.job.future.set_running_or_notify_cancel():
                    first.job.future.set_exception(OverloadedError(_NO_THREAD))
                self._observer.waiting(self._name, len(self._waiting))
                return False
        self._lanes.append(lane)
        self._turn = lane
        self._tell_underway()
        return True

    def _drop_cancelled(self) -> None:
        if any(one.job.future.cancelled() for one in self._waiting):
            self._waiting = deque(one for one in self._waiting if not one.job.future.cancelled())
            self._observer.waiting(self._name, len(self._waiting))

    def _tell_underway(self) -> None:
        counts = Counter(lane.tier for lane in self._lanes)
        self._observer.underway(self._name, {tier: counts[tier] for tier in TIERS})

    def _require_time(self, queued: Sequence[Waiting]) -> None:
        """Refuse jobs that cannot be done in time because of those ahead of them.

        Of the same tier, one that is longer has taken at least as many turns as theirs when they are done, and one
        that is shorter is done by then. What other tiers take comes on top.
        """
        tier, own = queued[0].tier, sum((one.passes or Passes() for one in queued), Passes())
        least = self.pace.least(own)
        if tier == TIERS[0] or not least:
            return
        ahead = [lane.remaining for lane in self._lanes if lane.tier == tier]
        ahead += [one.passes for one in self._waiting if one.tier == tier and one.passes]
        seconds = least + sum(min(self.pace.least(passes), least) for passes in ahead)
        has = queued[0].job.deadline.remaining
        if ahead and seconds > CLEARLY * has:
            raise OverloadedError(
                f"Work like this waits for this model already: with it, this takes about {ceil(seconds)} s, and it "
                f"has {has:.0f} s (SEEWHY_DEADLINE). Try again later, or ask for a method of fewer passes.",
                self._retry(seconds - has),
            )

    def _retry(self, seconds: float) -> int:
        """Return after how many seconds to come back: so many, or when half of what waits may be done."""
        waits = sum((one.passes or Passes() for one in self._waiting), Passes())
        return max(5, min(MOST_RETRY, ceil(seconds or self.pace.usual(waits) / 2)))

    def _run(self, model: LoadedModel, lane: Lane) -> None:
        # A job whose client gave up is dropped here, before it costs anything.
        live = [job for job in lane.jobs if job.is_wanted and job.future.set_running_or_notify_cancel()]
        if live:
            self._answer(model, lane, live)

    def _answer(self, model: LoadedModel, lane: Lane, jobs: list[Job], frugal: bool = False) -> None:
        """Run one pass for all jobs; where it fails, run each by itself, so that a bad one fails alone.

        Where memory does not suffice for one of many passes, its passes hold one picture each (`frugal`).
        """
        started, busy, before = time.monotonic(), time.thread_time(), lane.seconds
        self._observer.starting(self._name, jobs)
        try:
            with one_by_one() if frugal else nullcontext():
                results = _results(model, jobs, lambda: self._offer_turn(lane))
        except BaseException as error:  # even a model that calls sys.exit must not end this thread
            self._observer.finished(self._name, jobs, started, time.monotonic() - started)
            if lacks_memory(error) or isinstance(error, torch.OutOfMemoryError):  # which need not say so in words
                _forget(error)
                if len(jobs) == 1 and not frugal:
                    self._answer(model, lane, jobs, frugal=True)
                    return
                error = OutOfMemoryError(_NO_MEMORY) if len(jobs) == 1 else error
            # Equal work: a layer is bad for all, and where nobody waits nothing is done again.
            if len(jobs) > 1 and not isinstance(error, LayerError | DeadlineError | ClientGoneError):
                plain = [job for job in jobs if job.against is None]
                together = plain if isinstance(error, TargetError) and len(plain) < len(jobs) else []
                for part in (together, *([job] for job in jobs if job not in together)):
                    if part:
                        self._answer(model, lane, part)
                return
            for job in jobs:
                told = late(job) if isinstance(error, DeadlineError | ClientGoneError) else error
                job.future.set_exception(_kept(told, ExplainerError))
            return
        ran = time.monotonic() - started
        if lane.first.passes is not None and lane.work.runs_whole:
            seconds = lane.seconds - before + self._clock() - lane.since
            self.pace.learn(lane.first.passes * len(jobs), seconds, time.thread_time() - busy)
        traced = self._observer.finished(self._name, jobs, started, ran)
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(Done(result, started - job.created, ran, started, traced))


def _serve_and_drop(threads: list[ModelThreads]) -> None:
    """Run the first thread of a model, and drop the model at its end: weights hang in cycles."""
    threads.pop()._serve()
    gc.collect()


def _forget(error: BaseException) -> None:
    """Let go of the tensors that the frames of an error hold, and of what PyTorch keeps of a GPU's memory."""
    _log.warning("Memory does not suffice: %s", error)
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _kept(error: BaseException, root: type[Exception]) -> Exception:
    """Return what to put into a future: the error without the frames that hold tensors and models in memory.

    What is no `Exception` (a model that calls sys.exit) must not end the thread that waits: it becomes a `root`.
    """
    if not isinstance(error, ExplainerError | ModelError | DeadlineError | ClientGoneError | OutOfMemoryError):
        _log.exception("A model raised", exc_info=error)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error if isinstance(error, Exception) else root(f"The model raised {type(error).__name__}.")


def _results(model: LoadedModel, jobs: list[Job], offer_turn: Callable[[], None]) -> Sequence[Any]:
    """Run all jobs as one batch, and offer the turn between its passes."""
    images = _moved(torch.stack([job.image for job in jobs]), model.device)
    targets = torch.tensor([MOST_PROBABLE if job.target is None else job.target for job in jobs])
    contrasts = [NO_CONTRAST if job.against is None else job.against for job in jobs]
    against = torch.tensor(contrasts) if any(job.against is not None for job in jobs) else None

    def report(done: int, total: int) -> None:
        for job in jobs:
            if done * job.progress.passes[1] >= job.progress.passes[0] * total:  # a batch that runs again begins anew
                job.progress.passes = done, total
        offer_turn()
        if not any(job.is_wanted for job in jobs):
            raise late(jobs[0])

    return jobs[0].work.run(model, Batch(images, targets, against, report, _show(jobs)))


def _show(jobs: Sequence[Job]) -> Show:
    """Return what looks at how the maps of jobs grow, where somebody watches."""
    shown = time.monotonic()

    def show(maps: Callable[[], Tensor]) -> None:
        nonlocal shown
        watched = [(row, job.progress) for row, job in enumerate(jobs) if job.progress.is_watched and job.is_wanted]
        if not watched or time.monotonic() - shown < _FRAME:
            return
        try:
            found = maps().float()
            for row, progress in watched:
                progress.look(found[row].cpu().numpy().copy())
        except Exception:  # for a look nobody is to lose the answer
            _log.exception("A map cannot be shown before it is finished")
            for _, progress in watched:
                progress.is_watched = False
        shown = time.monotonic()

    return show


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; to a GPU it goes through pinned memory, and nobody waits for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
