"""The parts of gunicorn that the server uses beyond its settings and hooks, as a table, have not changed.

gunicorn does not guarantee them. A test fails for each row whose source has changed: read the change, check whether the
reason still holds, and copy the digest that the test prints.
"""

import ast
import hashlib
import inspect
import re
import tomllib
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from seewhy.app.server.processes import Processes
from seewhy.app.server.worker import Worker

INTERNALS = """
workers.gthread.ThreadWorker.accept: extended, e44f56cf501a
    an error of the system, such as too many open files, passes through it and ends the worker
workers.gthread.ThreadWorker.handle: extended, 4072c68821ae
    it waits five seconds for the first request of each connection, one after another where threads are few
workers.gthread.ThreadWorker.set_accept_enabled: extended, de784d6e9485
    a worker that drains keeps its socket open: clients connect to it, wait, and are cut off
workers.gthread.ThreadWorker.run: relied on, 782c7161d896
    it stops accepting before it drains, and looks at `pending_conns`, `nr_conns` and `alive` while it does
workers.gthread.ThreadWorker.murder_pending: relied on, 05b88c7febb9
    it closes silent connections by their `timeout`, which is brought forward as a worker drains
workers.gthread.TConn.wait_for_data: relied on, dc290da512a8
    it tells whether a connection sends a request in time
workers.gthread.STOP_KEEPALIVE_LINGER: relied on, 2.0
    idle and silent connections are closed after as many seconds
arbiter.Arbiter.manage_workers: replaced, de0e6b4df6e4
    it ends the oldest worker at once, whether or not the younger ones answer
arbiter.Arbiter.reload: replaced, 77f9e7ee89a2
    it ends the old workers at once, and hears no signal until they are gone
arbiter.Arbiter.stop: extended, e82ab948fed0
    no hook tells workers that all of them stop, nor those that are too young to hear a signal
arbiter.Arbiter.reap_workers: relied on, 4bc894f53cfa
    it ends the service for the exit statuses 3 and 4, which a model's own code may end a worker with
arbiter.Arbiter.spawn_worker: relied on, c6e0c8fc1015
    it calls the hooks `pre_fork`, `post_fork` and, as the process ends, `worker_exit`
arbiter.Arbiter.kill_worker: relied on, 1f73ca156a69
    it sends a worker the signal to end
workers.base.Worker.init_process: relied on, aaab22c2f226
    it takes signals, calls the hook `post_worker_init`, and then accepts connections
arbiter.Arbiter.halt: relied on, 6e2e0fc60126
    it ends all workers and the process, with the reason in the log and the status
arbiter.Arbiter.run: relied on, fc33ca162f6f
    it halts for `HaltServer`, which `manage_workers` raises, and calls that every second
errors.HaltServer: relied on, 4d8394b75a1e
    it has the reason and the exit status
http.errors.ParseException: relied on, 483a8ecf204d
    a body whose chunks are wrong raises it as it is read; it is answered with 400
"""
"""Functions and values of gunicorn: whether each is replaced, extended or relied on, the first twelve digits of its
source's SHA-256, or the value itself, and why no setting or hook is enough.
"""

ROWS = re.findall(r"^(\S+): (replaced|extended|relied on), (\S+)\n    (.+)$", INTERNALS, re.MULTILINE)

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


@pytest.mark.parametrize(("name", "use", "read", "reason"), ROWS, ids=[name for name, *_ in ROWS])
def test_gunicorn_is_as_it_was_read(name, use, read, reason):
    assert digest(thing(name)) == read, f"gunicorn.{name}, {use} here, has changed in {version('gunicorn')}: {reason}"


def test_all_that_is_overridden_stands_in_the_table():
    assert 2 * len(ROWS) == len(INTERNALS.strip().splitlines())
    listed = {name: use for name, use, *_ in ROWS}
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
