"""Several drawings on one sheet: feature maps ranked and labelled, and an intervention before and after."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from explainers.accelerated import TOLERANCE
from explainers.geometry import Geometry
from explainers.render import Style, draw, ends, fit, magnitude, normalize, panel, panel_columns

if TYPE_CHECKING:  # they draw themselves by what is here
    from explainers.capturing import FeatureMap
    from explainers.explanation import Explanation
    from explainers.sweeping import Sweep

_TILE = 320 * 240
"""Pixels of a tile, whatever its proportions; fewer where the sheet would not fit its longest side."""
_COLUMN = 144
"""Least width of a column, for its captions."""
_BAR = 20
"""Height of a line of text."""


def contact_sheet(
    maps: "Sequence[FeatureMap]", picture: Image.Image, geometry: Geometry, style: Style, by_effect: bool = False
) -> Image.Image:
    """Draw feature maps, each to its own maximum, over the part of the picture that the model saw.

    Args:
        maps: the first one is drawn first.
        picture: the upright upload, or a smaller copy of it.
        geometry: of the upload.
        style: its `max_side` is that of the sheet.
        by_effect: whether the maps are ranked by effect, as `strongest` was told.
    """
    sources = {(one.source.layer, one.source.kind, one.source.call) for one in maps}
    captions = []
    for rank, one in enumerate(maps, start=1):
        where = f"{one.source.key} " if len(sources) > 1 else ""
        captions.append(f"{rank}. {where}ch {one.channel}: {one.strength:.3g}")
    what = maps[0].source.key if len(sources) == 1 else f"{len(sources)} captured tensors"
    measure = "effect on the logit" if by_effect else "mean magnitude"
    title = f"{what}: {len(maps)} strongest by {measure}"
    return _sheet([one.map for one in maps], captions, title, picture, geometry, style)


def sweep_sheet(
    sweep: "Sweep", count: int, picture: Image.Image, geometry: Geometry, style: Style
) -> Image.Image | None:
    """Draw the feature maps of a sweep's first channels, with the change of the target's logit.

    Returns:
        The sheet; None where the layer's output is no grid over the picture.
    """
    if sweep.maps is None:
        return None
    ranked = sweep.channels[:count]
    captions = [f"{rank}. ch {one.channel}: {one.logit_change:+.3f}" for rank, one in enumerate(ranked, start=1)]
    title = f"{sweep.layer or '.'}: {len(ranked)} channels by the change of the logit"
    return _sheet([sweep.maps[one.channel] for one in ranked], captions, title, picture, geometry, style)


def region_sheet(explanation: "Explanation", style: Style) -> Image.Image:
    """Draw the regions of an explanation, each with its best class and what it adds to the score."""
    captions = [
        f"{rank}. {one.predictions[0].label} {one.predictions[0].probability:.0%}: {one.gain:+.2f}"
        for rank, one in enumerate(explanation.regions, start=1)
    ]
    maps = [torch.from_numpy(one.map) for one in explanation.regions]
    title = f"{explanation.layers[0]}: regions by what they add to {explanation.target.label}, and their best classes"
    return _sheet(maps, captions, title, explanation.picture, explanation.geometry, style)


def intervention_panel(before: "Explanation", after: "Explanation", style: Style) -> Image.Image:
    """Draw the heatmaps before and after edits to one scale, and their difference.

    Unless `style` has a scale of its own, the largest magnitude of both maps is that of the first two, and the
    difference, blue where the map fell and red where it rose, over the picture in grey, is drawn stronger by the factor
    in its caption. One that is smaller than what the ways to run a model differ by is none.
    """
    grey = after.picture.convert("L").convert("RGB")
    change = replace(after, map=after.map - before.map, signed=True, picture=grey)
    largest = max(_magnitude(one, style) for one in (before, after)) or 1.0
    if (risen := _magnitude(change, style)) <= TOLERANCE * largest:
        change, risen = replace(change, map=np.zeros_like(change.map)), 1.0
    fixed = style.scale if isinstance(style.scale, tuple) else None
    across = 6 if style.view == "side-by-side" else 3
    widest = None if style.max_side is None else max(16, min(style.max_side // across, max(before.picture.size)))
    maps = replace(style, scale=fixed or (0.0, largest), max_side=widest)
    difference = replace(style, scale=fixed or (-risen, risen), max_side=widest, colormap=None)
    name = "no difference"
    if np.any(change.map):
        name = "difference" if fixed else f"difference x{largest / risen:.3g}"
    points = round((after.target.probability - before.target.probability) * 100, 1) + 0.0  # which has no sign if zero
    label = before.target.label
    return panel(
        [before.drawn_map(maps), after.drawn_map(maps), change.drawn_map(difference)],
        [
            f"before: {label} {before.target.probability:.1%}",
            f"after: {label} {after.target.probability:.1%}",
            f"{name}: {points:+.1f} points",
        ],
        columns=3,
    )


def _magnitude(explanation: "Explanation", style: Style) -> float:
    """Return the largest magnitude of a map on the picture; of a robust scale that of the map itself."""
    values = explanation.map if style.scale == "robust" else explanation.geometry.lay(explanation.map)
    return magnitude(values, style.scale)


def _sheet(
    maps: Sequence[Tensor],
    captions: Sequence[str],
    title: str,
    picture: Image.Image,
    geometry: Geometry,
    style: Style,
) -> Image.Image:
    size, columns, width = _layout(len(maps), picture.size, style)
    small = picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    scaled = geometry.scaled(*size)
    tiles = []
    for one in maps:
        values = one.numpy()
        signed = bool((values < 0).any())
        heatmap = normalize(scaled.lay(values), signed, ends(values, style.scale))
        tiles.append(draw(small, heatmap, scaled, signed, style))
    own = "99th percentile" if style.scale == "robust" else "maximum"
    drawn = "all maps to one scale" if isinstance(style.scale, tuple) else f"each map to its own {own}"
    return fit(panel(tiles, captions, columns, width=width, bar=_BAR, title=(title, drawn)), style.max_side)


def _layout(count: int, size: tuple[int, int], style: Style) -> tuple[tuple[int, int], int, int]:
    """Return the size of the picture in a tile, how many columns make the tiles largest, and how wide these are."""
    width, height = size
    across = width * (2 if style.view == "side-by-side" else 1)
    limit = style.max_side
    column = _COLUMN if limit is None else min(_COLUMN, limit // panel_columns(count))
    options = []
    for columns in range(1, count + 1):
        rows = ceil(count / columns)
        scale = sqrt(_TILE / (width * height))
        if limit is not None:
            scale = min(scale, limit / columns / across, ((limit - 2 * _BAR) / rows - _BAR) / height)
        longest = max(columns * max(scale * across, column), rows * (scale * height + _BAR))
        if columns == 1 or limit is None or columns * column <= limit:
            options.append((-scale, longest, columns))
    scale, _, columns = min(options)
    return (max(1, int(-scale * width)), max(1, int(-scale * height))), columns, column
