"""The comparison of several methods that a model explains itself by, and how far they agree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import MappingProxyType

from seewhy.explainers.correlations import rank_correlation
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.map_panel import MapPanel


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(MapPanel[Explanation]):
    """The explanations of one class by several methods: a sequence that notebooks display, and that `save` writes.

    Attributes:
        explanations: one per method.
    """

    explanations: tuple[Explanation, ...]

    @cached_property
    def agreement(self) -> Mapping[tuple[str, str], float | None]:  # type: ignore[override]  # computed when it is read
        """The rank correlation of the maps of each pair of methods, in [-1, 1]; None if a map is constant."""
        pairs = agreeing(self.explanations)
        return MappingProxyType({(first.method, second.method): value for first, second, value in pairs})


def agreeing(explanations: Sequence[Explanation]) -> Iterator[tuple[Explanation, Explanation, float | None]]:
    """Yield each pair of different methods' explanations of one target, with the rank correlation of their maps."""
    for first, second in combinations(explanations, 2):
        if first.target.name == second.target.name and first.method != second.method:
            yield first, second, rank_correlation(first.map, second.map)
