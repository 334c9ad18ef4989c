"""The models in memory, each with its threads; requests queue for a model and get their results through futures.

Concurrency is batching: jobs with equal work that wait when a model becomes free share its next pass. After a pass, a
model may wait a moment for the next batch to fill; an idle one never waits.
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
    """The models in memory, each with its threads."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._threads: OrderedDict[str, ModelThreads] = OrderedDict()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def loaded(self, name: str) -> LoadedModel | None:
        """Return a model if it is in memory, without waiting."""
        with self._lock:
            threads = self._threads.get(name)
        model = threads.loaded.result() if threads is not None and threads.loaded.done() else None
        return None if isinstance(model, Exception) else model

    def dropped(self, name: str) -> bool:
        """Whether a model was in memory and was dropped for others; the next request loads it again."""
        with self._lock:
            return name in self._dropped

    @property
    def worked(self) -> float:
        """When a model last loaded or ran, by `time.monotonic`: now, while one does; -inf if none did."""
        with self._lock:
            models = list(self._threads.values())
        return max((threads.worked for threads in models), default=-math.inf)

    @property
    def threads(self) -> dict[str, ModelThreads]:
        """The threads of the models in memory, by model name."""
        with self._lock:
            return dict(self._threads)

    @property
    def full(self) -> bool:
        """Whether another model fits only if one of those in memory is dropped."""
        with self._lock:
            return sum(not threads.failed for threads in self._threads.values()) >= self._options.max_models

    def failure(self, name: str) -> Exception | None:
        """Return why a model could not be loaded, also during a retry; None once it is loaded."""
        with self._lock:
            threads = self._threads.get(name)
        return None if threads is None or threads.failure is None else _copy(threads.failure)

    def model(self, name: str, deadline: Deadline) -> LoadedModel:
        """Return a model, loading it if necessary.

        Raises:
            ModelError: the model cannot be loaded.
            DeadlineError: the model is still loading.
            OverloadedError: the maximum number of models is in memory, and all are busy.
        """
        return self._ready(name, deadline)[1]

    def pace(self, name: str) -> Pace:
        """Return the measured pace of a model."""
        with self._lock:
            threads = self._threads.get(name)
        return Pace() if threads is None else threads.pace

    def submit(self, name: str, jobs: Sequence[Job]) -> None:
        """Queue jobs for a model together.

        Raises:
            OverloadedError: the queue is full, or the jobs ahead take longer than these have.
            TooCostlyError: the client has used up its rate limit; the jobs are cancelled.
            ModelError, DeadlineError: as in `model`.
        """
        # A model may be stopped to make room just before its jobs arrive; the next attempt loads it again.
        while not self._ready(name, jobs[0].deadline)[0].submit(jobs):
            jobs[0].deadline.check()
        try:
            settle()  # only now: work that the queue refuses is not charged
        except BaseException:
            for job in jobs:
                job.abandon()
            raise

    def evict(self, keep: Collection[str], timeout: float) -> bool:
        """Stop the least recently used idle model and wait until its weights are freed; return whether there was one.

        Args:
            timeout: maximum wait, in seconds.
        """
        with self._lock:
            names = [name for name, threads in self._threads.items() if not threads.failed and threads.idle]
            name = next((name for name in names if name not in keep), None)
            if name is None:
                return False
            threads = self._threads.pop(name)
            self._dropped.add(name)
        threads.stop()  # outside the lock, because others use their models while this one ends
        threads.join(timeout)
        del threads
        gc.collect()  # models have reference cycles
        return True

    def stop(self, timeout: float = 0.0) -> None:
        """End all threads once their queues are empty; wait for each at most `timeout` seconds."""
        with self._lock:
            models, self._threads = list(self._threads.values()), OrderedDict()
        for threads in models:  # all of them first, so that they end side by side
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
            if threads is None or threads.failed:  # retry after a failure: the weights may have arrived
                earlier = None if threads is None else threads.failure
                self._make_room(name)
                threads = ModelThreads(name, self._options, earlier)
                self._threads[name] = threads
            self._threads.move_to_end(name)
            return threads

    def _make_room(self, model: str) -> None:
        """Stop idle models, the least recently used first, until one more fits; failed ones take no room."""
        candidates = [
            (name, threads) for name, threads in self._threads.items() if name != model and not threads.failed
        ]
        surplus = len(candidates) + 1 - self._options.max_models
        for name, threads in candidates:
            if surplus > 0 and threads.idle:
                threads.stop()
                del self._threads[name]
                self._dropped.add(name)
                surplus -= 1
        if surplus > 0:
            raise OverloadedError("All models in memory are busy; try again in a few seconds.")


def _copy(error: Exception) -> Exception:
    """Return an equal error to raise in place of the stored one."""
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error))
    copy.__cause__ = error.__cause__
    return copy
