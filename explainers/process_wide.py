"""The process-wide lock: for uses of PyTorch that change state shared by all threads.

Threads that *run* models need no lock: gradient mode, inference mode, autocast, the stack of `TorchFunctionMode`,
`torch.device` as a context, hooks for saved tensors and TorchScript's tracing state belong to one thread each. The
following state belongs to the process. It is saved, changed and restored, so two threads at once would restore each
other's changes, for good:

* Tracing with `torch.fx` replaces `nn.Module.__call__`, `nn.Module.__getattr__` and the functions that were given to
  `torch.fx.wrap` (torchvision's, timm's). `seewhy.explainers.execution.cut` traces.
* `torch.jit.trace` keeps the paths of traced modules in a global.
* `torch.compile` reads `nn.Module.__call__` and `__getattr__`, which must not be replaced meanwhile.
* Builders of networks: timm's `create_model` sets flags of its layers, and the user's factories may do any of this
  (quantisation and feature extraction trace with `torch.fx`).
* `TorchDispatchMode` belongs to a thread, but each restores a global that says whether any is open, which
  `torch.compile` reads. `seewhy.explainers.layers.forward_pass` follows the picture through a model with one.
* `warnings.catch_warnings` replaces the filters of the process.

All of it is done within ``with exclusive():``, and a test checks the sources for that. (The exception is
`models/hub.py`, which silences warnings during its import: an import holds Python's lock for the package, and must not
wait for this one.)
Nothing here uses other global state: the default device, global hooks, the global random generator, or forward-mode
differentiation (`torch.func.jvp`, whose levels are counted once for all threads). The default dtype is only restored.
"""

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_globals

_GLANCE = 0.1
"""Seconds between two calls of a waiting thread's `check`."""

_METHODS = ("__call__", "__getattr__", "__setattr__")

_lock = threading.RLock()


@contextmanager
def exclusive(check: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the process-wide lock. A thread that holds it may enter again.

    Args:
        check: called now and then while this thread waits; an exception ends the wait.
    """
    if check is None:
        _lock.acquire()
    else:
        check()
        while not _lock.acquire(timeout=_GLANCE):
            check()
    try:
        yield
    finally:
        _lock.release()


@contextmanager
def exclusive_if_free() -> Iterator[bool]:
    """Hold the lock and yield True; yield False at once if another thread holds it."""
    entered = _lock.acquire(blocking=False)
    try:
        yield entered
    finally:
        if entered:
            _lock.release()


@contextmanager
def silenced() -> Iterator[None]:
    """Ignore warnings, in all threads."""
    with exclusive(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def changes() -> list[str] | None:
    """Return the parts of PyTorch's state that differ from the start of the process; None while a thread may change it.

    It is also None while changes are accepted, because an import may undo its changes before it ends.

    The state comprises the functions in calls of modules, those of `math`, which `torch.fx` replaces by default, hooks
    on all modules, and the default dtype.
    """
    with exclusive_if_free() as entered:
        if not entered or _accepting:
            return None
        present = _state()
        return [name for name, value in _start.items() if present[name] != value]


@contextmanager
def accepted_changes() -> Iterator[None]:
    """Count changes in this block as the state at the start: a package of the user may instrument PyTorch.

    The block does not hold the lock: another thread that imports the same package holds Python's lock for it, and may
    be waiting for ours.
    """
    with exclusive():
        before = _state()
        _accepting.append(None)
    try:
        yield
    finally:
        with exclusive():
            _accepting.pop()
            _start.update({name: value for name, value in _state().items() if value != before[name]})


@contextmanager
def restored() -> Iterator[list[str]]:
    """Hold the lock, and restore the methods of all modules and the default dtype.

    Yields:
        A list; at the end of the block it holds the names of what was restored.
    """
    undone: list[str] = []
    with exclusive():
        before = _state()
        try:
            yield undone
        finally:
            present = _state()
            undone += [name for name in _MENDED if present[name] != before[name]]
            for name in undone:
                _MENDED[name](before[name])


def _state() -> dict[str, object]:
    """Return the state by name; unchanged values are equal."""
    # PyTorch has no public access to hooks on all modules.
    hooks = [value for name, value in sorted(vars(module_globals).items()) if name.startswith("_global_")]
    return {
        **{f"torch.nn.Module.{name}": getattr(nn.Module, name) for name in _METHODS},
        "the functions of math": tuple(vars(math).values()),
        "the hooks on all modules": tuple(tuple(value) for value in hooks if isinstance(value, dict)),
        "torch.get_default_dtype()": torch.get_default_dtype(),
    }


_MENDED: dict[str, Callable[[Any], None]] = {
    **{f"torch.nn.Module.{name}": partial(setattr, nn.Module, name) for name in _METHODS},
    "torch.get_default_dtype()": torch.set_default_dtype,
}
"""Setters of the state that a model's factory must not leave changed, because other models use it."""

_accepting: list[None] = []
"""One entry for each open block of `accepted_changes`."""

_start = _state()
