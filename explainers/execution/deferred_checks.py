"""Conditions on tensors: checked at once on a processor, at the end of a batch on a GPU.

To read a tensor of a GPU is to wait for all work that is queued there; `deferred` puts that off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Pending = list[tuple[Tensor, Callable[[], Exception]]]

_pending: ContextVar[Pending | None] = ContextVar("pending", default=None)


def require(held: Tensor, error: Callable[[], Exception]) -> None:
    """Raise an error unless a condition holds; within `deferred`, for a tensor of a GPU, at its end.

    Args:
        held: one bool.
        error: makes the error.
    """
    pending = _pending.get()
    if pending is not None and not _is_at_hand(held):
        pending.append((held, error))
    elif not held:
        raise error()


def settle() -> None:
    """Check the conditions that were put off so far, before long work that would be for nothing."""
    pending = _pending.get()
    if pending:
        conditions = list(pending)
        pending.clear()
        _raise_first(conditions)


@contextmanager
def deferred() -> Iterator[None]:
    """Check conditions on tensors of a GPU at the end of the block, in order; nested blocks leave it to the outer one.

    Where the block raises after a condition failed, the error of the condition is raised: it came first.
    """
    if _pending.get() is not None:
        yield
        return
    pending: Pending = []
    token = _pending.set(pending)
    try:
        yield
    except Exception as raised:
        _raise_first(pending, raised)
        raise
    finally:
        _pending.reset(token)
    _raise_first(pending)


def _is_at_hand(tensor: Tensor) -> bool:
    """Whether a tensor can be looked at without waiting."""
    return tensor.device.type == "cpu"


def _raise_first(pending: Pending, cause: Exception | None = None) -> None:
    """Raise the error of the first condition that does not hold."""
    for held, error in pending:  # perhaps of several devices; whoever looks at the first waits for all of its device
        if not held:
            raise error() from cause
