"""Readiness among processes: a new one accepts requests once its model is loaded, if others answer until then."""

import ctypes
import mmap
import os
import threading
import time
from typing import Any

from seewhy.app.errors import exit_status, lacks_memory
from seewhy.app.server.application import Application
from seewhy.app.system.allocator import Rest
from seewhy.models.errors import BadWeightsError, ModelsFileError

LOOK_SECONDS = 0.1
"""Seconds between two checks of a process."""


class State(ctypes.Structure):
    """The state shared by the first process and one worker, in memory allocated before the fork by `shared_state`.

    Attributes:
        answers: whether the worker has the default model; set by the worker.
        answered: whether the worker has ever had it; set by the worker.
        others_answer: whether other workers have it; set by the first process.
        leaves: whether the worker should end or is ending; set by both.
        fault: exit status of the service if this worker's failure to load the default model lasts; 0 if it has not
            failed, or may succeed later; set by the worker.
        delay: seconds before the worker begins, not shared; they grow while earlier workers are lost.
    """

    answers: bool
    answered: bool
    others_answer: bool
    leaves: bool
    fault: int
    delay = 0.0

    _fields_ = (
        *((name, ctypes.c_bool) for name in ("answers", "answered", "others_answer", "leaves")),
        ("fault", ctypes.c_ubyte),
    )


def shared_state(delay: float) -> State:
    """Return a state in memory that a process forked later shares."""
    state = State.from_buffer(mmap.mmap(-1, ctypes.sizeof(State)))
    state.delay = delay
    return state


class Readiness(threading.Thread):
    """Thread of a process that loads its model, reports whether it answers, and frees memory after work."""

    def __init__(self, application: Application, state: State) -> None:
        super().__init__(name="readiness", daemon=True)
        self._application = application
        self._state = state
        self._rest = Rest()

    def run(self) -> None:
        """Check until the process ends."""
        while True:
            self.look()
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Load what is missing, report whether the process answers, and free memory while there is no work."""
        self._application.load()
        models = self._application.models
        self._state.answers = models is not None and models.has_default
        self._state.answered |= self._state.answers
        if models is not None:
            self._state.fault = lasting_fault(models.default_failure)
            self._rest.look(models.engine.worked)


def lasting_fault(failure: Exception | None) -> int:
    """Return the exit status for a failure to load a model that waiting cannot mend; 0 for other failures, and for
    none.

    A models file, its code and weights stay as they are. A refusal by the system may not last: another process may have
    the memory, or a network the file.
    """
    if not isinstance(failure, ModelsFileError | BadWeightsError):
        return 0
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) or lacks_memory(cause):
            return 0
        cause = cause.__cause__
    return exit_status(failure)


def begin(worker: Any) -> None:
    """Delay a process that has just been forked by its state's seconds, and end it if it should already end.

    Raises:
        SystemExit: the worker should end.
    """
    start = time.monotonic() + worker.state.delay
    while not _ends(worker) and time.monotonic() < start:
        time.sleep(LOOK_SECONDS)
    if _ends(worker):
        raise SystemExit(0)


def await_turn(worker: Any) -> None:
    """Start the thread, and wait for the default model while others answer; then gunicorn begins to accept.

    If no others are ready, connections are accepted immediately and told that the service is starting.
    """
    Readiness(worker.wsgi, worker.state).start()
    while worker.alive and worker.state.others_answer and not worker.state.answers:
        if _ends(worker):  # a process forked just now may have missed the signal to stop
            worker.alive = False
        worker.notify()  # or gunicorn would kill the process as hanging
        time.sleep(LOOK_SECONDS)
    if _ends(worker):
        worker.alive = False


def _ends(worker: Any) -> bool:
    """Return whether the worker should end, or its first process is gone."""
    return bool(worker.state.leaves or worker.ppid != os.getppid())
