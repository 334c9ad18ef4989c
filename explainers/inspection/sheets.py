"""What inspections draw: captured and swept feature maps on a sheet, heatmaps before and after edits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from seewhy.explainers.execution.accelerated import TOLERANCE
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import Style, magnitude, panel
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.results.explanation import Explanation

if TYPE_CHECKING:  # they draw themselves by what is here
    from seewhy.explainers.inspection.capture import FeatureMap
    from seewhy.explainers.inspection.sweep import Sweep


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
    return sheet([one.map.numpy() for one in maps], captions, title, picture, geometry, style)


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
    return sheet([sweep.maps[one.channel].numpy() for one in ranked], captions, title, picture, geometry, style)


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
