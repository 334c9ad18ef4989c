"""Several drawings on one sheet: feature maps ranked and labelled, and an intervention before and after."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image
from torch import Tensor

from explainers.capturing import FeatureMap
from explainers.explanation import Explanation
from explainers.geometry import Geometry
from explainers.render import Style, draw, fit, normalize, panel, panel_columns
from explainers.sweeping import Sweep

TILE = 320
"""Longest side of a tile of a contact sheet, in pixels."""


def contact_sheet(maps: Sequence[FeatureMap], picture: Image.Image, geometry: Geometry, style: Style) -> Image.Image:
    """Draw feature maps, each to its own maximum, over the part of the picture that the model saw.

    Args:
        maps: the first one is drawn first.
        picture: the upright upload, or a smaller copy of it.
        geometry: of the upload.
        style: its `max_side` is that of the sheet.
    """
    sources = {(one.source.layer, one.source.kind, one.source.call) for one in maps}
    captions = []
    for rank, one in enumerate(maps, start=1):
        where = f"{one.source.key} " if len(sources) > 1 else ""
        captions.append(f"{rank}. {where}ch {one.channel}: {one.strength:.3g}")
    return _sheet([one.map for one in maps], captions, picture, geometry, style)


def sweep_sheet(sweep: Sweep, count: int, picture: Image.Image, geometry: Geometry, style: Style) -> Image.Image | None:
    """Draw the feature maps of a sweep's first channels, with the change of the target's logit.

    Returns:
        The sheet; None where the layer's output is no grid over the picture.
    """
    if sweep.maps is None:
        return None
    ranked = sweep.channels[:count]
    captions = [f"{rank}. ch {one.channel}: {one.logit_change:+.3f}" for rank, one in enumerate(ranked, start=1)]
    return _sheet([sweep.maps[one.channel] for one in ranked], captions, picture, geometry, style)


def intervention_panel(before: Explanation, after: Explanation, style: Style) -> Image.Image:
    """Draw the heatmaps before and after edits to one scale, and their difference.

    Unless `style` has a scale of its own, the largest magnitude of both maps is that of the first two, and the
    difference, blue where the map fell and red where it rose, is drawn stronger by the factor in its caption.
    """
    change = replace(after, map=after.map - before.map, signed=True)
    largest, risen = (
        max(float(np.abs(one.raw_heatmap).max()) for one in ones) or 1.0 for ones in ((before, after), (change,))
    )
    across = 6 if style.view == "side-by-side" else 3
    widest = None if style.max_side is None else max(16, min(style.max_side // across, max(before.picture.size)))
    maps = replace(style, scale=style.scale or (0.0, largest), max_side=widest)
    stronger = "" if style.scale or not np.any(change.map) else f" x{largest / risen:.3g}"
    difference = replace(style, scale=style.scale or (-risen, risen), max_side=widest, colormap=None)
    points = (after.target.probability - before.target.probability) * 100
    label = before.target.label
    return panel(
        [before.drawn(maps), after.drawn(maps), change.drawn(difference)],
        [
            f"before: {label} {before.target.probability:.1%}",
            f"after: {label} {after.target.probability:.1%}",
            f"difference{stronger}: {points:+.1f} points",
        ],
        columns=3,
    )


def _sheet(
    maps: Sequence[Tensor], captions: Sequence[str], picture: Image.Image, geometry: Geometry, style: Style
) -> Image.Image:
    columns = panel_columns(len(maps))
    wide = 2 if style.view == "side-by-side" else 1
    widest = TILE if style.max_side is None else max(16, min(TILE, int(style.max_side / columns / wide / 1.1)))
    small = fit(picture, widest)
    scaled = geometry.scaled(*small.size)
    tiles = []
    for one in maps:
        values = one.numpy()
        signed = bool((values < 0).any())
        heatmap = normalize(scaled.lay_back(values), signed, style.scale)
        tiles.append(draw(small, heatmap, scaled, signed, style))
    return panel(tiles, captions)
