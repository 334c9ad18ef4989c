"""The progress of a long explanation: reports, intermediate maps, cancellation."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Progress:
    """Three optional callbacks of an explanation of many passes.

    Attributes:
        report: called before each pass with the finished and the total amount of work, and once more at the end. An
            exception ends the explanation.
        show: called after a pass with a function that returns the maps (N, h, w) of the passes so far, which differ
            from the final ones by noise and scale. Call the function at once: it reads sums that the next pass changes.
        cancel: called before each pass and within long ones; an exception ends the explanation.
    """

    report: Callable[[int, int], None] = _ignore
    show: Callable[[Callable[[], Tensor]], None] = _ignore
    cancel: Callable[[], None] = _ignore

    def at(self, count: int, total: int) -> None:
        """Report, before a pass, the finished and the total amount of work."""
        self.cancel()
        self.report(count, total)

    def part(self, number: int, rounds: int) -> "Progress":
        """Return the progress of one of several rounds of equal length."""
        return replace(self, report=lambda count, total: self.report(number * total + count, rounds * total))

    @property
    def unseen(self) -> "Progress":
        """The same progress without `show`, for passes whose maps do not look like the final ones."""
        return replace(self, show=_ignore)


SILENT = Progress()
"""A progress without callbacks."""
