"""What a request costs, by the passes that it takes, and what is refused because it can never be done in time."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from math import ceil

from seewhy.app.errors import TooMuchWorkError
from seewhy.app.pipeline.computation import Computation
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.scheduler import CLEARLY, MOST_PASSES, Pace
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.methods.catalogue import Method
from seewhy.models import LoadedModel

UNIT_SIDE = 224
"""Side of the input, in pixels, of which one forward and one backward pass cost 1."""

UNKNOWN = Passes(int(MOST_PASSES["medium"]))
"""What work counts as whose passes nobody knows before: it may be the longest, and is rarely."""

Charge = Callable[[int, int, bool], None]
"""Takes what a request was charged before, what it costs now, and whether to count that or only to test the limit.

It raises `TooCostlyError` where that is too much."""


def uncharged(before: int, now: int, counts: bool) -> None:
    """Charge nobody: a `Charge`."""


charge: ContextVar[Charge] = ContextVar("charge", default=uncharged)
"""Charges the client of the request that this thread answers."""


def units(passes: Passes, image_shape: tuple[int, int, int]) -> int:
    """Return what passes cost: one forward and one backward pass of a picture of 224×224 cost 1, as does anything less.

    Args:
        passes: of all pictures and classes.
        image_shape: (C, H, W) of the model's input.
    """
    pixels = image_shape[1] * image_shape[2] / UNIT_SIDE**2
    return max(1, ceil(passes.total / 2 * pixels))


def announce(cost: int) -> None:
    """Add a cost to that of the request which this thread answers, and count nothing yet.

    Raises:
        TooCostlyError: its client has not so much left.
    """
    record = current()
    record.cost += cost
    charge.get()(record.charged, record.cost, False)


def settle() -> None:
    """Count what the request of this thread costs, now that its work is accepted; once, however often it asks.

    Raises:
        TooCostlyError: other requests of its client have taken what was left; nothing is to be done then.
    """
    record = current()
    if record.charged < record.cost:
        charge.get()(record.charged, record.cost, True)
        record.charged = record.cost


def spend(
    model: LoadedModel,
    computation: Computation,
    times: int,
    deadline: Deadline,
    pace: Pace,
    methods: Sequence[Method] = (),
) -> Passes | None:
    """Add what a computation costs to what the request does, and refuse what can never be done in time.

    The cost counts once the model's queue has taken the work.

    Args:
        model: that is to do it.
        computation: what to do.
        times: for how many pictures and classes.
        deadline: of the request.
        pace: of the model.
        methods: of the computation, which the refusal is about.

    Returns:
        The passes of all of it; None where nobody knows.

    Raises:
        TooMuchWorkError: it cannot be done before the deadline.
        TooCostlyError: it costs more than what is left of the client's rate.
    """
    passes = computation.passes(model)
    if passes is None:
        announce(units(UNKNOWN * times, model.spec.image_shape))
        return None
    passes *= times
    if computation.runs_whole:
        require_time(passes, pace.least(passes), deadline, model.name, methods)
    announce(units(passes, model.spec.image_shape))
    return passes


def require_time(passes: Passes, least: float, deadline: Deadline, model: str, methods: Sequence[Method]) -> None:
    """Refuse work that takes longer than the request has, even if nothing else is to be done.

    Args:
        passes: that it takes.
        least: seconds below which so many have never been done; 0 where nothing was measured.
        deadline: of the request.
        model: its name.
        methods: of the work.

    Raises:
        TooMuchWorkError: it takes clearly longer.
    """
    if least <= CLEARLY * deadline.remaining:
        return
    counted = list(dict.fromkeys(name for method in methods for name in method.counted))
    names = ", ".join(method.name for method in methods)
    less = f"fewer {' or '.join(counted)}, " if counted else ""
    raise TooMuchWorkError(
        f"This takes {passes.total:,} passes through {model} ({names}), at least {ceil(least)} s here, and a request "
        f"has {deadline.remaining:.0f} s (SEEWHY_DEADLINE). Ask for {less}fewer classes or a cheaper method: GET "
        "/methods tells what each costs.",
        counted[0] if counted else "method",
    )
