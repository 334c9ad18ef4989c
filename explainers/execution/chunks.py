"""Chunks: how many pictures share a pass of the model, so that methods of many passes stay within a memory budget."""

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
from seewhy.explainers.hooks.selection import is_leaf
from seewhy.explainers.hooks.session import HookSession

MEMORY = 2**30
"""Maximum bytes of the activations of one pass; `limit_chunks` sets another number."""

MOST = 8
"""Maximum pictures in one pass on a CPU, where larger batches only wait for memory; elsewhere four times this."""

_one_by_one: ContextVar[bool] = ContextVar("one_by_one", default=False)

_activation_bytes: "WeakKeyDictionary[nn.Module, dict[Any, tuple[int, int]]]" = WeakKeyDictionary()
_lock = threading.Lock()


def limit_chunks(memory: int) -> None:
    """Set the maximum bytes of the activations of one pass, for the whole process; one picture always fits."""
    global MEMORY
    MEMORY = memory


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let each pass in this block hold one picture, after a pass of more ran out of memory."""
    token = _one_by_one.set(True)
    try:
        yield
    finally:
        _one_by_one.reset(token)


def chunk_size(module: nn.Module, images: Tensor, backward: bool, copies: int = 1) -> int:
    """Return how many pictures one pass may hold, at least 1; see `MEMORY` and `MOST`.

    The first call for a module and a size of picture runs one picture, and counts its activations.

    Args:
        module: in evaluation mode.
        images: (N, C, H, W); the first one runs.
        backward: whether a backward pass follows, for which autograd keeps the activations of all modules.
        copies: factor on the bytes of each picture.
    """
    if _one_by_one.get():
        return 1
    key = (tuple(images.shape[1:]), images.dtype)
    with _lock:
        sizes = _activation_bytes.setdefault(module, {}).get(key)
    if sizes is None:
        sizes = _count(module, images[:1])
        with _lock:
            _activation_bytes[module][key] = sizes
    total, largest = sizes
    # Without a backward pass a module's input, its output and its temporary tensors live at once: four of the largest.
    bytes_each = copies * (2 * total if backward else 4 * largest)
    limit = MOST if images.device.type == "cpu" else 4 * MOST
    return max(1, min(limit, MEMORY // max(1, bytes_each)))


def chunks(total: int, size: int, progress: Progress) -> Iterator[slice]:
    """Yield slices of at most `size` rows of `total`; report before each, and at the end."""
    if total > size:
        settle()  # long work must not start on outputs that a pending check will refuse
    for start in range(0, total, size):
        progress.at(start, total)
        yield slice(start, min(start + size, total))
    progress.at(total, total)


def _count(module: nn.Module, image: Tensor) -> tuple[int, int]:
    """Return the bytes of the outputs of all leaf modules, and those of the largest output."""
    sizes = [image.nbytes]

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        sizes.append(sum(leaf.nbytes for leaf in tree_leaves(output) if isinstance(leaf, Tensor)))

    with torch.no_grad(), HookSession(module) as hooks:
        hooks.after_forward(note, is_leaf)
        module(image.clone())
    return sum(sizes), max(sizes)
