"""Comparisons: the explanations of one class of a picture by several methods, and how far they agree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import ceil
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.task import Prediction
from seewhy.explainers.imaging import render
from seewhy.explainers.results.agreement import rank_correlation
from seewhy.explainers.results.display import Drawing
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.trust.proof import proof_arrays

_PREVIEW_SIDE = 1200
"""Longest side of the drawing in a notebook, in pixels."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Drawing, Sequence[Explanation]):
    """The explanations of one class by several methods: a sequence that notebooks display, and that `save` writes.

    Attributes:
        explanations: one per method.
    """

    explanations: tuple[Explanation, ...]

    @overload
    def __getitem__(self, index: int) -> Explanation: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Explanation]: ...

    def __getitem__(self, index: int | slice) -> Explanation | Sequence[Explanation]:
        return self.explanations[index]

    def __len__(self) -> int:
        return len(self.explanations)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(explanation.method for explanation in self)

    @property
    def target(self) -> Prediction:
        """The explained class."""
        return self[0].target

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The five most probable classes."""
        return self[0].predictions

    @cached_property
    def agreement(self) -> Mapping[tuple[str, str], float | None]:
        """The rank correlation of the maps of each pair of methods, in [-1, 1]; None if a map is constant."""
        pairs = agreeing(self.explanations)
        return MappingProxyType({(first.method, second.method): value for first, second, value in pairs})

    def draw(self, style: render.Style) -> Image.Image:
        """Return the heatmaps under the target, in a style, RGB; `max_side` is that of the whole drawing."""
        columns = render.panel_columns(len(self))
        if style.max_side is not None:
            across = max(columns * (2 if style.view == "side-by-side" else 1), ceil(len(self) / columns))
            style = replace(style, max_side=max(16, int(style.max_side / across / 1.2)))  # with title and captions
        tiles = [explanation.draw_map(style) for explanation in self]
        return render.panel(tiles, self.methods, columns, title=[f"{self.target.label} {self.target.text}"])

    def document(self) -> dict[str, Any]:
        """Return everything but the picture for JSON: what each explanation has, and the agreement of each pair."""
        return {
            "agreement": [
                {"methods": list(methods), "rank_correlation": value} for methods, value in self.agreement.items()
            ],
            "explanations": [explanation.document() for explanation in self],
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz: heatmaps (T, H, W), maps, targets and methods (T)."""
        return {
            "heatmaps": np.stack([explanation.heatmap for explanation in self]),
            **raw_maps(self.explanations),
            "targets": np.array([explanation.target.name for explanation in self]),
            "methods": np.array(self.methods),
            **proof_arrays(explanation.proof for explanation in self),
        }

    def _preview(self) -> Image.Image:
        return self.overlay(max_side=_PREVIEW_SIDE)

    def __repr__(self) -> str:
        known = [value for value in self.agreement.values() if value is not None]
        ranks = f"; rank correlations {min(known):.2f} to {max(known):.2f}" if known else ""
        return f"Comparison({self.target.label} {self.target.text} by {', '.join(self.methods)}{ranks})"


def agreeing(explanations: Sequence[Explanation]) -> Iterator[tuple[Explanation, Explanation, float | None]]:
    """Yield each pair of different methods' explanations of one target, with the rank correlation of their maps."""
    for first, second in combinations(explanations, 2):
        if first.target.name == second.target.name and first.method != second.method:
            yield first, second, rank_correlation(first.map, second.map)


def raw_maps(explanations: Sequence[Explanation]) -> dict[str, NDArray[np.float32]]:
    """Return the raw maps as one array `maps` if all have one shape, otherwise as `maps_0`, `maps_1` and so on."""
    maps = [explanation.map for explanation in explanations]
    if len({array.shape for array in maps}) == 1:
        return {"maps": np.stack(maps)}
    return {f"maps_{number}": array for number, array in enumerate(maps)}
