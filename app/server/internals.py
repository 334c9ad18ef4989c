"""Use of gunicorn's internals beyond its settings and hooks, as a table that a test compares with gunicorn.

gunicorn does not guarantee them. `tests/app/test_internals.py` fails for each row whose source has changed: read the
change, check whether the reason still holds, and copy the digest that the test prints.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Internal:
    """A function or value of gunicorn.

    Attributes:
        name: its path within `gunicorn`.
        use: replaced, extended, or relied on.
        reason: why no setting or hook is enough.
        digest: the first twelve digits of its source's SHA-256; for a value, the value itself.
    """

    name: str
    use: str
    reason: str
    digest: str


INTERNALS = (
    Internal(
        "workers.gthread.ThreadWorker.accept",
        "extended",
        "an error of the system, such as too many open files, passes through it and ends the worker",
        "e44f56cf501a",
    ),
    Internal(
        "workers.gthread.ThreadWorker.set_accept_enabled",
        "extended",
        "a worker that drains keeps its socket open: clients connect to it, wait, and are cut off",
        "de784d6e9485",
    ),
    Internal(
        "workers.gthread.ThreadWorker.run",
        "relied on",
        "it stops accepting before it drains, and looks at `pending_conns`, `nr_conns` and `alive` while it does",
        "782c7161d896",
    ),
    Internal(
        "workers.gthread.ThreadWorker.murder_pending",
        "relied on",
        "it closes silent connections by their `timeout`, which is brought forward as a worker drains",
        "05b88c7febb9",
    ),
    Internal(
        "workers.gthread.STOP_KEEPALIVE_LINGER",
        "relied on",
        "idle and silent connections are closed after as many seconds",
        "2.0",
    ),
    Internal(
        "arbiter.Arbiter.manage_workers",
        "replaced",
        "it ends the oldest worker at once, whether or not the younger ones answer",
        "de0e6b4df6e4",
    ),
    Internal(
        "arbiter.Arbiter.reload",
        "replaced",
        "it ends the old workers at once, and hears no signal until they are gone",
        "77f9e7ee89a2",
    ),
    Internal(
        "arbiter.Arbiter.stop",
        "extended",
        "no hook tells workers that all of them stop, nor those that are too young to hear a signal",
        "e82ab948fed0",
    ),
    Internal(
        "arbiter.Arbiter.reap_workers",
        "relied on",
        "it ends the service for the exit statuses 3 and 4, which a model's own code may end a worker with",
        "4bc894f53cfa",
    ),
    Internal(
        "arbiter.Arbiter.spawn_worker",
        "relied on",
        "it calls the hooks `pre_fork`, `post_fork` and, as the process ends, `worker_exit`",
        "c6e0c8fc1015",
    ),
    Internal(
        "arbiter.Arbiter.kill_worker",
        "relied on",
        "it sends a worker the signal to end",
        "1f73ca156a69",
    ),
    Internal(
        "workers.base.Worker.init_process",
        "relied on",
        "it takes signals, calls the hook `post_worker_init`, and then accepts connections",
        "aaab22c2f226",
    ),
    Internal(
        "http.errors.ParseException",
        "relied on",
        "a body whose chunks are wrong raises it as it is read; it is answered with 400",
        "483a8ecf204d",
    ),
)
