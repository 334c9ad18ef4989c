"""Liveness: whether this process can still work. If it is broken for good, it ends and another replaces it.

A process is broken if one of these holds, which no request and no waiting mends:

* PyTorch's process-wide state (`explainers/process_wide.py`) has differed from that at the start, at each check for
  `CHANGED_SECONDS`. Checks run while a model is idle, or when its turn passes from one batch to another.
* A thread of a model has ended without being stopped: requests for that model would wait until their deadline.
* One pass of a model has run for `STUCK_DEADLINES` times as long as a request may take: native code hangs and cannot
  be interrupted. Requests for that model would wait behind it until their deadline.
* Each model in memory fails on an empty picture with an error of no known kind, in `MOST_FAILED` trials in a row.
  Loading a model runs it on such a picture, so each of them succeeded once. A trial needs a request that has failed
  since the last one. This detects, for example, a GPU whose context is lost.

Errors of one model, method or picture, a lack of memory, and work of many passes do not count.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import torch

from seewhy.app.errors import INTERNAL, BrokenError, OverloadedError, kind_of
from seewhy.app.pipeline.computation import PredictComputation
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.model_threads import ModelThreads
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record
from seewhy.explainers import process_wide
from seewhy.explainers.core.ask import DEFAULT_ASK

LOOK_SECONDS = 2.0
"""Seconds between two checks of the process."""

CHANGED_SECONDS = 10.0
"""Seconds after which a change of PyTorch's state is taken to be permanent."""

TRIAL_SECONDS = 10.0
"""Minimum seconds between two trials; a trial waits for each model as long as a request may."""

STUCK_DEADLINES, STUCK_SECONDS = 5, 60.0
"""A pass that takes this many deadlines, and at least this many seconds, is stuck."""

MOST_FAILED = 3
"""Number of failed trials in a row after which a process is broken."""

_log = logging.getLogger(__name__)


def end_process() -> None:
    """End this process as its server would: requests already accepted are answered if possible, new ones are not."""
    os.kill(os.getpid(), signal.SIGTERM)


class Liveness(Observer):
    """Checks the process.

    Args:
        seconds: time limit for a request.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, engine: Engine, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: dict[str, float] = {}
        self._looks: dict[str, list[str]] = {}
        self._last_look = clock()
        self._request_failed = False
        self._next_trial = clock()
        self._failures: list[str] = []

    def request_finished(self, record: Record) -> None:
        """Note whether a request failed; a stream fails after its status, 200, was sent."""
        if INTERNAL.status == record.status or INTERNAL.code == record.problem:
            self._request_failed = True

    def require(self) -> None:
        """Check the process, and refuse if it is broken."""
        if faults := self.faults():
            raise BrokenError(f"This process must be replaced: {' '.join(faults)}")

    def faults(self) -> list[str]:
        """Check the process, and return why it is broken, one sentence each; empty if it is not."""
        with self._lock:
            return [*self._lasting_changes(), *self._lost_threads(), *self._stuck_passes(), *self._failed_trials()]

    def watch(self, end: Callable[[], None] = end_process) -> threading.Thread:
        """Start a thread that checks the process periodically and ends it if it is broken."""
        thread = threading.Thread(target=self._watch, args=(end,), name="liveness", daemon=True)
        thread.start()
        return thread

    def try_models(self) -> None:
        """Let each model in memory classify an empty picture, if a request has failed and a trial is due."""
        if not self._request_failed or self._clock() < self._next_trial:
            return
        self._request_failed = False
        trials = [job for threads in self._engine.threads.values() if (job := self._trial(threads)) is not None]
        errors = [_error(job) for job in trials]  # without the lock: a trial may take as long as a request
        with self._lock:
            self._next_trial = self._clock() + TRIAL_SECONDS
            # One model that answers, or an error of a known kind, proves that the process still works.
            is_failure = bool(errors) and all(error is not None and kind_of(error) is INTERNAL for error in errors)
            self._failures = [*self._failures, f"{type(errors[0]).__name__}: {errors[0]}"] if is_failure else []

    def _watch(self, end: Callable[[], None]) -> None:
        while not (faults := self._looked()):
            time.sleep(LOOK_SECONDS)
        _log.critical("This process ends and will be replaced: %s", " ".join(faults))
        end()

    def _looked(self) -> list[str]:
        """Check and try the models; a check that fails proves nothing, and the next one may succeed."""
        try:
            if not (faults := self.faults()):
                self.try_models()
        except Exception:
            _log.exception("The liveness check failed")
            return []
        return faults

    def _lasting_changes(self) -> list[str]:
        """Return the differences at each check; a change counts once every model has been checked again while idle.

        A busy model may have changed something temporarily, so the checks of the other models do not count it.
        """
        models = {name: threads for name, threads in self._engine.threads.items() if not threads.failed}
        looks = {name: threads.look() for name, threads in models.items()}
        if not models and (changes := process_wide.changes()) is not None:
            looks = {"": changes}
        # The same list is the same check: a busy model returns that of its last turn.
        if looks and all(look is not self._looks.get(name) for name, look in looks.items()):
            self._looks, self._last_look = looks, self._clock()
            names = sorted(set.intersection(*map(set, looks.values())))
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
        """Ask a model, if it is loaded, to classify an empty picture, without waiting."""
        model = threads.loaded.result() if threads.loaded.done() else None
        if model is None or isinstance(model, Exception):
            return None
        job = Job(PredictComputation(), torch.zeros(model.spec.image_shape), DEFAULT_ASK, Deadline.after(self._seconds))
        try:
            return job if threads.submit([job]) else None
        except OverloadedError as error:
            job.future.set_exception(error)
            return job


def _error(job: Job) -> Exception | None:
    """Wait for a job, and return its error."""
    try:
        job.result()
    except Exception as error:
        return error
    return None
