"""Who runs next on a model, and how long it will take: short work goes first, long work has its share.

Nothing here knows threads or clocks: `seewhy.app.pipeline.model_threads` asks, and says how long a turn took.
"""

import math
from collections.abc import Collection
from typing import Literal, get_args

from seewhy.explainers.core.costs import Passes

Tier = Literal["short", "medium", "long"]
"""Work by the passes of one picture. Within a tier, batches take turns."""

TIERS: tuple[Tier, ...] = get_args(Tier)

MOST_PASSES: dict[Tier, float] = {"short": 32, "medium": 800, "long": math.inf}
"""Most passes, forward and backward, of work in a tier."""

WEIGHTS: dict[Tier, int] = {"short": 4, "medium": 2, "long": 2}
"""How the time of a model is shared among the tiers that have something to do: beside short work alone, each of the
others gets a third."""

MOST_UNDERWAY: dict[Tier, int] = {"short": 1, "medium": 2, "long": 2}
"""Most batches of a tier that are under way at a time, each with its memory; more wait in the queue."""

CLEARLY = 1.25
"""How far the least time that work can take must exceed what it has, before it is refused for that."""

SMOOTHING = 0.2
"""Weight of the latest measurement in an average."""


def tier_of(passes: int | None) -> Tier:
    """Return the tier of work of so many passes a picture; of work whose passes nobody knows, the longest."""
    return TIERS[-1] if passes is None else next(tier for tier in TIERS if passes <= MOST_PASSES[tier])


class Shares:
    """Shares the time of a model among tiers by stride scheduling (Waldspurger, Weihl 1995).

    Each tier has a clock, which goes by the time that it gets over its weight; the one that is most behind runs next,
    the shorter one where two are equal. A tier that had nothing to do makes no claims for that time.
    """

    def __init__(self) -> None:
        self._clocks = dict.fromkeys(TIERS, 0.0)
        self._now = 0.0
        self._busy: frozenset[Tier] = frozenset()

    def choose(self, tiers: Collection[Tier]) -> Tier:
        """Return which of the tiers that have something to do, one or more, runs next."""
        for tier in set(tiers) - self._busy:
            self._clocks[tier] = max(self._clocks[tier], self._now)
        self._busy = frozenset(tiers)
        chosen = min(tiers, key=lambda tier: (self._clocks[tier], TIERS.index(tier)))
        self._now = self._clocks[chosen]
        return chosen

    def charge(self, tier: Tier, seconds: float) -> None:
        """Count the time of a turn."""
        self._clocks[tier] += seconds / WEIGHTS[tier]


class Pace:
    """How long a model takes for one pass of one picture, forward or backward, as far as it was measured.

    Work without backward passes is averaged by itself. Passes of a part of a model tell nothing. The least time is that
    for which the thread had a processor, so that what else the machine does meanwhile has nothing refused.
    """

    def __init__(self) -> None:
        self._usual: dict[bool, float] = {}
        self._least: dict[bool, float] = {}

    def learn(self, passes: Passes, seconds: float, busy: float | None = None) -> None:
        """Take note of a measurement.

        Args:
            passes: that were done.
            seconds: that they took.
            busy: for how many of these the thread had a processor; all, if None.
        """
        if not passes.total:
            return
        each, kind = seconds / passes.total, passes.backwards > 0
        least = min(each, each if busy is None else busy / passes.total)
        usual = self._usual.get(kind, each)
        self._usual[kind] = usual + SMOOTHING * (each - usual)
        self._least[kind] = min(least, self._least.get(kind, least))

    def least(self, passes: Passes) -> float:
        """Return the seconds below which so many passes have never been done; 0 where nothing was measured."""
        return self._of(self._least, passes)

    def usual(self, passes: Passes) -> float:
        """Return the seconds that so many passes take of late; 0 where nothing was measured."""
        return self._of(self._usual, passes)

    def _of(self, measured: dict[bool, float], passes: Passes) -> float:
        # Backward passes take no less time than forward ones do.
        each = measured.get(passes.backwards > 0, measured.get(False, 0.0))
        return passes.total * each
