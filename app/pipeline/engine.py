"""The models in memory, each with the threads that run it; requests queue for it and come back through futures.

Concurrency is batching: whatever waits with the same work when a model becomes free shares its next pass. A model
that comes from a pass may wait a moment for the next one to fill; an idle one never does.
"""

import gc
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from seewhy.app.errors import DeadlineError, OverloadedError
from seewhy.app.pipeline.costs import settle
from seewhy.app.pipeline.jobs import Deadline, Done, Job, Work, results
from seewhy.app.pipeline.model_threads import ModelThreads
from seewhy.app.pipeline.record import UNOBSERVED, Observer
from seewhy.app.pipeline.scheduler import Pace
from seewhy.models import LoadedModel


class Engine:
    """The models in memory, each with its worker.

    Args:
        load: makes a model ready; runs in the model's own thread.
        max_models: how many to keep; the least recently used idle one goes first.
        max_batch: most pictures in one pass.
        queue_size: most jobs that may wait for one model.
        max_wait: seconds that the oldest of waiting jobs may wait for the batch to fill.
        observer: is told what happens.
        warm_up: work that a model does twice once it is loaded, the second time to measure its pace.
        clock: tells the seconds that turns take.
    """

    def __init__(
        self,
        load: Callable[[str], LoadedModel],
        max_models: int,
        max_batch: int,
        queue_size: int,
        max_wait: float = 0.0,
        observer: Observer = UNOBSERVED,
        warm_up: Work | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._max_models = max_models
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._max_wait = max_wait
        self._observer = observer
        self._warm_up = warm_up
        self._clock = clock
        self._workers: OrderedDict[str, ModelThreads] = OrderedDict()
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
    def workers(self) -> dict[str, ModelThreads]:
        """The workers of the models in memory, by name."""
        with self._lock:
            return dict(self._workers)

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

    def pace(self, name: str) -> Pace:
        """Return how long passes of a model take, as far as that was measured."""
        with self._lock:
            worker = self._workers.get(name)
        return Pace() if worker is None else worker.pace

    def submit(self, name: str, jobs: Sequence[Job]) -> None:
        """Queue jobs for a model together.

        Raises:
            OverloadedError: the queue is full, or what is ahead of them takes longer than they have.
            TooCostlyError: the request's client has nothing left for them; they are given up.
            ModelError, DeadlineError: as `model`.
        """
        while not self._ready(name, jobs[0].deadline)[0].submit(jobs):
            jobs[0].deadline.check()
        try:
            settle()
        except BaseException:
            for job in jobs:
                job.abandon()
            raise

    def run(self, name: str, jobs: Sequence[Job]) -> list[Done]:
        """Queue jobs for a model together, and wait for all of them; raises what `submit` and `results` raise."""
        self.submit(name, jobs)
        return results(jobs)

    def evict(self, keep: Collection[str], timeout: float) -> bool:
        """Stop the least recently used idle model, and wait until its weights are gone from memory.

        Args:
            keep: names of those that stay.
            timeout: most seconds to wait.

        Returns:
            Whether there was one.
        """
        with self._lock:
            names = [name for name, worker in self._workers.items() if not worker.failed and worker.idle]
            name = next((name for name in names if name not in keep), None)
            if name is None:
                return False
            worker = self._workers.pop(name)
            self._dropped.add(name)
        worker.stop()
        worker.join(timeout)
        del worker
        gc.collect()  # a model hangs in cycles
        return True

    def stop(self, timeout: float = 0.0) -> None:
        """End all threads once their queues are empty; wait for each at most so many seconds."""
        with self._lock:
            workers, self._workers = list(self._workers.values()), OrderedDict()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(timeout)

    def _ready(self, name: str, deadline: Deadline) -> tuple[ModelThreads, LoadedModel]:
        worker = self._worker(name)
        try:
            found = deadline.wait(worker.loaded)
        except DeadlineError:
            raise DeadlineError(f"The model {name!r} is still loading; try again in a few seconds.") from None
        if isinstance(found, Exception):
            raise _like(found)
        return worker, found

    def _worker(self, name: str) -> ModelThreads:
        with self._lock:
            worker = self._workers.get(name)
            if worker is None or worker.failed:  # after a failure try again: the weights may have arrived
                earlier = None if worker is None else worker.failure
                self._make_room(name)
                worker = ModelThreads(
                    name,
                    lambda: self._load(name),
                    self._max_batch,
                    self._queue_size,
                    self._max_wait,
                    self._observer,
                    earlier,
                    self._warm_up,
                    self._clock,
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


def _like(error: Exception) -> Exception:
    """Return an equal error, to be raised in place of one that is kept."""
    made = type(error).__new__(type(error), *error.args)
    vars(made).update(vars(error))
    return made
