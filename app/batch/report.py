"""The report of a run: one HTML file with counts, distributions, pictures, and groups of similar maps."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as compute
from numpy.typing import NDArray
from PIL import Image

from seewhy.app.batch import relevance
from seewhy.app.batch.manifest import Manifest
from seewhy.explainers.imaging.png import data_url
from seewhy.explainers.imaging.render import colour
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.templates import template

_SHOWN, _GALLERY, _OF_GROUP = 12, 24, 4
"""Numbers of pictures in a list, in the gallery, and in a group."""

_SIDE = 240
"""Longest side of a picture, in pixels."""

_BINS = 20

_CLASSES, _MAPS, _FEWEST = 8, 400, 20
"""Maximum number of classes whose maps are grouped, and maximum and minimum number of maps of each."""

_REASONS = 10


@dataclass(frozen=True)
class Results:
    """The subject of a report.

    Attributes:
        manifest: manifest of the run.
        table: all columns but the maps.
        explanation: returns the explanation of a row, by its index, for drawings of a longest side.
        maps: returns the maps of rows, by their indices, as arrays (h, w) float32.
    """

    manifest: Manifest
    table: pyarrow.Table
    explanation: Callable[[int, int], Explanation]
    maps: Callable[[Sequence[int]], list[NDArray[np.float32]]]


@dataclass(frozen=True)
class Group:
    """Pictures of a class for which the network looks at the same places.

    Attributes:
        label: the explained class.
        rows: indices of their rows.
        share: share of the class's maps that were compared.
        mean: mean of the maps, each divided by its largest value.
    """

    label: str
    rows: list[int]
    share: float
    mean: NDArray[np.float32]


def report(results: Results) -> str:
    """Return the report as HTML."""
    table, generator = results.table, np.random.default_rng(0)
    explained = np.flatnonzero(compute.is_null(table["error"]).to_numpy())
    gallery = np.sort(generator.permutation(explained)[:_GALLERY])
    surest = _ascending(table, "probability")[::-1]
    wrong = surest[_equal(table["correct"], False)[surest]][:_SHOWN]
    weakest = _ascending(table, "proof_score")[:_SHOWN]
    of_classes = groups(results)
    choice = "Pictures chosen at random." if len(gallery) < len(explained) else "All explained pictures."
    tiles = _Tiles(results)
    page: str = template("seewhy.app.answers", "batch.html").render(
        manifest=results.manifest,
        options={name: value for name, value in results.manifest.options.items() if value not in (None, [], False)},
        reasons=_reasons(table),
        accuracy=compute.mean(table["correct"].cast("float32")).as_py(),
        known=table.num_rows - table["correct"].null_count,
        histograms=list(_histograms(table)),
        grades=_counts(_grades(table))[:_REASONS],
        labels=_counts(table["label"])[:_REASONS],
        lists=[
            (
                "The most confident wrong answers",
                "The caption names the explained class; the true class is in brackets.",
                wrong,
            ),
            ("The least trustworthy heatmaps", "Those with the lowest scores of the proof.", weakest),
            ("Gallery", choice, gallery),
        ],
        groups=[
            (group, _jpeg(colour(group.mean / (group.mean.max() or 1), False).resize(_side(group.mean.shape))))
            for group in of_classes
        ],
        tile=tiles,
        of_group=_OF_GROUP,
    )
    return page


def _side(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return width and height of the drawing of a mean map, whose cells are square."""
    height, width = shape
    return max(1, round(96 * width / max(shape))), max(1, round(96 * height / max(shape)))


def groups(results: Results) -> list[Group]:
    """Return the groups of the most frequent classes, for classes that have several; maps are chosen at random."""
    generator = np.random.default_rng(0)
    labels = results.table["label"]
    result = []
    for label, count in _counts(labels)[:_CLASSES]:
        if count < _FEWEST:
            break
        rows = np.sort(generator.permutation(np.flatnonzero(_equal(labels, label)))[:_MAPS])
        maps = [relevance.downsized(values) for values in results.maps(rows.tolist())]
        if len({values.shape for values in maps}) > 1:  # the model takes pictures of any size
            continue
        stacked = np.abs(np.stack(maps))
        stacked /= np.maximum(stacked.max(axis=(1, 2), keepdims=True), np.finfo(np.float32).tiny)
        numbers = relevance.clusters(stacked)
        for number in range(numbers.max() + 1 if numbers.any() else 0):
            is_member = numbers == number
            mean = stacked[is_member].mean(axis=0)
            result.append(Group(label, rows[is_member].tolist(), float(is_member.mean()), mean))
    return result


class _Tiles:
    """Draws each picture once."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._drawn: dict[int, dict[str, str]] = {}

    def __call__(self, row: int) -> dict[str, str]:
        """Return address, caption and path of a picture's overlay."""
        if row not in self._drawn:
            explanation = self._results.explanation(int(row), _SIDE)
            values = self._results.table.slice(int(row), 1).to_pylist()[0]
            truth = "" if values["correct"] in (None, True) else f" ({values['truth']})"
            score = "" if values["proof_score"] is None else f", proof {values['proof_score']:z.2f}"
            self._drawn[row] = {
                "image": _jpeg(explanation.overlay(max_side=_SIDE)),
                "caption": f"{explanation.target.label} {explanation.target.text}{truth}{score}",
                "path": values["path"],
            }
        return self._drawn[row]


def _jpeg(picture: Image.Image) -> str:
    """Return a picture, RGB, as a data URL."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return data_url(file.getvalue(), "jpeg")


def _ascending(table: pyarrow.Table, column: str) -> NDArray[np.int64]:
    """Return the rows with a number in a column, in its order."""
    numbers = table[column].to_numpy()
    rows = np.flatnonzero(~np.isnan(numbers))
    return rows[np.argsort(numbers[rows], kind="stable")]


def _equal(column: pyarrow.ChunkedArray, value: str | bool) -> NDArray[np.bool_]:
    """Return for each row whether it has this value."""
    is_equal: NDArray[np.bool_] = compute.equal(column, value).fill_null(False).to_numpy()
    return is_equal


def _grades(table: pyarrow.Table) -> pyarrow.ChunkedArray:
    """Return the grade of each proof; null where there is none."""
    is_ungraded = compute.and_(compute.is_null(table["proof"]), compute.is_valid(table["proof_score"]))
    return compute.if_else(is_ungraded, "not graded", table["proof"])


def _counts(column: pyarrow.ChunkedArray) -> list[tuple[str, int]]:
    """Return the values of a column and how often they occur, the most frequent first."""
    counts = compute.value_counts(column.drop_null()).to_pylist()
    return sorted(((row["values"], row["counts"]) for row in counts), key=lambda pair: (-pair[1], pair[0]))


def _reasons(table: pyarrow.Table) -> list[tuple[str, int, str]]:
    """Return the most frequent errors, how often each occurs, and the path of a picture with it.

    Names and numbers in a message, which differ from picture to picture, are left out.
    """
    failed = table.filter(compute.is_valid(table["error"]))
    counts, examples = Counter[str](), dict[str, str]()
    for path, error in zip(failed["path"].to_pylist(), failed["error"].to_pylist(), strict=True):
        reason = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", error)
        counts[reason] += 1
        examples.setdefault(reason, path)
    return [(reason, count, examples[reason]) for reason, count in counts.most_common(_REASONS)]


def _histograms(table: pyarrow.Table) -> Iterator[dict[str, Any]]:
    """Yield the distributions of probabilities and of proofs' scores, if there are any."""
    for title, column in (("Probability of the explained class", "probability"), ("Score of the proof", "proof_score")):
        values = table[column].drop_null().to_numpy().astype(float)
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        low, high = min(0.0, float(values.min())), max(1.0, float(values.max()))
        counts, _ = np.histogram(values, _BINS, (low, high))
        yield {
            "title": title,
            "low": f"{low:.3g}",
            "high": f"{high:.3g}",
            "median": f"{np.median(values):z.2f}",
            "bars": [(count, count / counts.max()) for count in counts.tolist()],
        }
