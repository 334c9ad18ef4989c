"""Times of several contestants in turn, so that other load of the machine affects all of them equally."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Run = Callable[[], Any]

SETTLE = 0.02
"""Seconds between two contestants, after which the threads of the first no longer spin."""


@dataclass(frozen=True)
class Effort:
    """The duration of a measurement.

    Attributes:
        seconds: after which no further round begins.
        least, most: rounds, whatever the seconds.
        warm: rounds whose times are dropped; one, where a round takes longer than a tenth of the seconds.
    """

    seconds: float = 20.0
    least: int = 3
    most: int = 40
    warm: int = 3


QUICK = Effort(seconds=0, least=1, most=1, warm=0)
"""One round, to see whether it runs at all."""

Times = dict[str, list[float]]
"""Seconds of each contestant in each round."""


def interleaved(runs: Mapping[str, Run], effort: Effort, finish: Callable[[], None] = lambda: None) -> Times:
    """Run all contestants once in each round, each round beginning with another one, and return their times.

    Args:
        runs: the contestants.
        effort: number of rounds.
        finish: waits until a contestant has really finished.
    """
    for _ in range(effort.warm):
        started = time.perf_counter()
        for run in runs.values():
            run()
            finish()
        if time.perf_counter() - started > effort.seconds / 10:
            break
    times: Times = {name: [] for name in runs}
    names, started, done = list(runs), time.perf_counter(), 0
    while done < effort.least or (done < effort.most and time.perf_counter() - started < effort.seconds):
        first = done % len(names)
        gc.collect()
        for name in names[first:] + names[:first]:
            time.sleep(SETTLE)
            begun = time.perf_counter()
            result = runs[name]()
            finish()
            times[name].append(time.perf_counter() - begun)
            del result
        done += 1
    return times


def ratio(times: Times, name: str, peer: str) -> float | None:
    """Return the median over the rounds of one contestant's time over another's; None if one did not run."""
    if name not in times or peer not in times:
        return None
    return median(seconds / peer_seconds for seconds, peer_seconds in zip(times[name], times[peer], strict=True))
