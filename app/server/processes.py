"""gunicorn's first process: it starts and ends the workers, and tells each whether others answer."""

import signal
import time
from typing import Any

from gunicorn.arbiter import Arbiter

from seewhy.app.server.readiness import State
from seewhy.app.server.worker import Worker
from seewhy.app.system.stopping import stopping

WAITS = (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds before another worker replaces the first, second, ... that was lost before it answered."""


class Processes(Arbiter):  # type: ignore[misc]
    """Replaces workers without a gap: one that answers stays until its replacements answer.

    A worker that cannot start ends none of the others.
    """

    WORKER_BOOT_ERROR = APP_LOAD_ERROR = -1  # no exit status is negative: gunicorn would end all workers

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.outdated_age = 0
        """The age of the youngest worker that a reload replaces; gunicorn counts ages up from 1."""
        self.losses = 0
        """How many workers in a row have ended before they ever answered."""
        self.next_start = 0.0
        """When the next worker may begin; on the clock `time.monotonic`."""

    def introduce(self, worker: Worker) -> None:
        """gunicorn's hook `pre_fork`: make the state that the worker shares with this process."""
        worker.state = State(max(0.0, self.next_start - time.monotonic()))
        self.tell(worker)

    def tell(self, worker: Worker) -> None:
        """Tell a worker whether others answer."""
        others = (other.state for other in self.WORKERS.values() if other is not worker)
        worker.state.others_answer = any(state.answers and not state.leaves for state in others)

    def forget(self, worker: Worker) -> None:
        """gunicorn's hook `child_exit`: delay the next worker more and more while workers end before they answer.

        A worker that breaks as it starts would else be started again without end, and take the processors from others.
        """
        if worker.state.answered:  # not `answers`: a worker that ends by itself has taken that back
            self.losses = 0
        elif not worker.state.leaves:
            self.next_start = time.monotonic() + WAITS[min(self.losses, len(WAITS) - 1)]
            self.losses += 1

    def manage_workers(self) -> None:
        """Start workers that are missing, and end those that are not to stay once those that stay answer.

        gunicorn would end the oldest at once, whether or not the younger ones answer.
        """
        present = [worker for worker in self.WORKERS.values() if not worker.state.leaves]
        current = [worker for worker in present if worker.age > self.outdated_age]
        # Where there are too many, those that do not answer go first, then the oldest.
        current.sort(key=lambda worker: (worker.state.answers, worker.age))
        staying = current[max(0, len(current) - self.num_workers) :]
        for _ in range(self.num_workers - len(staying)):
            self.spawn_worker()
        is_whole = len(staying) == self.num_workers and all(worker.state.answers for worker in staying)
        for worker in present:
            if worker not in staying and (is_whole or not worker.state.answers):
                worker.state.leaves = True
                self.kill_worker(worker.pid, signal.SIGTERM)
        for worker in self.WORKERS.values():
            self.tell(worker)

    def reload(self) -> None:
        """Start new workers; `manage_workers` ends the old ones once the new ones answer.

        gunicorn would end the old ones at once, wait for that, and hear no signal meanwhile. It would also read its
        settings again, which have not changed.
        """
        self.outdated_age = self.worker_age
        self.manage_workers()

    def stop(self, graceful: bool = True) -> None:
        """Stop all workers."""
        # During an upgrade (`USR2`) another first process has workers at the same address: the service goes on.
        if not self.reexec_pid and not self.master_pid:
            stopping.set()
        for worker in self.WORKERS.values():
            worker.state.leaves = True
        super().stop(graceful)
