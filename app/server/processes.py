"""gunicorn's main process, the arbiter: it starts and ends workers, and tells each of them whether others are ready."""

import signal
import time
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from seewhy.app.server.readiness import shared_state
from seewhy.app.server.worker import Worker
from seewhy.app.system.stopping import stopping

WAITS = (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds before the replacement of the first, second, ... worker lost before it answered."""


class Processes(Arbiter):  # type: ignore[misc]
    """Replaces workers without a gap: a worker that answers stays until its replacements answer.

    A worker that cannot start ends none of the others. Only a service that has never answered ends by itself, if its
    configuration lets no worker load the default model.
    """

    WORKER_BOOT_ERROR = APP_LOAD_ERROR = -1  # exit statuses are never negative; on these gunicorn would end all workers

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.outdated_age = 0
        """Age of the youngest worker that a reload replaces; gunicorn counts ages up from 1."""
        self.losses = 0
        """Number of workers in a row that ended before they ever answered."""
        self.next_start = 0.0
        """When the next worker may begin, by `time.monotonic`."""
        self.has_answered = False
        """Whether any worker has ever answered."""

    def introduce(self, worker: Worker) -> None:
        """gunicorn's hook `pre_fork`: create the state that the worker shares with this process."""
        worker.state = shared_state(max(0.0, self.next_start - time.monotonic()))
        self.tell(worker)

    def tell(self, worker: Worker) -> None:
        """Tell a worker whether others answer."""
        states = (sibling.state for sibling in self.WORKERS.values() if sibling is not worker)
        worker.state.others_answer = any(state.answers and not state.leaves for state in states)

    def forget(self, worker: Worker) -> None:
        """gunicorn's hook `child_exit`: delay the next worker more and more while workers end before they answer.

        Otherwise a worker that fails at start would be restarted in a loop and take processors from the others.
        """
        if worker.state.answered:  # not `answers`: a worker that ends by itself has reset that
            self.losses, self.has_answered = 0, True
        elif not worker.state.leaves:
            self.next_start = time.monotonic() + WAITS[min(self.losses, len(WAITS) - 1)]
            self.losses += 1

    def manage_workers(self) -> None:
        """Start missing workers, and end surplus ones once the workers that stay answer.

        gunicorn would end the oldest at once, whether or not the younger ones answer.

        Raises:
            HaltServer: no worker can load the default model, and none ever could.
        """
        self.has_answered |= any(worker.state.answered for worker in self.WORKERS.values())
        fault = max((worker.state.fault for worker in self.WORKERS.values()), default=0)
        if fault and not self.has_answered:
            raise HaltServer("The default model cannot be loaded: correct the error above and start again.", fault)
        present = [worker for worker in self.WORKERS.values() if not worker.state.leaves]
        current = [worker for worker in present if worker.age > self.outdated_age]
        # If there are too many workers, those that do not answer go first, then the oldest.
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

        gunicorn would end the old ones at once, wait for that, and handle no signals meanwhile. It would also reread
        its settings, which have not changed.
        """
        self.outdated_age = self.worker_age
        self.manage_workers()

    def stop(self, graceful: bool = True) -> None:
        """Stop all workers."""
        # During an upgrade (`USR2`) another arbiter has workers at the same address: the service continues.
        if not self.reexec_pid and not self.master_pid:
            stopping.value = True
        for worker in self.WORKERS.values():
            worker.state.leaves = True
        super().stop(graceful)
