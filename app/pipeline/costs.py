"""Cost of a request by its passes, and refusal of work that cannot finish before its deadline."""

from collections.abc import Sequence
from math import ceil

from seewhy.app.errors import TooMuchWorkError
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.scheduler import CLEARLY, MOST_PASSES
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.methods.catalogue import Method

UNIT_SIDE = 224
"""Side of an input, in pixels, whose forward and backward pass together cost 1."""

UNKNOWN = Passes(int(MOST_PASSES["medium"]))
"""Passes assumed for work whose number is unknown: it may be the longest, but rarely is."""


def units(passes: Passes, image_shape: tuple[int, int, int]) -> int:
    """Return the cost of passes: a forward and backward pass of a picture of 224×224 costs 1, as does anything less."""
    pixels = image_shape[1] * image_shape[2] / UNIT_SIDE**2
    return max(1, ceil(passes.total / 2 * pixels))


def announce(cost: int) -> None:
    """Add a cost to this thread's request without charging it yet.

    Raises:
        TooCostlyError: the client has less left.
    """
    record = current()
    record.cost += cost
    record.charge(record.charged, record.cost, False)


def settle() -> None:
    """Charge the cost of this thread's request, whose work has been accepted; only once per request.

    Raises:
        TooCostlyError: other requests of the client have used what was left; the work must not run then.
    """
    record = current()
    if record.charged < record.cost:
        record.charge(record.charged, record.cost, True)
        record.charged = record.cost


def most_passes(pace: float, seconds: float) -> int | None:
    """Return how many passes `require_time` accepts in a time.

    Args:
        pace: shortest time of a pass, in seconds; 0 if it is unknown.
        seconds: time that the request has, in seconds.

    Returns:
        The number; None if it is unknown.
    """
    return int(CLEARLY * seconds / pace) if pace else None


def require_time(
    passes: Passes,
    least: float,
    deadline: Deadline,
    model: str,
    methods: Sequence[Method],
    less: str | None = None,
    is_proved: bool = False,
) -> None:
    """Refuse work that takes longer than the request has, even on an idle server."""
    if least <= CLEARLY * deadline.remaining:
        return
    options = list(dict.fromkeys(name for method in methods for name in method.counted))
    names = ", ".join(method.name for method in methods)
    if is_proved:
        names += " with its proof" if len(methods) == 1 else " with their proofs"
    fewer = [f"fewer {' or '.join(options)}"] if options else []
    smaller = ", ".join([*fewer, *([less] if less else [])])
    remedy = f"{smaller} or a cheaper method" if smaller else "a cheaper method"
    raise TooMuchWorkError(
        f"This takes {passes.total:,} passes through {model} ({names}), at least {ceil(least)} s here, but a request "
        f"has {deadline.remaining:.0f} s (SEEWHY_DEADLINE). Use {remedy}: GET /methods lists their costs.",
        options[0] if options else "method",
    )
