"""What the colours of a heatmap mean: a bar, and a sentence."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from seewhy.explainers.imaging import render
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.map_drawing import MapDrawing

_OF_VALUES = {"up": ("raises", "lowers"), "down": ("lowers", "raises")}
"""What speaks for and against the rise of a value, and its fall."""


def colour_strip(signed: bool, colormap: str) -> Image.Image:
    """Return the colours from the first to the last, a pixel high."""
    return render.colour(np.linspace(-1 if signed else 0, 1, 256, dtype=np.float32)[None], signed, colormap)


def meaning_of(part: MapDrawing, method: Method | None, options: Mapping[str, Any]) -> str:
    """Return what the colours of a heatmap mean.

    Args:
        part: the heatmap.
        method: by which it was made; None if it is not in the catalogue.
        options: of the method.
    """
    if part.map.min() == part.map.max():
        return "Blank: the map has the same value everywhere."
    if method and method.family == "control":
        return "A control: its colours say nothing about the model."
    target, other = f"'{part.target.label}'", f"'{part.against.label}'" if part.against else ""
    direction = getattr(part.target, "direction", "")
    speaks, opposes = _OF_VALUES.get(direction, ("evidence for", "evidence against"))
    what = target
    if other:
        what = f"the lead of {target} over {other}" if direction else f"{target} rather than {other}"
    if method and not method.discriminates:
        return f"Bright: what the model reacts to, whether it is {what} or not."
    if part.signed and other and not direction:
        return f"Left: evidence for {other}; right: evidence for {target}."
    if part.signed:
        return f"Left: {opposes} {what}; right: {speaks} it."
    if options.get("sign") == "absolute":
        return f"Bright: matters for {what}, for or against it."
    return f"Bright: {speaks} {what}."


def ends_of(heatmap: Mapping[str, Any], drawn: Mapping[str, Any]) -> str:
    """Return which values the ends of the bar are.

    Args:
        heatmap, drawn: parts of the document about the heatmap.
    """
    if max(heatmap["max"], -heatmap["min"]) != drawn["high"] or drawn["low"] not in (0, -drawn["high"]):
        return "Values beyond the ends of the bar have the colours of the ends."
    largest = "largest value, whatever its sign" if heatmap["signed"] else "highest value"
    return f"The bar ends at the heatmap's {largest}, in units of the method."
