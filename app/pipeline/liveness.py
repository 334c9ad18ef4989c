"""Whether this process can still do what it is for. Where it cannot, for good, it ends, and another takes its place.

A process is broken where one of these holds, which no request and no waiting mends:

* PyTorch's state for the whole process (`explainers/process_wide.py`) is not what it was at the start, at each look for
  `CHANGED_SECONDS`. Looks are taken while a model is idle, or as its turn goes from one batch to another.
* A thread of a model has ended, although nobody stopped it: requests for that model would wait until their deadline.
* One pass of a model does not end for `STUCK_DEADLINES` times as long as a request may take: native code hangs, and
  nobody can interrupt it. Requests for that model would wait behind it until their deadline.
* Each model in memory fails on an empty picture with an error of no known kind, at `MOST_FAILED` trials in a row.
  Loading a model runs it on such a picture, so each of them could do it once. A trial needs a request that has failed
  since the last one. A GPU whose context is lost is found so.

Errors of one model, one method or one picture, memory that does not suffice and work of many passes are none of these.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import torch

from seewhy.app.errors import INTERNAL, BrokenError, OverloadedError, kind_of
from seewhy.app.pipeline.computation import Predict
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.model_threads import Look, ModelThreads
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record
from seewhy.explainers import process_wide
from seewhy.explainers.core.ask import DEFAULT_ASK

LOOK_SECONDS = 2.0
"""Between two looks of a process at itself."""

CHANGED_SECONDS = 10.0
"""Until a change of PyTorch's state is taken to be for good."""

TRIAL_SECONDS = 10.0
"""Between two trials, at least; a trial waits for each model as long as a request may."""

STUCK_DEADLINES, STUCK_SECONDS = 5, 60.0
"""A pass that takes so many times the deadline, and so many seconds at least, will not end."""

MOST_FAILED = 3
"""Trials in a row that fail, of a process that is broken."""

_log = logging.getLogger(__name__)


def end_process() -> None:
    """End this process as its server would: what it has accepted is answered, if it can be, and nothing new."""
    os.kill(os.getpid(), signal.SIGTERM)


class Liveness(Observer):
    """Looks at the process.

    Args:
        engine: holds its models.
        seconds: that a request may take.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, engine: Engine, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: dict[str, float] = {}
        self._looks: dict[str, Look] = {}
        self._last_look = clock()
        self._request_failed = False
        self._next_trial = clock()
        self._failures: list[str] = []

    def answered(self, record: Record) -> None:
        """Learn of a request that is over; a stream fails after its status, 200, was sent."""
        if INTERNAL.status == record.status or INTERNAL.code == record.problem:
            self._request_failed = True

    def require(self) -> None:
        """Look, and refuse where the process is broken.

        Raises:
            BrokenError: it is; the message says why.
        """
        if faults := self.faults():
            raise BrokenError(f"This process has to be replaced: {' '.join(faults)}")

    def faults(self) -> list[str]:
        """Look, and return why the process is broken, a sentence each; nothing where it is not."""
        with self._lock:
            return [*self._lasting_changes(), *self._lost_threads(), *self._stuck_passes(), *self._failed_trials()]

    def watch(self, end: Callable[[], None] = end_process) -> threading.Thread:
        """Start a thread that looks now and then, and ends the process where it is broken."""
        thread = threading.Thread(target=self._watch, args=(end,), name="liveness", daemon=True)
        thread.start()
        return thread

    def try_models(self) -> None:
        """Let each model in memory classify an empty picture, if a request has failed, and it is time."""
        if not self._request_failed or self._clock() < self._next_trial:
            return
        self._request_failed = False
        trials = [job for threads in self._engine.threads.values() if (job := self._trial(threads)) is not None]
        errors = [_error(job) for job in trials]
        with self._lock:
            self._next_trial = self._clock() + TRIAL_SECONDS
            is_failure = bool(errors) and all(error is not None and kind_of(error) is INTERNAL for error in errors)
            self._failures = [*self._failures, f"{type(errors[0]).__name__}: {errors[0]}"] if is_failure else []

    def _watch(self, end: Callable[[], None]) -> None:
        while not (faults := self._looked()):
            time.sleep(LOOK_SECONDS)
        _log.critical("This process ends, for another to take its place: %s", " ".join(faults))
        end()

    def _looked(self) -> list[str]:
        """Look and try; a look that fails says nothing, and the next one may succeed."""
        try:
            if not (faults := self.faults()):
                self.try_models()
        except Exception:
            _log.exception("This process could not look at itself")
            return []
        return faults

    def _lasting_changes(self) -> list[str]:
        """Return what was changed at each look; one counts once every model has looked anew while it was not at work.

        A model that is at work may have changed something for the moment: other models do not see that in theirs.
        """
        models = {name: threads for name, threads in self._engine.threads.items() if not threads.failed}
        looks = {name: threads.look() for name, threads in models.items()}
        if not models and (changes := process_wide.changes()) is not None:
            looks = {"": Look(frozenset(changes))}
        if looks and all(look is not self._looks.get(name) for name, look in looks.items()):
            self._looks, self._last_look = looks, self._clock()
            names = sorted(frozenset.intersection(*(look.changes for look in looks.values())))
            self._changed = {name: self._changed.get(name, self._last_look) for name in names}
        return [
            f"{name} has been changed for {self._last_look - since:.0f} s, for all threads."
            for name, since in self._changed.items()
            if self._last_look - since >= CHANGED_SECONDS
        ]

    def _lost_threads(self) -> list[str]:
        models = self._engine.threads.items()
        return [f"A thread of the model {name!r} has ended." for name, threads in models if threads.lost]

    def _stuck_passes(self) -> list[str]:
        limit = max(STUCK_SECONDS, STUCK_DEADLINES * self._seconds)
        silences = {name: threads.silence for name, threads in self._engine.threads.items()}
        return [
            f"A pass of the model {name!r} has not ended for {seconds:.0f} s."
            for name, seconds in silences.items()
            if seconds > limit
        ]

    def _failed_trials(self) -> list[str]:
        if len(self._failures) < MOST_FAILED:
            return []
        return [f"No model can classify an empty picture any more ({self._failures[-1]})."]

    def _trial(self, threads: ModelThreads) -> Job | None:
        """Ask a model, if it is loaded, to classify an empty picture; do not wait."""
        model = threads.loaded.result() if threads.loaded.done() else None
        if model is None or isinstance(model, Exception):
            return None
        job = Job(Predict(), torch.zeros(model.spec.image_shape), DEFAULT_ASK, Deadline.after(self._seconds))
        try:
            return job if threads.submit([job]) else None
        except OverloadedError as error:
            job.future.set_exception(error)
            return job


def _error(job: Job) -> Exception | None:
    """Wait for a job, and return what it raised."""
    try:
        job.result()
    except Exception as error:
        return error
    return None
