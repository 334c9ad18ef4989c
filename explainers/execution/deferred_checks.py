"""Conditions on tensors: checked at once on a processor, at the end of a batch on a GPU.

Reading a tensor of a GPU waits for all work queued there; `deferred` postpones that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Pending = list[tuple[Tensor, Callable[[], Exception]]]

_pending: ContextVar[Pending | None] = ContextVar("pending", default=None)


def require(condition: Tensor, error: Callable[[], Exception]) -> None:
    """Raise an error unless a condition holds. For a tensor of a GPU within `deferred`, this happens at its end.

    Args:
        condition: a tensor of one bool.
        error: makes the error.
    """
    pending = _pending.get()
    if pending is not None and not _is_at_hand(condition):
        pending.append((condition, error))
    elif not condition:
        raise error()


def settle() -> None:
    """Check all postponed conditions now, before long work that a failure would waste."""
    pending = _pending.get()
    if pending:
        conditions = list(pending)
        pending.clear()
        _raise_first(conditions)


@contextmanager
def deferred() -> Iterator[None]:
    """Check conditions on tensors of a GPU at the end of the block, in order; nested blocks leave it to the outer one.

    If the block raises, a failed condition's error takes precedence, because it came first.
    """
    if _pending.get() is not None:
        yield
        return
    pending: Pending = []
    token = _pending.set(pending)
    try:
        yield
    except Exception as failure:
        _raise_first(pending, failure)
        raise
    finally:
        _pending.reset(token)
    _raise_first(pending)


def _is_at_hand(tensor: Tensor) -> bool:
    """Whether a tensor can be read without waiting."""
    return tensor.device.type == "cpu"


def _raise_first(pending: Pending, cause: Exception | None = None) -> None:
    """Raise the error of the first condition that does not hold."""
    for condition, error in pending:  # the first one read waits for its whole device
        if not condition:
            raise error() from cause
