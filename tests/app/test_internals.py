"""What the server uses of gunicorn beyond settings and hooks is as it was when it was read."""

import ast
import hashlib
import inspect
import tomllib
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from seewhy.app.server.internals import INTERNALS
from seewhy.app.server.processes import Processes
from seewhy.app.server.worker import Worker

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
