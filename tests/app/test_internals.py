"""What the server uses of gunicorn beyond its settings and hooks, as a table, is as it was when it was read.

gunicorn does not guarantee it. A test fails for each row whose source has changed: read the change, check whether the
reason still holds, and copy the digest that the test prints.
"""

import ast
import hashlib
import inspect
import tomllib
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from seewhy.app.server.processes import Processes
from seewhy.app.server.worker import Worker


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
        "workers.gthread.ThreadWorker.handle",
        "extended",
        "it waits five seconds for the first request of each connection, one after another where threads are few",
        "4072c68821ae",
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
        "workers.gthread.TConn.wait_for_data",
        "relied on",
        "it tells whether a connection sends a request in time",
        "dc290da512a8",
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

OURS = {Worker: "workers.gthread.ThreadWorker", Processes: "arbiter.Arbiter"}


def thing(name):
    """Return what has this path in gunicorn."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(["gunicorn", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[length:], module)
    raise AssertionError(f"gunicorn has no {name}")


def digest(value):
    """Return a digest of the code, without lines that are comments; of what is no code, its value."""
    if not callable(value):
        return str(value)
    lines = (line.strip() for line in inspect.getsource(value).splitlines())
    code = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()[:12]


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.name)
def test_gunicorn_is_as_it_was_read(internal):
    assert digest(thing(internal.name)) == internal.digest, (
        f"gunicorn.{internal.name}, {internal.use} here, has changed in {version('gunicorn')}: {internal.reason}"
    )


def test_all_that_is_overridden_stands_in_the_table():
    listed = {internal.name: internal.use for internal in INTERNALS}
    for subclass, base in OURS.items():
        parent = thing(base)
        overridden = {name for name in vars(subclass) if hasattr(parent, name) and not name.startswith("__")}
        overridden -= {"WORKER_BOOT_ERROR", "APP_LOAD_ERROR"}  # told of by `reap_workers`
        assert overridden == {
            name.removeprefix(f"{base}.")
            for name, use in listed.items()
            if name.startswith(f"{base}.") and use in ("replaced", "extended")
        }


def test_no_private_name_of_gunicorns_is_used():
    private = {name for base in OURS.values() for name in dir(thing(base)) if name.startswith("_")}
    private |= {"_accepting", "_num_workers", "_DEFER"}
    for file in (Path(__file__).parents[2] / "app" / "server").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
                assert node.attr not in private, (file.name, node.attr)


def test_the_release_is_bound_to_the_one_that_was_read():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = (bound for bound in map(Requirement, project["dependencies"]) if bound.name == "gunicorn")
    assert bound.specifier == SpecifierSet(">=27,<27.1")
    assert version("gunicorn") in bound.specifier
