"""How long the stages of a request take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.engine import Done


@dataclass
class Timings:
    """How long each stage of a request took, in milliseconds."""

    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a stage."""
        self.stages[name] = self.stages.get(name, 0.0) + seconds * 1000

    def count(self, done: Done, stage: str) -> None:
        """Add the time that a job waited, and that its batch took, to a stage."""
        self.add("queue", done.queued)
        self.add(stage, done.ran)

    @property
    def header(self) -> str:
        """The value of a Server-Timing header."""
        return ", ".join(f"{name};dur={milliseconds:.1f}" for name, milliseconds in self.stages.items())
