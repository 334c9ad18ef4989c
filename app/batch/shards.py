"""Shards: Parquet files with one row for each picture, written whole and then renamed."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter

from seewhy.app.batch.choices import MapType
from seewhy.app.batch.sources import Source
from seewhy.explainers.core.attribution import Diagnostic
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import ClassPrediction
from seewhy.explainers.tasks.detected import BoxPrediction
from seewhy.explainers.tasks.segmentation import RegionPrediction
from seewhy.explainers.tasks.values import ValuePrediction
from seewhy.explainers.trust.proof import Proof

_PREFIX, _SUFFIX = "part-", ".parquet"

COLUMNS: dict[str, Any] = {
    "path": pyarrow.string(),
    "file": pyarrow.string(),
    "error": pyarrow.string(),
    "truth": pyarrow.string(),
    "correct": pyarrow.bool_(),
    "target": pyarrow.string(),
    "label": pyarrow.string(),
    "probability": pyarrow.float32(),
    "score": pyarrow.float32(),
    "predicted": pyarrow.string(),
    "proof": pyarrow.string(),
    "proof_score": pyarrow.float32(),
    "height": pyarrow.int32(),
    "width": pyarrow.int32(),
    "scale": pyarrow.float32(),
}
"""Columns before the map, which is (height, width) in C order, divided by its scale: a heatmap of gradients may hold
numbers for which float16 is too small."""


LARGE = ("map", "details")
"""Columns after these."""


@dataclass(frozen=True)
class _Details:
    """What an `Explanation` has besides picture, map and regions."""

    geometry: Geometry
    signed: bool
    target: ClassPrediction | ValuePrediction | BoxPrediction | RegionPrediction
    predictions: tuple[ClassPrediction | ValuePrediction | BoxPrediction | RegionPrediction, ...]
    method: str
    layers: tuple[str, ...]
    against: ClassPrediction | ValuePrediction | BoxPrediction | RegionPrediction | None
    notes: tuple[Diagnostic, ...]
    remarks: tuple[Diagnostic, ...]
    outside: float | None
    proof: Proof | None


_DETAILS = TypeAdapter(_Details)


def row_of(source: Source, answer: Explanation | Exception, truth: str | None, map_type: MapType) -> dict[str, Any]:
    """Return the row of a picture.

    Args:
        source: the picture.
        answer: its explanation, or why there is none.
        truth: label of its class, if it is known.
        map_type: dtype of the map in the row.
    """
    empty = dict.fromkeys((*COLUMNS, *LARGE))
    row: dict[str, Any] = {**empty, "path": source.path, "file": source.file, "truth": truth}
    if isinstance(answer, Exception):
        return {**row, "error": str(answer) or type(answer).__name__}
    details = _Details(**{name: getattr(answer, name) for name in _Details.__annotations__})
    largest = float(np.abs(answer.map).max(initial=0.0)) or 1.0
    best = answer.predictions[0].label if answer.predictions else answer.target.label
    proof = answer.proof
    return {
        **row,
        "correct": None if truth is None else best == truth,
        "target": str(answer.target.name),
        "label": answer.target.label,
        "probability": answer.target.probability,
        "score": answer.target.score,
        "predicted": best,
        "proof": proof.grade if proof else None,
        "proof_score": proof.faithfulness.score if proof and proof.faithfulness else None,
        "height": answer.map.shape[0],
        "width": answer.map.shape[1],
        "scale": largest,
        "map": (answer.map / largest).astype(map_type).ravel(),
        "details": json.dumps(_DETAILS.dump_python(details, mode="json")),  # which keeps NaN
    }


def size_of(row: dict[str, Any]) -> int:
    """Return about how many bytes a row takes, without compression."""
    large = sum(row[name].nbytes if name == "map" else len(row[name]) for name in LARGE if row[name] is not None)
    return large + sum(len(value) if isinstance(value, str) else 8 for name, value in row.items() if name not in LARGE)


def explanation_of(row: dict[str, Any], picture: Image.Image | None) -> Explanation:
    """Return the explanation in a row without an error.

    Args:
        row: see `row_of`.
        picture: the upright upload; None for a grey one.
    """
    details = _DETAILS.validate_python(json.loads(row["details"]))
    size = details.geometry.width, details.geometry.height
    values: NDArray[np.float32] = np.asarray(row["map"], dtype=np.float32) * np.float32(row["scale"])
    return Explanation(
        picture=picture or Image.new("RGB", size, "grey"),
        map=values.reshape(row["height"], row["width"]),
        **{name: getattr(details, name) for name in _Details.__annotations__},
    )


def table_of(rows: list[dict[str, Any]], map_type: MapType) -> pyarrow.Table:
    """Return rows as a table."""
    kind = pyarrow.from_numpy_dtype(np.dtype(map_type))
    schema = pyarrow.schema({**COLUMNS, "map": pyarrow.list_(kind), "details": pyarrow.string()})
    return pyarrow.Table.from_pylist(rows, schema)


def write(folder: Path, tables: list[pyarrow.Table]) -> None:
    """Write a shard."""
    _write(folder / f"{_PREFIX}{uuid4().hex}{_SUFFIX}", pyarrow.concat_tables(tables))


def drop_errors(folder: Path) -> None:
    """Remove the rows with errors, so that their pictures are tried again."""
    for file in files(folder):
        table = parquet.read_table(file)
        explained = table.filter(table["error"].is_null())
        if not explained.num_rows:
            file.unlink()
        elif explained.num_rows < table.num_rows:
            _write(file, explained)


def _write(place: Path, table: pyarrow.Table) -> None:
    """Write a table whole, and then rename it: a process that is killed leaves a file that `files` does not list."""
    part = place.with_name(f".{place.name}")
    with open(part, "wb") as file:
        parquet.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    part.rename(place)


def files(folder: Path) -> list[Path]:
    """Return the shards, the oldest first."""
    shards = [(file.stat().st_mtime_ns, file) for file in folder.glob(f"{_PREFIX}*{_SUFFIX}")]
    return [file for _, file in sorted(shards)]


def done(folder: Path) -> set[str]:
    """Return the paths of the pictures that have a row without an error."""
    paths = set[str]()
    for file in files(folder):
        table = parquet.read_table(file, columns=["path", "error"])
        paths.update(table.filter(table["error"].is_null())["path"].to_pylist())
    return paths
