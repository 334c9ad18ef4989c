"""Shards: Parquet files with one row for each picture, and tar files of overlays, written whole and then renamed."""

import json
import os
import tarfile
from dataclasses import dataclass
from io import BytesIO
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
from seewhy.app.system.allocator import trim
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.errors import reason_of
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import ClassPrediction
from seewhy.explainers.tasks.detected import BoxPrediction
from seewhy.explainers.tasks.segmentation import RegionPrediction
from seewhy.explainers.tasks.values import ValuePrediction
from seewhy.explainers.trust.proof import Proof

_ROWS, _PICTURES = ("part-", ".parquet"), ("pictures-", ".tar")
"""Prefixes and suffixes of file names, with the number of the shard in between."""

_ATTEMPTS = ".attempts"

TABLE_ROWS = 32
"""Rows that are moved to a table at once."""

TRIMMED_TABLES = 8
"""Number of tables after which free memory is returned: allocating it anew takes time."""

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


LARGE = ("map", "details", "logits")
"""Columns after these."""


@dataclass(frozen=True)
class _Details:
    """The attributes of an `Explanation` besides picture, map and regions."""

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


def row_of(
    source: Source, answer: Explanation | Exception, truth: str | None, map_type: MapType, logits: bool = False
) -> dict[str, Any]:
    """Return the row of a picture.

    Args:
        source: the picture.
        answer: its explanation, or why there is none.
        truth: label of its class, if it is known.
        map_type: dtype of the map in the row.
        logits: whether the row has all outputs of the model.
    """
    empty = dict.fromkeys((*COLUMNS, *LARGE))
    row: dict[str, Any] = {**empty, "path": source.path, "file": source.file, "truth": truth}
    if isinstance(answer, Exception):
        return {**row, "error": reason_of(answer) or type(answer).__name__}
    details = _Details(**{name: getattr(answer, name) for name in _Details.__annotations__})
    largest = float(np.abs(answer.map).max(initial=0.0)) or 1.0
    best = _best(answer)
    proof = answer.proof
    return {
        **row,
        "correct": None if truth is None else _predicts(answer, truth),
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
        "logits": answer.origin.outputs if logits and answer.origin else None,
    }


def _best(answer: Explanation) -> str:
    """Return the label of the best class."""
    return answer.predictions[0].label if answer.predictions else answer.target.label


def _predicts(answer: Explanation, label: str) -> bool | None:
    """Whether a label is the best class, or has half of the probability where classes do not exclude each other.

    None if the label is not listed, but all listed ones have half of the probability.
    """
    if answer.origin is None or answer.origin.model.head != "sigmoid":
        return _best(answer) == label
    likely = [row.label for row in answer.predictions if (row.probability or 0.0) >= 0.5]
    return label in likely or (None if len(likely) == len(answer.predictions) and len(likely) > 1 else False)


def size_of(row: dict[str, Any]) -> int:
    """Return the approximate size of a row in bytes, without compression."""
    present = [row[name] for name in LARGE if row[name] is not None]
    large = sum(value.nbytes if isinstance(value, np.ndarray) else len(value) for value in present)
    return large + sum(len(value) if isinstance(value, str) else 8 for name, value in row.items() if name not in LARGE)


def explanation_of(row: dict[str, Any], picture: Image.Image | None) -> Explanation:
    """Return the explanation in a row without an error.

    Args:
        row: see `row_of`.
        picture: the upright upload; None for a grey one.
    """
    details = _DETAILS.validate_python(json.loads(row["details"]))
    size = details.geometry.width, details.geometry.height
    return Explanation(
        picture=picture or Image.new("RGB", size, "grey"),
        map=map_of(row),
        **{name: getattr(details, name) for name in _Details.__annotations__},
    )


def map_of(row: dict[str, Any]) -> NDArray[np.float32]:
    """Return the map (h, w) in a row without an error."""
    values: NDArray[np.float32] = np.asarray(row["map"], dtype=np.float32) * np.float32(row["scale"])
    return values.reshape(row["height"], row["width"])


def table_of(rows: list[dict[str, Any]], map_type: MapType) -> pyarrow.Table:
    """Return rows as a table."""
    kind = pyarrow.from_numpy_dtype(np.dtype(map_type))
    large = {"map": pyarrow.list_(kind), "details": pyarrow.string(), "logits": pyarrow.list_(pyarrow.float32())}
    schema = pyarrow.schema({**COLUMNS, **large})
    return pyarrow.Table.from_pylist(rows, schema)


class Shard:
    """Rows, and overlays, that will be written together.

    Args:
        folder: folder of the run.
        map_type: dtype of the maps.
        pictures: whether there are overlays.
    """

    def __init__(self, folder: Path, map_type: MapType, pictures: bool) -> None:
        self._folder, self._map_type = folder, map_type
        self._name = uuid4().hex
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pyarrow.Table] = []
        self._archive: tarfile.TarFile | None = None
        self._pictures = pictures
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, row: dict[str, Any], overlay: bytes | None) -> None:
        """Take the next row, and its overlay as JPEG."""
        self._rows.append(row)
        self._length += 1
        if len(self._rows) >= TABLE_ROWS:
            self._tabulate()
        if overlay is not None:
            self._draw(row, overlay)

    def _tabulate(self) -> None:
        """Move rows to a table: Python's many small objects between large pictures would keep their memory in use."""
        self._tables.append(table_of(self._rows, self._map_type))
        self._rows = []
        if len(self._tables) % TRIMMED_TABLES == 0:
            trim()  # the memory between the remaining objects, by which the process would grow

    def _draw(self, row: dict[str, Any], overlay: bytes) -> None:
        """Add an overlay to the tar file, as a sample of WebDataset: the picture, and what it shows."""
        if self._archive is None:
            self._archive = tarfile.TarFile(_hidden(self._folder, self._name, _PICTURES[1]), "w")
        what = {name: row[name] for name in ("path", "label", "probability", "truth", "proof")}
        for kind, content in (("jpg", overlay), ("json", json.dumps(what).encode())):
            member = tarfile.TarInfo(f"{self._name[:8]}-{self._length - 1:06}.{kind}")
            member.size = len(content)
            self._archive.addfile(member, BytesIO(content))

    def write(self) -> str:
        """Write all to hidden files, and return the name by which `publish` knows them."""
        if self._rows or not self._tables:
            self._tabulate()
        _write(_hidden(self._folder, self._name, _ROWS[1]), pyarrow.concat_tables(self._tables))
        if self._archive:
            self._archive.close()
        return self._name


def count_attempt(folder: Path, number: int) -> int:
    """Note that a process begins a shard, and return how many have begun it."""
    place = folder / _ATTEMPTS
    place.mkdir(exist_ok=True)
    (place / f"{number}-{uuid4().hex}").touch()
    return sum(1 for _ in place.glob(f"{number}-*"))


def publish(folder: Path, name: str, number: int) -> None:
    """Give a shard its number. It is then complete: a killed process leaves hidden files, which `discard` removes.

    Raises:
        FileNotFoundError: there is no such shard.
    """
    for prefix, suffix in (_PICTURES, _ROWS):  # rows last: with them, the shard is there
        hidden = _hidden(folder, name, suffix)
        if suffix == _ROWS[1] or hidden.exists():
            hidden.rename(folder / f"{prefix}{number:08}{suffix}")
    for attempt in (folder / _ATTEMPTS).glob(f"{number}-*"):
        attempt.unlink()


def _hidden(folder: Path, name: str, suffix: str) -> Path:
    return folder / f".{name}{suffix}"


def discard(folder: Path) -> None:
    """Remove the files that killed processes left."""
    name = "[0-9a-f]" * len(uuid4().hex)  # others' hidden files stay
    for pattern in (f".{name}{_PICTURES[1]}", f".{name}{_ROWS[1]}", f"{_ATTEMPTS}/*-{name}"):
        for file in folder.glob(pattern):
            file.unlink()


def tidy(folder: Path) -> None:
    """Remove the files that a killed run left, and the rows with errors, so that their pictures are tried again."""
    discard(folder)
    for file in files(folder):
        table = parquet.read_table(file)
        explained = table.filter(table["error"].is_null())
        if not explained.num_rows:
            file.unlink()
        elif explained.num_rows < table.num_rows:
            part = _hidden(folder, uuid4().hex, _ROWS[1])
            _write(part, explained)
            part.rename(file)
    numbers = {_number(file, _ROWS) for file in files(folder)}
    for file in folder.glob("*".join(_PICTURES)):
        if _number(file, _PICTURES) not in numbers:
            file.unlink()


def _write(place: Path, table: pyarrow.Table) -> None:
    with open(place, "wb") as file:
        parquet.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _number(file: Path, kind: tuple[str, str]) -> int:
    return int(file.name.removeprefix(kind[0]).removesuffix(kind[1]))


def next_number(folder: Path) -> int:
    """Return the number of the next shard."""
    return max((_number(file, _ROWS) for file in files(folder)), default=-1) + 1


def files(folder: Path) -> list[Path]:
    """Return the shards, by their numbers."""
    return sorted(folder.glob("*".join(_ROWS)))


def explained_paths(folder: Path) -> set[str]:
    """Return the paths of the pictures that have a row without an error."""
    paths = set[str]()
    for file in files(folder):
        table = parquet.read_table(file, columns=["path", "error"])
        paths.update(table.filter(table["error"].is_null())["path"].to_pylist())
    return paths
