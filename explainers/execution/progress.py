"""What a long explanation tells while it runs, and how it is ended early."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Progress:
    """Three callbacks of an explanation that takes many passes; each of them may be left out.

    Attributes:
        report: called before each pass with how much of how much is done, and once more at the end. What it raises
            ends the explanation.
        show: called after a pass with a function that makes the maps (N, h, w) of the passes so far. They look like the
            final ones, but for their scale. Call the function at once: it reads sums that the next pass changes.
        cancel: called before each pass and, where passes are long, within; what it raises ends the explanation.
    """

    report: Callable[[int, int], None] = _ignore
    show: Callable[[Callable[[], Tensor]], None] = _ignore
    cancel: Callable[[], None] = _ignore

    def at(self, done: int, total: int) -> None:
        """Say, before a pass, how much of how much is done."""
        self.cancel()
        self.report(done, total)

    def part(self, number: int, rounds: int) -> "Progress":
        """Return the progress of one of several rounds, each taken to be as long."""
        return replace(self, report=lambda done, total: self.report(number * total + done, rounds * total))

    @property
    def unseen(self) -> "Progress":
        """The same progress of passes whose maps so far do not look like the final ones."""
        return replace(self, show=_ignore)


SILENT = Progress()
"""Tells nobody."""
