"""A chart of a trace: activations and gradients from the first module to the last."""

import io
from collections.abc import Sequence
from math import ceil
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from seewhy.explainers.inspection.statistics import Statistics
from seewhy.explainers.inspection.trace_events import EXPLODING, VANISHING, Event, EventKind, Summary

_BLUE, _ORANGE, _GREEN, _RED, _PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"
"""The palette of Okabe and Ito, for colour-blind readers too."""
_WIDTHS = (5, 40, 200, 300), (7.5, 12, 12, 18)
"""Numbers of modules, and the figure's width in inches for each; interpolated by `numpy.interp`."""
_MARKERS = (5, 50, 200), (8, 5, 2.5)
"""Likewise numbers of modules, and the size of markers in points."""
_NAMES = 3.3
"""Maximum number of module names per inch of the axis."""
_VISIBLE = 0.01
"""Least share of zeros that can be seen in the chart."""
_NO_ZEROS = (
    "No module returns zeros. A ReLU that is called as a function is not a module,\nso its output is not shown here."
)
_LEAST_WIDTH = 5
"""Fewer modules take the width of this many."""

_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def draw_trace(events: Sequence[Event], summary: Summary, form: Literal["svg", "png"], title: str = "") -> bytes:
    """Draw a trace: output statistics, shares of zeros and dead maps, and gradient norms, module by module.

    Args:
        events, summary: events and summary of the trace.
        form: svg or png.
        title: above the chart.
    """
    paths = [(event.path, event.call) for event in events if event.kind == "after_forward" and event.call is not None]
    outputs = _by_call(events, "after_forward")
    gradients = _by_call(events, "output_gradient")
    inputs = _by_call(events, "full_backward")
    count = len(paths)
    width = float(np.interp(count, *_WIDTHS))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "seewhy", "font.size": 9, "path.simplify": True}):
        figure = Figure(figsize=(width, 8.5), layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 3))
        if title:
            figure.suptitle(title, fontsize=11, wrap=True)
        _draw_activations(upper, [outputs.get(entry) for entry in paths])
        # The number is unknown for modules that only pass maps on or have none: no point is drawn.
        dead = {entry.path: len(entry.channels) / entry.total for entry in summary.dead_maps}
        _draw_shares(middle, [outputs.get(entry) for entry in paths], [dead.get(path, np.nan) for path, _ in paths])
        _draw_gradients(lower, [gradients.get(entry) for entry in paths], [inputs.get(entry) for entry in paths])
        step = max(1, ceil(count / (width * _NAMES)))
        ticks = range(0, count, step)
        names = [f"{paths[i][0] or '(model)'}" + (f" #{paths[i][1]}" if paths[i][1] else "") for i in ticks]
        lower.set_xticks(list(ticks), names, rotation=90, fontsize=7)
        beside = max(0, _LEAST_WIDTH - count) / 2 + 0.5
        lower.set_xlim(-beside, count - 1 + beside)
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0.1, "columnspacing": 1.2}
        for axes in (upper, middle, lower):
            axes.grid(alpha=0.2)
            axes.legend(**above, ncols=5, fontsize=8, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _by_call(events: Sequence[Event], kind: EventKind) -> dict[tuple[str, int | None], Statistics]:
    """Return the statistics of each call's first tensor; those of structured values are not drawn."""
    statistics: dict[tuple[str, int | None], Statistics] = {}
    for event in events:
        if event.kind == kind:
            for tensor in event.tensors:
                if tensor.statistics is not None:
                    statistics.setdefault((event.path, event.call), tensor.statistics)
    return statistics


def _column(series: list[Statistics | None], name: str) -> _Values:
    values = [None if entry is None else getattr(entry, name) for entry in series]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _draw_activations(axes: Axes, series: list[Statistics | None]) -> None:
    low, high, mean, std = (_column(series, name) for name in ("min", "max", "mean", "std"))
    _draw_band(axes, low, high, color=_BLUE, alpha=0.15, label="min to max")
    _draw_band(axes, mean - std, mean + std, color=_BLUE, alpha=0.35, label="mean ± std")
    axes.plot(mean, ".-", color=_BLUE, linewidth=1, markersize=_marker(series), label="mean")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylabel("output")


def _draw_band(axes: Axes, low: _Values, high: _Values, **look: Any) -> None:
    """Fill from `low` to `high` in steps: there are no values between modules."""
    edges = np.arange(len(low) + 1) - 0.5
    axes.fill_between(np.repeat(edges, 2)[1:-1], np.repeat(low, 2), np.repeat(high, 2), linewidth=0, **look)


def _draw_shares(axes: Axes, series: list[Statistics | None], dead: list[float]) -> None:
    zeros = _column(series, "zeros")
    _draw_band(axes, 0 * zeros, zeros, color=_ORANGE, alpha=0.5, label="zeros")
    axes.plot(dead, ".", color=_RED, markersize=_marker(series) + 2, label="dead feature maps", clip_on=False)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share")
    if np.nanmax(zeros, initial=0) < _VISIBLE and not np.isfinite(dead).any():
        axes.text(0.5, 0.5, _NO_ZEROS, transform=axes.transAxes, ha="center", va="center", color="0.35")


def _draw_gradients(axes: Axes, outputs: list[Statistics | None], inputs: list[Statistics | None]) -> None:
    size = _marker(outputs)
    for series, colour, label in ((inputs, _GREEN, "of the input"), (outputs, _BLUE, "of the output")):
        norms = _column(series, "norm")
        norms[norms <= 0] = np.nan
        axes.plot(norms, ".-", color=colour, linewidth=1, markersize=size, label=label)
    missing = [index for index, entry in enumerate(outputs) if entry is None]
    if missing:
        bottom = axes.get_xaxis_transform()
        axes.plot(missing, [0.02] * len(missing), "x", color=_RED, transform=bottom, label="no gradient")
    axes.axhline(EXPLODING, color=_RED, linewidth=1, linestyle="--", label="exploding above")
    axes.axhline(VANISHING, color=_PINK, linewidth=1.5, linestyle=":", label="vanishing below")
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm")


def _marker(series: list[Statistics | None]) -> float:
    return float(np.interp(len(series), *_MARKERS))
