"""A trace drawn over depth: how activations and gradients change from the first module to the last."""

import io
from math import ceil
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from seewhy.explainers.inspection.statistics import Statistics
from seewhy.explainers.inspection.trace import EXPLODING, VANISHING, EventKind, Trace

_BLUE, _ORANGE, _GREEN, _RED, _PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"
"""Okabe's and Ito's, for all eyes."""
_WIDTHS = (5, 40, 200, 300), (7.5, 12, 12, 18)
"""So many modules make a figure so many inches wide; between and beyond, as `numpy.interp` has it."""
_MARKERS = (5, 50, 200), (8, 5, 2.5)
"""Likewise the size of the markers, in points."""
_NAMES = 3.3
"""Most modules named along an inch of the axis."""
_ROOM = 5
"""Fewer modules are drawn as wide as so many would be."""

_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def draw_trace(trace: Trace, form: Literal["svg", "png"], title: str = "") -> bytes:
    """Draw a trace: output statistics, shares of zeros and dead maps, and gradient norms, module by module.

    Args:
        trace: what to draw.
        form: svg or png.
        title: stands above.
    """
    paths = [
        (event.path, event.call) for event in trace.events if event.kind == "after_forward" and event.call is not None
    ]
    outputs = _by_call(trace, "after_forward")
    gradients = _by_call(trace, "output_gradient")
    inputs = _by_call(trace, "full_backward")
    count = len(paths)
    width = float(np.interp(count, *_WIDTHS))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "seewhy", "font.size": 9, "path.simplify": True}):
        figure = Figure(figsize=(width, 8.5), layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 3))
        if title:
            figure.suptitle(title, fontsize=11, wrap=True)
        _draw_activations(upper, [outputs.get(one) for one in paths])
        # Of modules that only pass maps on, and of those that have none, it is not known: no point is drawn.
        dead = {one.path: len(one.channels) / one.total for one in trace.summary.dead_maps}
        _draw_shares(middle, [outputs.get(one) for one in paths], [dead.get(path, np.nan) for path, _ in paths])
        _draw_gradients(lower, [gradients.get(one) for one in paths], [inputs.get(one) for one in paths])
        step = max(1, ceil(count / (width * _NAMES)))
        shown = range(0, count, step)
        names = [f"{paths[i][0] or '(model)'}" + (f" #{paths[i][1]}" if paths[i][1] else "") for i in shown]
        lower.set_xticks(list(shown), names, rotation=90, fontsize=7)
        beside = max(0, _ROOM - count) / 2 + 0.5
        lower.set_xlim(-beside, count - 1 + beside)
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0.1, "columnspacing": 1.2}
        for axes in (upper, middle, lower):
            axes.grid(alpha=0.2)
            axes.legend(**above, ncols=5, fontsize=8, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _by_call(trace: Trace, kind: EventKind) -> dict[tuple[str, int | None], Statistics]:
    """Return the statistics of each call's first tensor; those of structured values are not drawn."""
    found: dict[tuple[str, int | None], Statistics] = {}
    for event in trace.events:
        if event.kind == kind:
            for tensor in event.tensors:
                if tensor.statistics is not None:
                    found.setdefault((event.path, event.call), tensor.statistics)
    return found


def _column(found: list[Statistics | None], name: str) -> _Values:
    values = [None if one is None else getattr(one, name) for one in found]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _draw_activations(axes: Axes, found: list[Statistics | None]) -> None:
    low, high, mean, std = (_column(found, name) for name in ("min", "max", "mean", "std"))
    _draw_band(axes, low, high, color=_BLUE, alpha=0.15, label="min to max")
    _draw_band(axes, mean - std, mean + std, color=_BLUE, alpha=0.35, label="mean ± std")
    axes.plot(mean, ".-", color=_BLUE, linewidth=1, markersize=_marker(found), label="mean")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylabel("output")


def _draw_band(axes: Axes, low: _Values, high: _Values, **look: Any) -> None:
    """Fill from `low` to `high`, each module as wide as the next one: a step, for between modules there is nothing."""
    edges = np.arange(len(low) + 1) - 0.5
    axes.fill_between(np.repeat(edges, 2)[1:-1], np.repeat(low, 2), np.repeat(high, 2), linewidth=0, **look)


def _draw_shares(axes: Axes, found: list[Statistics | None], dead: list[float]) -> None:
    zeros = _column(found, "zeros")
    _draw_band(axes, 0 * zeros, zeros, color=_ORANGE, alpha=0.5, label="zeros")
    axes.plot(dead, ".", color=_RED, markersize=_marker(found) + 2, label="dead feature maps", clip_on=False)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share")


def _draw_gradients(axes: Axes, outputs: list[Statistics | None], inputs: list[Statistics | None]) -> None:
    size = _marker(outputs)
    for found, colour, label in ((inputs, _GREEN, "of the input"), (outputs, _BLUE, "of the output")):
        norms = _column(found, "norm")
        norms[norms <= 0] = np.nan
        axes.plot(norms, ".-", color=colour, linewidth=1, markersize=size, label=label)
    missing = [index for index, one in enumerate(outputs) if one is None]
    if missing:
        bottom = axes.get_xaxis_transform()
        axes.plot(missing, [0.02] * len(missing), "x", color=_RED, transform=bottom, label="no gradient")
    axes.axhline(EXPLODING, color=_RED, linewidth=1, linestyle="--", label="exploding above")
    axes.axhline(VANISHING, color=_PINK, linewidth=1.5, linestyle=":", label="vanishing below")
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm")


def _marker(found: list[Statistics | None]) -> float:
    return float(np.interp(len(found), *_MARKERS))
