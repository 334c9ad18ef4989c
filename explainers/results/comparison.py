"""The comparison of several methods' explanations of a model, and the agreement of their maps."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhy.explainers.results.explanation import Explanation, agreeing, arrays_of, document_of, report_of
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

    def document(self) -> dict[str, Any]:
        """Return the JSON of the command line and of the service, with the heatmaps' values; without their times."""
        return document_of(self.explanations)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz; see `arrays_of`."""
        origin = self[0].origin
        return arrays_of(self, np.stack([part.heatmap for part in self]), origin.outputs if origin else None)

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {**super()._number_files, ".html": lambda: [report_of(self.explanations)]}
