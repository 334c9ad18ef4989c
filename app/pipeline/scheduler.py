"""Scheduling of work on a model, and estimates of its duration: short work goes first, long work has its share.

Nothing here knows threads or clocks: `seewhy.app.pipeline.model_threads` calls it and measures the turns.
"""

import math
from collections.abc import Collection, Hashable
from typing import Literal, get_args

from seewhy.explainers.core.costs import Passes

Tier = Literal["short", "medium", "long"]
"""Tier of work by its passes per picture. Within a tier, batches take turns."""

TIERS: tuple[Tier, ...] = get_args(Tier)

MOST_PASSES: dict[Tier, float] = {"short": 32, "medium": 800, "long": math.inf}
"""Maximum passes, forward and backward, of work in a tier."""

WEIGHTS: dict[Tier, int] = {"short": 4, "medium": 2, "long": 2}
"""Shares of a model's time among the tiers that have work: next to short work, each of the others gets a third."""

MOST_UNDERWAY: dict[Tier, int] = {"short": 1, "medium": 2, "long": 2}
"""Maximum number of running batches of a tier, each with its memory; more wait in the queue."""

CLEARLY = 1.25
"""Factor by which the shortest possible time of work must exceed its time limit before it is refused."""

TELLING = 0.05
"""Share of its passes after which the pace of work predicts its end."""

TELLING_TURNS = 5
"""Number of turns after which it does: the first ones may be slow."""

FORGETTING = 0.2
"""Share of its weight that each measurement in the recent average loses when another one comes."""

MOST_WEIGHT = 100
"""Maximum weight of a measurement there, in passes, so that long work is forgotten, too."""


def tier_of(passes: int | None) -> Tier:
    """Return the tier of work by its passes per picture; the longest if they are unknown."""
    return TIERS[-1] if passes is None else next(tier for tier in TIERS if passes <= MOST_PASSES[tier])


class Shares:
    """Shares the time of a model among tiers by stride scheduling (Waldspurger, Weihl 1995).

    Each tier has a clock, which advances by its time divided by its weight; the tier most behind runs next, of equal
    ones the shorter. A tier that had no work has no claim to that time.
    """

    def __init__(self) -> None:
        self._clocks = dict.fromkeys(TIERS, 0.0)
        self._now = 0.0
        self._busy: frozenset[Tier] = frozenset()

    def choose(self, tiers: Collection[Tier]) -> Tier:
        """Return which of the tiers with work, one or more, runs next."""
        # A tier that comes back starts from now: it must not make up for its time without work at the cost of others.
        for tier in set(tiers) - self._busy:
            self._clocks[tier] = max(self._clocks[tier], self._now)
        self._busy = frozenset(tiers)
        tier = min(tiers, key=lambda name: (self._clocks[name], TIERS.index(name)))
        self._now = self._clocks[tier]
        return tier

    def charge(self, tier: Tier, seconds: float) -> None:
        """Count the time of a turn."""
        self._clocks[tier] += seconds / WEIGHTS[tier]


class Pace:
    """The measured time of one pass of one picture through a model, forward or backward.

    Work without backward passes is averaged separately, and so are passes through each part of a model. The shortest
    time is processor time of the thread, so that other load on the machine does not cause refusals.
    """

    def __init__(self) -> None:
        self._recent: dict[Hashable, tuple[float, float]] = {}  # passes and their seconds, the older the fewer
        self._least: dict[Hashable, float] = {}

    def learn(self, passes: Passes, seconds: float, busy: float | None = None, part: Hashable = None) -> None:
        """Add a measurement.

        Args:
            busy: processor time of the thread, in seconds; None for the whole duration.
            part: key of the part of the model; None for passes through all of it.
        """
        if not passes.total:
            return
        kind = passes.backwards > 0 if part is None else part
        least = min(seconds, seconds if busy is None else busy) / passes.total
        # The average follows the load of the machine, the least only what the model can do: it decides on refusals.
        # Passes count alike: short work that waited for the processor must not make long work look slow.
        weight = min(passes.total, MOST_WEIGHT)
        count, time = ((1 - FORGETTING) * value for value in self._recent.get(kind, (0.0, 0.0)))
        self._recent[kind] = count + weight, time + seconds * weight / passes.total
        self._least[kind] = min(least, self._least.get(kind, least))

    def least(self, passes: Passes) -> float:
        """Return the shortest time for these passes by any measurement, in seconds; 0 without one."""
        return self._of(self._least, passes)

    def usual(self, passes: Passes, part: Hashable = None) -> float:
        """Return the recent average time for these passes, in seconds; 0 without a measurement of this `part`."""
        return self._of({kind: time / count for kind, (count, time) in list(self._recent.items())}, passes, part)

    def _of(self, paces: dict[Hashable, float], passes: Passes, part: Hashable = None) -> float:
        # Backward passes take at least as long as forward passes.
        whole = paces.get(passes.backwards > 0, paces.get(False, 0.0))
        return passes.total * (whole if part is None else paces.get(part, 0.0))


def time_left(done: int, total: int, turns: int, seconds: float) -> float:
    """Return the seconds that the rest of work takes at the pace of its turns so far; 0 if it is too early to tell."""
    is_telling = turns >= TELLING_TURNS and done >= TELLING * total
    return seconds / done * (total - done) if is_telling and done else 0.0
