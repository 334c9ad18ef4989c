"""Panels of one class's maps by several methods, without PyTorch: clients of the service have no model."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.imaging import render
from seewhy.explainers.results.display import Drawing
from seewhy.explainers.results.map_drawing import MapDrawing

if TYPE_CHECKING:
    from seewhy.explainers.core.task import Prediction
    from seewhy.explainers.results.widget import MapWidget
    from seewhy.explainers.results.widget_state import WidgetTraits

Part = TypeVar("Part", bound=MapDrawing)

_SAME = 1e-3
"""Maximum difference of maps that are the same, as a share of their maximum; due to rounding."""


class MapPanel(Drawing, Sequence[Part]):
    """Base of a sequence of one class's maps, one per method.

    Attributes:
        explanations: the maps.
        agreement: the rank correlation of the maps of each pair of methods, in [-1, 1]; None if a map is constant.
    """

    explanations: tuple[Part, ...]
    agreement: Mapping[tuple[str, str], float | None]

    @overload
    def __getitem__(self, index: int) -> Part: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...

    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        return self.explanations[index]

    def __len__(self) -> int:
        return len(self.explanations)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(explanation.method for explanation in self)

    @property
    def _method_texts(self) -> list[str]:
        return [explanation.method_text for explanation in self]

    @property
    def target(self) -> "Prediction":
        """The explained class."""
        return self[0].target

    @property
    def predictions(self) -> "Sequence[Prediction]":
        """The five most probable classes."""
        return self[0].predictions

    def draw(self, style: render.Style) -> Image.Image:
        """Return the heatmaps under the target, in a style, RGB; `max_side` is that of the whole drawing."""
        columns = render.panel_columns(len(self))
        style = style.of_tiles(columns, ceil(len(self) / columns), margin=1.2)
        tiles = [explanation.draw_map(style) for explanation in self]
        return render.panel(tiles, self._method_texts, columns, title=[f"{self.target.label} {self.target.text}"])

    def widget(self, **traits: "Unpack[WidgetTraits]") -> "MapWidget":
        """Return a widget for notebooks with the maps side by side; see `MapDrawing.widget`."""
        return self[0].widget(*self[1:], **traits)

    def __repr__(self) -> str:
        values = [value for value in self.agreement.values() if value is not None]
        if len(values) == 1:
            ranks = f"; rank correlation {values[0]:z.2f}"
        else:
            ranks = f"; rank correlations {min(values):z.2f} to {max(values):z.2f}" if values else ""
        same = "".join(f"; {', '.join(group[:-1])} and {group[-1]} have the same map" for group in self._same_maps())
        subject = f"{self.target.label} {self.target.text} by {', '.join(self._method_texts)}"
        return f"{type(self).__name__}({subject}{ranks}{same})"

    def _same_maps(self) -> list[list[str]]:
        """Return groups of methods whose maps are the same but for their scale."""
        groups: list[list[Part]] = []
        for part in self:
            group = next((group for group in groups if _are_same(group[0].map, part.map)), None)
            if group is None:
                groups.append([part])
            else:
                group.append(part)
        return [[part.method for part in group] for group in groups if len(group) > 1]


def _are_same(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Whether two maps (h, w) are the same but for their scale; a map of zeros is like no other."""
    if first.shape != second.shape or not (first.any() and second.any()):
        return False
    one, other = (values / np.abs(values).max() for values in (first, second))
    return bool(np.abs(one - other).max() <= _SAME)


def raw_maps(explanations: Sequence[MapDrawing]) -> dict[str, NDArray[np.float32]]:
    """Return the raw maps as one array `maps` if all have one shape, otherwise as `maps_0`, `maps_1` and so on."""
    maps = [explanation.map for explanation in explanations]
    if len({array.shape for array in maps}) == 1:
        return {"maps": np.stack(maps)}
    return {f"maps_{number}": array for number, array in enumerate(maps)}
