"""Readiness among processes: a new one accepts requests once its model is loaded, if others answer until then."""

import mmap
import os
import threading
import time
from typing import Any

from seewhy.app.server.application import Application
from seewhy.app.system.allocator import Rest

LOOK_SECONDS = 0.1
"""Seconds between two checks of a process."""


class _SharedBool:
    """A byte shared by the first process and a worker."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, state: "State", _: type | None = None) -> bool:
        return bool(state.shared[self._place])

    def __set__(self, state: "State", value: bool) -> None:
        state.shared[self._place] = value


class _LatchedBool(_SharedBool):
    """A shared byte, and a second one that stays set once the first was set."""

    def __init__(self, place: int, latch: int) -> None:
        super().__init__(place)
        self._latch = latch

    def __set__(self, state: "State", value: bool) -> None:
        super().__set__(state, value)
        if value:
            state.shared[self._latch] = True


class State:
    """The state shared by the first process and one worker, in memory allocated before the fork."""

    answers = _LatchedBool(0, latch=3)
    """Whether the worker has the default model; set by the worker."""

    others_answer = _SharedBool(1)
    """Whether other workers have it; set by the first process."""

    leaves = _SharedBool(2)
    """Whether the worker should end or is ending; set by both."""

    answered = _SharedBool(3)
    """Whether the worker has ever answered."""

    def __init__(self, delay: float = 0.0) -> None:
        self.shared = mmap.mmap(-1, 4)
        self.delay = delay
        """Seconds before the worker begins; they grow while earlier workers are lost."""


class Readiness(threading.Thread):
    """Thread of a process that loads its model, reports whether it answers, and frees memory after work.

    Args:
        application: application of the process.
        state: state shared with the first process.
    """

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
        if models is not None:
            self._rest.look(models.engine.worked)


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

    If no others answer, connections are accepted at once and told that the service is starting.
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
