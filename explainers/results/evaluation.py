"""Evaluations: a table of methods and metrics, with intervals, for papers and programs."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.choices import LIKELY
from seewhy.explainers.errors import OptionError, counted, near_matches
from seewhy.explainers.results.display import Result
from seewhy.explainers.trust.choices import Aspect, Better

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLES = 1000
"""Resamples of the bootstrap."""

CONFIDENCE = 0.95

_ACROSS = 5
"""Maximum number of charts per row of a plot."""

_ARROWS: dict[Better, str] = {"higher": "↑", "lower": "↓"}


@dataclass(frozen=True)
class Column:
    """A column of an evaluation.

    Attributes:
        name: name of the column.
        metric: the metric's name; a metric may have several columns.
        aspect: property of maps that it measures.
        better: which values are better.
    """

    name: str
    metric: str
    aspect: Aspect
    better: Better


@dataclass(frozen=True)
class Cell:
    """The values of a metric for a method.

    Attributes:
        mean: over all pictures whose value is defined and counts; None if there is none.
        low, high: ends of the 95 % interval of the mean, by the bootstrap; None below two values.
        count: number of values in the mean.
        beats_controls: whether the method is better than each control, picture by picture: zero is beyond the bad end
            of the interval of every mean difference. None for controls, without any, and below two values.
        reason: why the metric cannot measure the method, or no picture counts; None where there is a mean.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int
    beats_controls: bool | None
    reason: str | None = None


_UNLIKELY = f"values are shares of the target's probability, which is less than {LIKELY:.0%}"


@dataclass(frozen=True, eq=False)
class Evaluation(Result):
    """The quality of several methods' maps; `save` writes ``.csv``, ``.json``, and the plot as a picture or PDF.

    Intervals are percentiles of 1000 resamples of the pictures, the same for all methods.

    Attributes:
        model: the model's name.
        pictures: their names.
        methods: the methods, controls among them.
        controls: the methods that a method should beat.
        columns: the values of metrics.
        values: by method and column, (N,) float64, one for each picture, or for each mosaic; NaN where undefined.
        failures: why pictures were left out, by name.
        reasons: by method and metric, why the metric cannot measure the method.
        left_out: by column, (N,) bool, which values do not count in means; absent if all do. Shares of the probability
            do not count if it is less than 30 %: they may be of any size, and one picture would decide the mean.
        seed: seed of the bootstrap.
    """

    model: str
    pictures: tuple[str, ...]
    methods: tuple[str, ...]
    controls: tuple[str, ...]
    columns: tuple[Column, ...]
    values: Mapping[tuple[str, str], NDArray[np.float64]]
    failures: Mapping[str, str]
    reasons: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left_out: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    seed: int = 0

    def __getitem__(self, key: tuple[str, str]) -> Cell:
        """Return the cell of a method and a column.

        Raises:
            OptionError: there is no such method or column.
        """
        if key not in self._cells:
            method, column = key
            names = self.methods if method not in self.methods else [column.name for column in self.columns]
            missing = method if method not in self.methods else column
            hint = near_matches(str(missing), names) or f"There are {', '.join(names)}."
            raise OptionError(f"The evaluation has no {missing!r}. {hint}", "methods")
        return self._cells[key]

    @cached_property
    def _cells(self) -> dict[tuple[str, str], Cell]:
        return {(method, column.name): self._cell(method, column) for column in self.columns for method in self.methods}

    def _cell(self, method: str, column: Column) -> Cell:
        values = self._counted(method, column.name)
        defined = values[np.isfinite(values)]
        low, high = self._interval(values)
        controls = [name for name in self.controls if (name, column.metric) not in self.reasons]
        beats = None
        if method not in self.controls and controls and low is not None:
            sign = 1 if column.better == "higher" else -1
            ends = [self._interval(sign * (values - self._counted(name, column.name)))[0] for name in controls]
            beats = all(end is not None and end > 0 for end in ends)
        mean, reason = float(defined.mean()) if len(defined) else None, self.reasons.get((method, column.metric))
        if reason is None and column.name in self.left_out and self.left_out[column.name].all():
            reason = f"{_UNLIKELY}. With {column.metric}.relative=false, all pictures count."
        return Cell(mean, low, high, len(defined), beats, reason)

    def _counted(self, method: str, column: str) -> NDArray[np.float64]:
        """Return the values of the pictures, NaN where they do not count."""
        values = self.values[method, column]
        return np.where(self.left_out[column], np.nan, values) if column in self.left_out else values

    @property
    def notes(self) -> list[str]:
        """The numbers of pictures that the means of columns leave out, a sentence for each number; empty if there are
        none."""
        columns: dict[int, list[Column]] = {}
        for column in self.columns:
            if column.name in self.left_out and self.left_out[column.name].any():
                columns.setdefault(int(self.left_out[column.name].sum()), []).append(column)
        return [
            f"Means of {', '.join(column.name for column in part)} leave out {number} of "
            f"{counted(len(self.pictures), 'picture')}: {_UNLIKELY}. With "
            f"{', '.join(dict.fromkeys(f'{column.metric}.relative=false' for column in part))}, all count."
            for number, part in columns.items()
        ]

    def _interval(self, values: NDArray[np.float64]) -> tuple[float | None, float | None]:
        """Return the ends of the interval of the mean; None for fewer than two values."""
        is_defined = np.isfinite(values)
        if is_defined.sum() < 2:
            return None, None
        draws = np.random.default_rng(self.seed).integers(len(values), size=(RESAMPLES, len(values)))
        sums, counts = np.where(is_defined, values, 0)[draws].sum(axis=1), is_defined[draws].sum(axis=1)
        means = sums[counts > 0] / counts[counts > 0]
        low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    def best(self, column: Column) -> str | None:
        """Return the method with the best mean of a column, controls not counted; None if none has one."""
        sign = 1 if column.better == "higher" else -1
        means = {name: self[name, column.name].mean for name in self.methods if name not in self.controls}
        ranked = {name: sign * mean for name, mean in means.items() if mean is not None}
        return max(ranked, key=ranked.__getitem__) if ranked else None

    def document(self) -> dict[str, Any]:
        """Return everything for JSON, each picture's value included; undefined ones are null."""
        return {
            "model": self.model,
            "pictures": list(self.pictures),
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "seed": self.seed,
            "metrics": [asdict(column) for column in self.columns],
            "methods": [
                {
                    "method": method,
                    "control": method in self.controls,
                    "metrics": {
                        column.name: {
                            **asdict(self[method, column.name]),
                            "values": [
                                value if math.isfinite(value) else None
                                for value in self.values[method, column.name].tolist()
                            ],
                        }
                        for column in self.columns
                    },
                }
                for method in self.methods
            ],
            "left_out": {
                name: [picture for picture, is_left_out in zip(self.pictures, rows, strict=True) if is_left_out]
                for name, rows in self.left_out.items()
            },
            "failures": dict(self.failures),
        }

    def to_csv(self) -> str:
        """Return the table: a row for each method, and for each column its mean, interval and number of values.

        The last column says which cells are empty and why.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        parts = ("mean", "low", "high", "count")
        names = [f"{column.name} {part}".removesuffix(" mean") for column in self.columns for part in parts]
        writer.writerow(["method", "control", *names, "reasons"])
        for method in self.methods:
            cells = [self[method, column.name] for column in self.columns]
            row = [getattr(cell, part) for cell in cells for part in parts]
            reasons = " ".join(f"{name}: {reason}" for name, reason in self.reasons_of(method).items())
            writer.writerow([method, str(method in self.controls).lower(), *row, reasons])
        return text.getvalue()

    def reasons_of(self, method: str) -> dict[str, str]:
        """Return why cells of a method are empty, by metric."""
        cells = {column.metric: self[method, column.name] for column in self.columns}
        return {metric: cell.reason for metric, cell in cells.items() if cell.reason}

    def plot(self) -> "Figure":
        """Return a figure of matplotlib, made without pyplot: a chart for each column; controls are grey."""
        from matplotlib.figure import Figure  # matplotlib takes long to import

        down = -(-len(self.columns) // _ACROSS)
        across = -(-len(self.columns) // down)  # as many in each row, or fewer in the last
        figure = Figure(figsize=(1.2 + 2.1 * across, down * (0.8 + 0.24 * len(self.methods))), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
        for ax, column in zip(axes, self.columns, strict=False):
            self._draw(ax, column)
        for ax in axes[len(self.columns) :]:
            ax.set_visible(False)
        return figure

    def _draw(self, ax: Any, column: Column) -> None:
        """Draw a dot and an interval for each method, the first one on top."""
        for place, method in enumerate(reversed(self.methods)):
            cell = self[method, column.name]
            colour = "0.6" if method in self.controls else "C0"
            if cell.low is not None:
                ax.plot([cell.low, cell.high], [place, place], color=colour, linewidth=1.5, solid_capstyle="butt")
            if cell.mean is not None:
                is_best = method == self.best(column)
                ax.plot([cell.mean], [place], "o", color=colour, markersize=5, markerfacecolor=None if is_best else "w")
        ax.set_title(f"{column.name} {_ARROWS[column.better]}", fontsize=9)
        ax.set_yticks(range(len(self.methods)), list(reversed(self.methods)), fontsize=8)
        ax.set_ylim(-0.7, len(self.methods) - 0.3)
        ax.tick_params(axis="x", labelsize=7)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x", color="0.9")
        ax.set_axisbelow(True)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)

    def _file_picture(self, **drawing: Any) -> Image.Image:
        for name in drawing:
            raise OptionError(f"An evaluation has one drawing; leave {name!r} out.", field=name)
        with Image.open(io.BytesIO(self._drawn("png"))) as image:
            return image.convert("RGB")

    def _drawn(self, form: str) -> bytes:
        file = io.BytesIO()
        # Without a date, equal evaluations are equal files.
        dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        self.plot().savefig(file, format=form, dpi=200, metadata=dates.get(form))
        return file.getvalue()

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {
            ".csv": lambda: [self.to_csv().encode()],
            ".json": lambda: [json.dumps(self.document(), ensure_ascii=False, indent=2).encode()],
            ".pdf": lambda: [self._drawn("pdf")],
            ".svg": lambda: [self._drawn("svg")],
        }

    def table(self) -> str:
        """Return the means as text, with their intervals: a star where a method beats all controls, ``-`` for none."""
        head = ["", *(f"{column.name} {_ARROWS[column.better]}" for column in self.columns)]
        return _aligned([head, *([method, *map(_line, self._row(method))] for method in self.methods)])

    def _row(self, method: str) -> list[Cell]:
        return [self[method, column.name] for column in self.columns]

    def _repr_html_(self) -> str:
        """Return the table for a notebook: the best mean of each column bold, intervals below, controls grey."""
        head = "".join(f"<th>{escape(column.name)} {_ARROWS[column.better]}</th>" for column in self.columns)
        best = {column.name: self.best(column) for column in self.columns}
        rows = []
        for method in self.methods:
            style = ' style="color: grey"' if method in self.controls else ""
            cells = "".join(
                _html(cell, best[column.name] == method)
                for column, cell in zip(self.columns, self._row(method), strict=True)
            )
            rows.append(f"<tr{style}><th>{escape(method)}</th>{cells}</tr>")
        note = f"{escape(self.model)}, {counted(len(self.pictures), 'picture')}; * beats all controls"
        note = "<br>".join([note, *map(escape, self.notes)])
        return f"<table><caption>{note}</caption><tr><th></th>{head}</tr>{''.join(rows)}</table>"

    def __repr__(self) -> str:
        head = f"Evaluation({self.model}, {counted(len(self.pictures), 'picture')})"
        return "\n".join([head, self.table(), *self.notes])


def _text(cell: Cell) -> str:
    if cell.mean is None:
        return "-"
    return f"{cell.mean:.3g}{'*' if cell.beats_controls else ''}"


def _line(cell: Cell) -> str:
    return _text(cell) if cell.low is None else f"{_text(cell)} ({cell.low:.3g} to {cell.high:.3g})"


def _html(cell: Cell, is_best: bool) -> str:
    tip = "" if cell.reason is None else f' title="{escape(cell.reason)}"'
    ends = "" if cell.low is None else f"<br><small>{cell.low:.3g} to {cell.high:.3g}</small>"
    return f"<td{tip}>{f'<b>{_text(cell)}</b>' if is_best else _text(cell)}{ends}</td>"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of words as lines, the first column aligned to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(word.rjust(width) for word, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
