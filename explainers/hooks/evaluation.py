"""The mode in which a model is explained: evaluation mode, gradient checkpointing off."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from operator import is_, is_not
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

_CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")
"""Attributes that switch checkpointing on in models of timm and transformers."""

_FLAGS = frozenset((*_CHECKPOINTING, "memory_efficient"))

_DENSENETS = {"torchvision.models.densenet", "timm.models.densenet"}
"""Python modules whose layers switch it on with `memory_efficient`; elsewhere that name may mean anything."""


class _Off:
    """The value of a flag that is switched off: false, distinct from any value of the user, and True in copies."""

    def __bool__(self) -> bool:
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (1,)


OFF = _Off()
"""The only instance."""

_holders: "WeakKeyDictionary[nn.Module, Counter[str]]" = WeakKeyDictionary()
"""How many blocks of `evaluation_mode` and `without_checkpointing` hold a flag of a module off."""
_lock = threading.Lock()


def evaluation_mode(module: nn.Module, submodules: Sequence[nn.Module] | None = None) -> AbstractContextManager[None]:
    """Run with dropout off, batch norm on its running statistics and gradient checkpointing off; then restore all.

    Several threads may hold the same modules, under one root or several: the last to leave restores a module's mode.

    Args:
        module: the root.
        submodules: all of its modules, including itself, if the caller knows them.
    """
    return _switched_off(module, ("training", *_CHECKPOINTING), submodules)


def without_checkpointing(module: nn.Module) -> AbstractContextManager[None]:
    """Run with gradient checkpointing switched off by its attributes; then restore them."""
    return _switched_off(module, _CHECKPOINTING)


@contextmanager
def _switched_off(
    module: nn.Module, names: tuple[str, ...], submodules: Sequence[nn.Module] | None = None
) -> Iterator[None]:
    """Switch off flags that are True; the last block to leave switches them on again.

    A flag that the user sets in the meantime keeps the user's value.
    """
    flags = []
    with _lock:
        parts = _submodules(module) if submodules is None else submodules
        for part in parts if _holders or _may_be_on(parts) else ():
            attributes, counts = vars(part), _holders.get(part)
            for name in (*names, "memory_efficient") if type(part).__module__ in _DENSENETS else names:
                # `training` must stay a bool, so it cannot hold OFF: only the count shows that another block holds it.
                if name == "training":
                    on = part.training or bool(counts and counts[name])
                else:
                    on = (value := attributes.get(name)) is True or value is OFF
                if on:
                    setattr(part, name, False if name == "training" else OFF)
                    _holders.setdefault(part, Counter())[name] += 1
                    flags.append((part, name))
    try:
        yield
    finally:
        with _lock:
            for part, name in flags:
                counts = _holders[part]
                counts[name] -= 1
                if not counts[name]:
                    if name == "training" or vars(part).get(name) is OFF:
                        setattr(part, name, True)
                    del counts[name]
                if not counts:
                    del _holders[part]


CHECKPOINTED = (
    "The model checkpoints gradients (`torch.utils.checkpoint`) in its own code: parts of it run again in the backward "
    "pass, or only there. Turn gradient checkpointing off (`model.set_grad_checkpointing(False)` in timm), or use "
    "another method or layer."
)


def is_checkpointed(error: Exception) -> bool:
    """Whether gradient checkpointing raised an error."""
    return isinstance(error, CheckpointError) or (
        isinstance(error, RuntimeError) and "torch.utils.checkpoint" in str(error)
    )


def runs_again() -> bool:
    """Whether this thread is inside a backward pass, where gradient checkpointing calls modules a second time."""
    # PyTorch's own checkpointing asks the same; it has no public function for it.
    return torch._C._current_graph_task_id() != -1


def _may_be_on(parts: Sequence[nn.Module]) -> bool:
    """Whether any flag of some modules may be on; no loop runs in Python, as most models have nothing to switch off."""
    attributes = list(map(vars, parts))
    return any(map(is_not, map(dict.get, attributes, repeat("training")), repeat(False))) or any(
        any(map(is_, map(dict.get, attributes, repeat(flag)), repeat(True))) for flag in _FLAGS
    )


def _submodules(module: nn.Module) -> list[nn.Module]:
    """Return the modules of a module, each once, in any order; faster than `modules`."""
    parts = {id(module): module}
    stack = [module]
    while stack:
        for child in stack.pop()._modules.values():
            if child is not None and id(child) not in parts:
                parts[id(child)] = child
                stack.append(child)
    return list(parts.values())
