"""The models in memory, each with the threads that run it; requests queue for it and come back through futures.

Concurrency is batching: whatever waits with the same work when a model becomes free shares its next pass. A model
that comes from a pass may wait a moment for the next one to fill; an idle one never does.
"""

import gc
import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence

from seewhy.app.errors import DeadlineError, OverloadedError
from seewhy.app.pipeline.costs import settle
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.model_threads import EngineOptions, ModelThreads
from seewhy.app.pipeline.scheduler import Pace
from seewhy.models import LoadedModel


class Engine:
    """The models in memory, each with its threads.

    Args:
        options: how models are loaded and run.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._threads: OrderedDict[str, ModelThreads] = OrderedDict()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def loaded(self, name: str) -> LoadedModel | None:
        """Return a model if it is in memory; do not wait."""
        with self._lock:
            threads = self._threads.get(name)
        model = threads.loaded.result() if threads is not None and threads.loaded.done() else None
        return None if isinstance(model, Exception) else model

    def dropped(self, name: str) -> bool:
        """Whether a model was in memory, and made room for others; the next request loads it again."""
        with self._lock:
            return name in self._dropped

    @property
    def worked(self) -> float:
        """When a model last loaded or ran something, by `time.monotonic`: now, while one does; -inf if none did."""
        with self._lock:
            models = list(self._threads.values())
        return max((threads.worked for threads in models), default=-math.inf)

    @property
    def threads(self) -> dict[str, ModelThreads]:
        """The threads of the models in memory, by name."""
        with self._lock:
            return dict(self._threads)

    @property
    def full(self) -> bool:
        """Whether another model has no room unless one of those in memory goes."""
        with self._lock:
            return sum(not threads.failed for threads in self._threads.values()) >= self._options.max_models

    def failure(self, name: str) -> Exception | None:
        """Return why a model could not be loaded, also while that is tried again; None once it is loaded."""
        with self._lock:
            threads = self._threads.get(name)
        return None if threads is None or threads.failure is None else _copy(threads.failure)

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
            threads = self._threads.get(name)
        return Pace() if threads is None else threads.pace

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

    def evict(self, keep: Collection[str], timeout: float) -> bool:
        """Stop the least recently used idle model, and wait until its weights are gone from memory.

        Args:
            keep: names of those that stay.
            timeout: most seconds to wait.

        Returns:
            Whether there was one.
        """
        with self._lock:
            names = [name for name, threads in self._threads.items() if not threads.failed and threads.idle]
            name = next((name for name in names if name not in keep), None)
            if name is None:
                return False
            threads = self._threads.pop(name)
            self._dropped.add(name)
        threads.stop()
        threads.join(timeout)
        del threads
        gc.collect()  # a model hangs in cycles
        return True

    def stop(self, timeout: float = 0.0) -> None:
        """End all threads once their queues are empty; wait for each at most so many seconds."""
        with self._lock:
            models, self._threads = list(self._threads.values()), OrderedDict()
        for threads in models:
            threads.stop()
        for threads in models:
            threads.join(timeout)

    def _ready(self, name: str, deadline: Deadline) -> tuple[ModelThreads, LoadedModel]:
        threads = self._threads_of(name)
        try:
            model = deadline.wait(threads.loaded)
        except DeadlineError:
            raise DeadlineError(f"The model {name!r} is still loading; try again in a few seconds.") from None
        if isinstance(model, Exception):
            raise _copy(model)
        return threads, model

    def _threads_of(self, name: str) -> ModelThreads:
        with self._lock:
            threads = self._threads.get(name)
            if threads is None or threads.failed:  # after a failure try again: the weights may have arrived
                earlier = None if threads is None else threads.failure
                self._make_room(name)
                threads = ModelThreads(name, self._options, earlier)
                self._threads[name] = threads
            self._threads.move_to_end(name)
            return threads

    def _make_room(self, model: str) -> None:
        """Stop idle models, the least recently used first, until one more model fits; those that failed hold none."""
        others = [(name, threads) for name, threads in self._threads.items() if name != model and not threads.failed]
        surplus = len(others) + 1 - self._options.max_models
        for name, threads in others:
            if surplus > 0 and threads.idle:
                threads.stop()
                del self._threads[name]
                self._dropped.add(name)
                surplus -= 1
        if surplus > 0:
            raise OverloadedError("All models in memory are at work; try again in a few seconds.")


def _copy(error: Exception) -> Exception:
    """Return an equal error, to be raised in place of one that is kept."""
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error))
    return copy
