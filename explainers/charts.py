"""A trace drawn over depth: how activations and gradients change from the first module to the last."""

import io
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from explainers.statistics import Statistics
from explainers.tracing import EXPLODING, VANISHING, EventKind, Trace

_BLUE, _ORANGE, _GREEN, _RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"  # Okabe and Ito, for all eyes
_LABELS = 40
"""Most modules named along the axis."""


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
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "seewhy", "font.size": 9, "path.simplify": True}):
        figure = Figure(figsize=(12, 8.5), layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 3))
        if title:
            figure.suptitle(title, fontsize=11)
        _draw_activations(upper, [outputs.get(one) for one in paths])
        dead = {one.path: len(one.channels) / one.total for one in trace.summary.dead_maps}
        _draw_shares(middle, [outputs.get(one) for one in paths], [dead.get(path, 0.0) for path, _ in paths])
        _draw_gradients(lower, [gradients.get(one) for one in paths], [inputs.get(one) for one in paths])
        step = max(1, -(-len(paths) // _LABELS))
        shown = range(0, len(paths), step)
        names = [f"{paths[i][0] or '(model)'}" + (f" #{paths[i][1]}" if paths[i][1] else "") for i in shown]
        lower.set_xticks(list(shown), names, rotation=90, fontsize=7)
        lower.set_xlim(-0.5, max(len(paths), 1) - 0.5)
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


def _column(found: list[Statistics | None], name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    values = [None if one is None else getattr(one, name) for one in found]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _draw_activations(axes: Axes, found: list[Statistics | None]) -> None:
    x = np.arange(len(found))
    mean, std = _column(found, "mean"), _column(found, "std")
    axes.fill_between(x, _column(found, "min"), _column(found, "max"), color=_BLUE, alpha=0.12, label="min to max")
    axes.fill_between(x, mean - std, mean + std, color=_BLUE, alpha=0.35, label="mean ± std")
    axes.plot(x, mean, color=_BLUE, linewidth=1, label="mean")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylabel("output")
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left", ncols=3, fontsize=8)


def _draw_shares(axes: Axes, found: list[Statistics | None], dead: list[float]) -> None:
    x = np.arange(len(found))
    axes.bar(x, _column(found, "zeros"), width=1.0, color=_ORANGE, alpha=0.5, label="zeros")
    axes.plot(x, dead, ".", color=_RED, markersize=4, label="dead feature maps")
    axes.set_ylim(0, 1)
    axes.set_ylabel("share")
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_gradients(axes: Axes, outputs: list[Statistics | None], inputs: list[Statistics | None]) -> None:
    x = np.arange(len(outputs))
    for found, colour, label in ((inputs, _GREEN, "gradient of the input"), (outputs, _BLUE, "gradient of the output")):
        norms = _column(found, "norm")
        norms[norms <= 0] = np.nan
        axes.plot(x, norms, ".-", color=colour, linewidth=1, markersize=3, label=f"norm of the {label}")
    missing = [index for index, one in enumerate(outputs) if one is None]
    if missing:
        bottom = axes.get_xaxis_transform()
        axes.plot(missing, [0.02] * len(missing), "x", color=_RED, transform=bottom, label="no gradient")
    for limit, said in ((VANISHING, "vanishing below"), (EXPLODING, "exploding above")):
        axes.axhline(limit, color=_RED, linewidth=0.8, linestyle=":", label=said)
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm")
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left", ncols=3, fontsize=8)
