"""The choices for drawings; without NumPy and Pillow, because the help and the completion of commands use them."""

from typing import Literal, get_args

PICTURE_SUFFIXES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
"""The formats in which pictures are written, by the suffix of the file; the usual one of a format comes first."""

View = Literal["overlay", "heatmap", "side-by-side"]
VIEWS: tuple[View, ...] = get_args(View)

SegmentView = Literal["overlay", "mask", "side-by-side"]
SEGMENT_VIEWS: tuple[SegmentView, ...] = get_args(SegmentView)
"""Classes over the picture, their indices as a grey picture, or both pictures."""

WidgetView = Literal["overlay", "clear", "contour", "mask"]
WIDGET_VIEWS: tuple[WidgetView, ...] = get_args(WidgetView)
"""As on the web page: an overlay, one whose low values are clear, the strongest part outlined, or alone."""

Rank = Literal["activation", "effect"]
RANKS: tuple[Rank, ...] = get_args(Rank)
"""How the maps of a contact sheet are ordered."""

Scale = tuple[float, float] | Literal["robust"] | None

SEQUENTIAL = ("inferno", "magma", "plasma", "viridis", "cividis", "batlow", "lipari")
DIVERGING = ("icefire", "berlin", "vik", "balance")
"""Perceptually uniform colour maps, safe for colour-blind eyes; diverging ones are for signed maps."""
