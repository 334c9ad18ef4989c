"""One thread owns each model and its hooks; requests queue for it and come back through futures.

Concurrency is batching: whatever waits with the same work when the thread becomes free shares its next pass. A thread
that comes from a pass may wait a moment for the next one to fill; an idle one never does.
"""

import logging
import math
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.errors import ClientGoneError, DeadlineError, OutOfMemoryError, OverloadedError
from app.presence import Gone, never
from app.record import UNOBSERVED, Observer, Record, current
from app.work import Batch
from explainers.errors import ExplainerError, LayerError, TargetError
from explainers.goals import MOST_PROBABLE, NO_CONTRAST
from explainers.passes import one_by_one
from models import LoadedModel, ModelError

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GLANCE = 0.25
"""Seconds after which one who waits looks again whether its own client still does."""

_FRAME = 0.5
"""Seconds between two looks at how a map grows."""

_MEMORY_WORDS = ("out of memory", "allocate memory", "failed to allocate", "bad_alloc", "bad allocation")
"""What those say who have no error of their own for it."""

_NO_MEMORY = (
    "Memory does not suffice for this, even with one picture in a pass. Ask for a layer of fewer channels or for a "
    "cheaper method, or try again when the server has less to do."
)

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
        gone: tells whether nobody waits even before.
    """

    at: float
    gone: Gone = never

    @classmethod
    def after(cls, seconds: float, gone: Gone = never) -> "Deadline":
        """Return the deadline that many seconds from now."""
        return cls(time.monotonic() + seconds, gone)

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise `DeadlineError` if the moment has passed, `ClientGoneError` if nobody waits."""
        if self.gone():
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


class Work(Protocol):
    """What a model is to do with a batch of pictures. Jobs whose work is equal share a batch."""

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Any]:
        """Return one result per picture, on the CPU; the model runs in this thread only."""


@dataclass(frozen=True)
class Done:
    """What one job came to.

    Attributes:
        result: of its work.
        queued, ran: seconds that the job waited, and that its batch took.
        started: when that began, on the monotonic clock.
        batch: what the trace of the batch is, if there is one.
    """

    result: Any
    queued: float
    ran: float
    started: float
    batch: Any = None


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

    def look(self, found: "NDArray[np.float32]") -> None:
        """Keep a map that has grown, if there is anything new to see."""
        if found.any() and np.isfinite(found).all() and not (self.map is not None and np.array_equal(found, self.map)):
            self.map = found

    @property
    def share(self) -> float:
        """How much of the work is done, 0 to 1."""
        done, total = self.passes
        return done / total if total else 0.0

    def __str__(self) -> str:
        return f"About {100 * self.share:.0f} % of the work was done." if self.passes[1] > 1 else ""


@dataclass(frozen=True, eq=False)
class Job:
    """One picture, and what to do with it.

    Attributes:
        work: jobs with equal work can share a batch.
        image: (C, H, W) float32, normalised.
        target: class index; None for the most probable.
        deadline: a job that is still waiting then is dropped, and one that runs in many passes ends.
        against: class index that the target is contrasted with; None for no contrast.
        record: of the request that asks for it.
    """

    work: Work
    image: Tensor
    target: int | None
    deadline: Deadline
    against: int | None = None
    future: "Future[Done]" = field(default_factory=Future)
    created: float = field(default_factory=time.monotonic)
    progress: Progress = field(default_factory=Progress)
    record: Record = field(default_factory=current)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return self.deadline.remaining > 0 and not self.progress.is_abandoned and not self.deadline.gone()

    def result(self) -> Done:
        """Wait for the job.

        Raises:
            DeadlineError: it was not done in time; if it still waits, it will not run.
            ClientGoneError: nobody waits for it any more.
        """
        try:
            return self.deadline.wait(self.future)
        except (ClientGoneError, DeadlineError):
            self.abandon()
            raise _late(self) from None

    def abandon(self) -> None:
        """Give it up: if it waits, it will not run; if it runs in many passes, it ends before the next."""
        self.future.cancel()
        self.progress.is_abandoned = True


class Worker:
    """The thread that loads one model, and is then the only one to run it.

    Args:
        name: of the model.
        load: makes it ready.
        max_batch, queue_size, max_wait, observer: as for `Engine`.
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
    ) -> None:
        # A failure is a result: once raised, it would keep the frames of those who wait, and what they were sent.
        self.loaded: Future[LoadedModel | Exception] = Future()
        self._earlier = earlier
        self._name = name
        self._observer = observer
        self._load = load
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._max_wait = max_wait
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._running = False
        self._worked = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name=f"model-{name}", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> bool:
        """Queue jobs, all or none of them; return False if this worker has been stopped to make room.

        Raises:
            OverloadedError: the queue is full.
        """
        with self._changed:
            if self._stopped:
                return False
            self._waiting = deque(job for job in self._waiting if not job.future.cancelled())
            if len(self._waiting) + len(jobs) > self._queue_size:
                raise OverloadedError("The queue of this model is full; try again in a few seconds.")
            self._waiting.extend(jobs)
            self._observer.waiting(self._name, len(self._waiting))
            self._changed.notify()
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
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        with self._changed:
            return self.loaded.done() and not self._waiting and not self._running

    @property
    def worked(self) -> float:
        """When it last loaded or ran something, by `time.monotonic`: now, while it does or something waits."""
        return self._worked if self.idle else time.monotonic()

    def stop(self) -> None:
        """End the thread once its queue is empty; free the model with it."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most so many seconds."""
        self._thread.join(timeout)

    def _serve(self) -> None:
        started = time.monotonic()
        try:
            model = self._load()
        except BaseException as error:
            self._worked = time.monotonic()
            self._observer.not_loaded(self._name, error)
            self.loaded.set_result(_kept(error, ModelError))
            return
        self._worked = time.monotonic()
        self._observer.loaded(model, self._worked - started)
        self.loaded.set_result(model)
        while self._serve_batch(model):
            pass
        self._observer.unloaded(model)

    def _serve_batch(self, model: LoadedModel) -> bool:
        """Run the next batch, and keep nothing of it; return False when there is no more to come."""
        batch = self._next_batch()
        if batch:
            self._run(model, batch)
            if not self._waiting:
                self._observer.rests(self._name, model)
            self._worked = time.monotonic()
            self._running = False
        return bool(batch)

    def _next_batch(self) -> list[Job]:
        """Return jobs with equal work, the longest-waiting first; an empty list means stop."""
        with self._changed:
            if self._waiting:  # it comes from a pass
                left = self._waiting[0].created + self._max_wait - time.monotonic()
                self._changed.wait_for(lambda: self._stopped or self._is_full(), max(0.0, left))
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            batch: list[Job] = []
            rest: deque[Job] = deque()
            for job in self._waiting:
                fits = len(batch) < self._max_batch and (not batch or job.work == batch[0].work)
                (batch if fits else rest).append(job)
            self._waiting = rest
            self._observer.waiting(self._name, len(rest))
            self._running = bool(batch)
            return batch

    def _is_full(self) -> bool:
        """Whether as many jobs wait with the work of the first one as share a pass."""
        return sum(job.work == self._waiting[0].work for job in self._waiting) >= self._max_batch

    def _run(self, model: LoadedModel, batch: list[Job]) -> None:
        # A job whose client gave up is dropped here, before it costs anything.
        live = [job for job in batch if job.is_wanted and job.future.set_running_or_notify_cancel()]
        if live:
            self._answer(model, live)

    def _answer(self, model: LoadedModel, jobs: list[Job], frugal: bool = False) -> None:
        """Run one pass for all jobs; where it fails, run each by itself, so that a bad one fails alone.

        Where memory does not suffice for one of many passes, its passes hold one picture each (`frugal`).
        """
        started = time.monotonic()
        self._observer.starting(self._name, jobs)
        try:
            with one_by_one() if frugal else nullcontext():
                results = _results(model, jobs)
        except BaseException as error:  # even a model that calls sys.exit must not end this thread
            self._observer.finished(self._name, jobs, started, time.monotonic() - started)
            if _lacks_memory(error):
                _forget(error)
                if len(jobs) == 1 and not frugal:
                    self._answer(model, jobs, frugal=True)
                    return
                error = OutOfMemoryError(_NO_MEMORY) if len(jobs) == 1 else error
            # Equal work: a layer is bad for all, and where nobody waits nothing is done again.
            if len(jobs) > 1 and not isinstance(error, LayerError | DeadlineError | ClientGoneError):
                plain = [job for job in jobs if job.against is None]
                together = plain if isinstance(error, TargetError) and len(plain) < len(jobs) else []
                for part in (together, *([job] for job in jobs if job not in together)):
                    if part:
                        self._answer(model, part)
                return
            for job in jobs:
                told = _late(job) if isinstance(error, DeadlineError | ClientGoneError) else error
                job.future.set_exception(_kept(told, ExplainerError))
            return
        ran = time.monotonic() - started
        traced = self._observer.finished(self._name, jobs, started, ran)
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(Done(result, started - job.created, ran, started, traced))


class Engine:
    """The models in memory, each with its worker.

    Args:
        load: makes a model ready; runs in the model's own thread.
        max_models: how many to keep; the least recently used idle one goes first.
        max_batch: most pictures in one pass.
        queue_size: most jobs that may wait for one model.
        max_wait: seconds that the oldest of waiting jobs may wait for the batch to fill.
        observer: is told what happens.
    """

    def __init__(
        self,
        load: Callable[[str], LoadedModel],
        max_models: int,
        max_batch: int,
        queue_size: int,
        max_wait: float = 0.0,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._load = load
        self._max_models = max_models
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._max_wait = max_wait
        self._observer = observer
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def loaded(self, name: str) -> LoadedModel | None:
        """Return a model if it is in memory; do not wait."""
        with self._lock:
            worker = self._workers.get(name)
        found = worker.loaded.result() if worker is not None and worker.loaded.done() else None
        return None if isinstance(found, Exception) else found

    def dropped(self, name: str) -> bool:
        """Whether a model was in memory, and made room for others; the next request loads it again."""
        with self._lock:
            return name in self._dropped

    @property
    def worked(self) -> float:
        """When a model last loaded or ran something, by `time.monotonic`: now, while one does; -inf if none did."""
        with self._lock:
            workers = list(self._workers.values())
        return max((worker.worked for worker in workers), default=-math.inf)

    @property
    def full(self) -> bool:
        """Whether another model has no room unless one of those in memory goes."""
        with self._lock:
            return sum(not worker.failed for worker in self._workers.values()) >= self._max_models

    def failure(self, name: str) -> Exception | None:
        """Return why a model could not be loaded, also while that is tried again; None once it is loaded."""
        with self._lock:
            worker = self._workers.get(name)
        return None if worker is None or worker.failure is None else _like(worker.failure)

    def model(self, name: str, deadline: Deadline) -> LoadedModel:
        """Return a model, loading it if need be.

        Raises:
            ModelError: it cannot be loaded.
            DeadlineError: it is still loading.
            OverloadedError: as many models as may be kept are all at work.
        """
        return self._ready(name, deadline)[1]

    def submit(self, name: str, jobs: Sequence[Job]) -> None:
        """Queue jobs for a model together.

        Raises:
            OverloadedError: the queue is full.
            ModelError, DeadlineError: as `model`.
        """
        while not self._ready(name, jobs[0].deadline)[0].submit(jobs):
            jobs[0].deadline.check()

    def run(self, name: str, jobs: Sequence[Job]) -> list[Done]:
        """Queue jobs for a model together, and wait for all of them; raises what `submit` and `results` raise."""
        self.submit(name, jobs)
        return results(jobs)

    def stop(self, timeout: float = 0.0) -> None:
        """End all threads once their queues are empty; wait for each at most so many seconds."""
        with self._lock:
            workers, self._workers = list(self._workers.values()), OrderedDict()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(timeout)

    def _ready(self, name: str, deadline: Deadline) -> tuple[Worker, LoadedModel]:
        worker = self._worker(name)
        try:
            found = deadline.wait(worker.loaded)
        except DeadlineError:
            raise DeadlineError(f"The model {name!r} is still loading; try again in a few seconds.") from None
        if isinstance(found, Exception):
            raise _like(found)
        return worker, found

    def _worker(self, name: str) -> Worker:
        with self._lock:
            worker = self._workers.get(name)
            if worker is None or worker.failed:  # after a failure try again: the weights may have arrived
                earlier = None if worker is None else worker.failure
                self._make_room(name)
                worker = Worker(
                    name,
                    lambda: self._load(name),
                    self._max_batch,
                    self._queue_size,
                    self._max_wait,
                    self._observer,
                    earlier,
                )
                self._workers[name] = worker
            self._workers.move_to_end(name)
            return worker

    def _make_room(self, wanted: str) -> None:
        """Stop idle workers, the least recently used first, until one more model fits; those that failed hold none."""
        others = [(name, worker) for name, worker in self._workers.items() if name != wanted and not worker.failed]
        surplus = len(others) + 1 - self._max_models
        for name, worker in others:
            if surplus > 0 and worker.idle:
                worker.stop()
                del self._workers[name]
                self._dropped.add(name)
                surplus -= 1
        if surplus > 0:
            raise OverloadedError("All models in memory are at work; try again in a few seconds.")


def results(jobs: Sequence[Job]) -> list[Done]:
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


def _late(job: Job) -> Exception:
    """Return why nobody waits for a job any more."""
    return ClientGoneError(_GONE) if job.deadline.gone() else DeadlineError(f"{_TOO_LATE} {job.progress}".strip())


def _lacks_memory(error: BaseException) -> bool:
    """Whether it says that memory could not be had: Python's, PyTorch's for a processor or a GPU, or a runtime's."""
    said = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in _MEMORY_WORDS)
    )


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


def _like(error: Exception) -> Exception:
    """Return an equal error, to be raised in place of one that is kept."""
    made = type(error).__new__(type(error), *error.args)
    vars(made).update(vars(error))
    return made


def _results(model: LoadedModel, jobs: list[Job]) -> Sequence[Any]:
    """Run one pass for all jobs."""
    images = _moved(torch.stack([job.image for job in jobs]), model.device)
    targets = torch.tensor([MOST_PROBABLE if job.target is None else job.target for job in jobs])
    contrasts = [NO_CONTRAST if job.against is None else job.against for job in jobs]
    against = torch.tensor(contrasts) if any(job.against is not None for job in jobs) else None

    def report(done: int, total: int) -> None:
        for job in jobs:
            if done * job.progress.passes[1] >= job.progress.passes[0] * total:  # a batch that runs again begins anew
                job.progress.passes = done, total
        if not any(job.is_wanted for job in jobs):
            raise _late(jobs[0])

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

    return jobs[0].work.run(model, Batch(images, targets, against, report, show))


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; to a GPU it goes through pinned memory, and nobody waits for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
