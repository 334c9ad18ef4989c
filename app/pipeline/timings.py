"""Timings of the stages of a request."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """Start of a stage on the monotonic clock and its duration in seconds; `batch` is the trace of its batch."""

    stage: str
    started: float
    seconds: float
    batch: Any = None


@dataclass
class Timings:
    """Durations of the stages of a request in milliseconds, and their intervals."""

    stages: dict[str, float] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(Interval(name, started, time.monotonic() - started))

    def add(self, interval: Interval) -> None:
        """Add an interval to its stage."""
        self.stages[interval.stage] = self.stages.get(interval.stage, 0.0) + interval.seconds * 1000
        self.intervals.append(interval)

    @property
    def milliseconds(self) -> dict[str, float]:
        """Milliseconds of each stage, for JSON answers."""
        return {name: round(milliseconds, 3) for name, milliseconds in self.stages.items()}

    @property
    def header(self) -> str:
        """The value of a Server-Timing header."""
        return ", ".join(f"{name};dur={milliseconds:.1f}" for name, milliseconds in self.stages.items())
