"""How many pictures one pass of a model may hold, so that methods of many passes stay within a budget of memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seewhy.explainers.execution.deferred_checks import settle
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.session import HookSession

MEMORY = 2**30
"""Bytes that the activations of one pass may take, unless `limit_passes` says otherwise."""

MOST = 8
"""Most pictures in one pass on a processor, where larger batches only wait for memory; elsewhere four times as many."""

_one_by_one: ContextVar[bool] = ContextVar("one_by_one", default=False)

_known: "WeakKeyDictionary[nn.Module, dict[Any, tuple[int, int]]]" = WeakKeyDictionary()
_known_lock = threading.Lock()


def limit_passes(memory: int) -> None:
    """Set the bytes that the activations of one pass may take, in the whole process; one picture always passes."""
    global MEMORY
    MEMORY = memory


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let each pass in this block hold one picture: memory was too small for more."""
    token = _one_by_one.set(True)
    try:
        yield
    finally:
        _one_by_one.reset(token)


def pass_size(module: nn.Module, images: Tensor, backward: bool, copies: int = 1) -> int:
    """Return how many pictures one pass may hold; see `MEMORY` and `MOST`.

    The first time for a module and a size of picture, one picture runs through it and its activations are counted.

    Args:
        module: in evaluation mode.
        images: (N, C, H, W), of which the first is run.
        backward: whether autograd keeps the activations of all modules, or only those of the largest live.
        copies: by how much to multiply the bytes of each picture.
    """
    if _one_by_one.get():
        return 1
    key = (tuple(images.shape[1:]), images.dtype)
    with _known_lock:
        sizes = _known.setdefault(module, {}).get(key)
    if sizes is None:
        sizes = _count(module, images[:1])
        with _known_lock:
            _known[module][key] = sizes
    total, largest = sizes
    # A module's input, its output and what it needs for a moment live at once.
    bytes_each = copies * (2 * total if backward else 4 * largest)
    limit = MOST if images.device.type == "cpu" else 4 * MOST
    return max(1, min(limit, MEMORY // max(1, bytes_each)))


def passes(total: int, size: int, progress: Progress) -> Iterator[slice]:
    """Yield slices of `size` rows of `total`, and report before each, and once more at the end."""
    if total > size:
        settle()
    for start in range(0, total, size):
        progress.at(start, total)
        yield slice(start, min(start + size, total))
    progress.at(total, total)


def _count(module: nn.Module, image: Tensor) -> tuple[int, int]:
    """Return the bytes of the outputs of all leaf modules, and of the largest."""
    sizes = [image.nbytes]

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        sizes.append(sum(leaf.nbytes for leaf in tree_leaves(output) if isinstance(leaf, Tensor)))

    with torch.no_grad(), HookSession(module) as hooks:
        hooks.after_forward(note, lambda part: next(part.children(), None) is None)
        module(image.clone())
    return sum(sizes), max(sizes)
