"""A run over a data set: explanations of pictures that have none yet, written as shards."""

import fcntl
import json
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice, tee
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pyarrow
from tqdm.auto import tqdm

from seewhy.app.batch import shards
from seewhy.app.batch.choices import ENGINES, MAP_TYPES, Engine, MapType
from seewhy.app.batch.manifest import Manifest, manifest_of, now
from seewhy.app.batch.reader import Batch, open_batch
from seewhy.app.batch.sources import DataSource, Source, described, sources
from seewhy.explainers.errors import ExplainerError, OptionError, TargetError
from seewhy.explainers.explain import Layers, explainers_of
from seewhy.explainers.many import explain_many
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.tasks.classification import class_index
from seewhy.explainers.trust.calibration import Calibration
from seewhy.explainers.trust.choices import AREA, Extent, Fill
from seewhy.models import LoadedModel, load_model

SHARD_ROWS = 1024
"""Rows of a shard."""

_TABLE_ROWS = 32
"""Rows that are moved to a table at once."""

SHARD_SECONDS = 60.0
"""After this time a shard is written with fewer rows, so that a run that is killed loses a minute."""

_OF_QUESTIONS = ("target", "layer", "against", "proof", "proof_area", "proof_fill", "proof_calibration")
"""Options that are not the method's."""

_TRIAL_BATCHES = 3
"""Batches that a dry run explains; it does not measure the first."""


class TooManyErrorsError(ExplainerError):
    """More pictures of a run failed than it allows. Its rows are kept."""


@dataclass(frozen=True)
class Forecast:
    """What a run would cost, as measured on a few pictures.

    Attributes:
        pictures: of the data set.
        remaining: those without a row.
        passes: of the model for a picture, at most; None if they depend on the picture.
        seconds: for the remaining pictures, by those that were tried.
        bytes: of their shards, without compression.
    """

    pictures: int
    remaining: int
    passes: int | None
    seconds: float
    bytes: int


@dataclass(frozen=True)
class _Run:
    """The question about all pictures, and where its rows go.

    Attributes:
        question: further arguments of `explain_many`.
        passes: of the model for a picture, at most; None if they depend on the picture.
    """

    model: LoadedModel
    method: str
    question: dict[str, Any]
    batch_size: int
    map_type: MapType
    folder: Path
    manifest: Manifest
    passes: int | None

    def rows(self, remaining: Iterator[Source]) -> Generator[dict[str, Any]]:
        """Yield the row of each picture, in order."""
        named, opened = tee(remaining)  # which holds the pictures that are read ahead, two batches
        pictures = (source.open for source in opened)
        size = self.batch_size
        answers = explain_many(self.model, pictures, self.method, batch_size=size, on_error="yield", **self.question)
        for source, answer in zip(named, answers, strict=True):
            yield shards.row_of(source, answer, _truth(self.model, source.truth), self.map_type)


def batch(
    source: DataSource,
    out: str | os.PathLike[str],
    model: str | LoadedModel = "efficientnet_lite0",
    method: str | None = None,
    target: int | str | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    engine: Engine = "local",
    batch_size: int = 8,
    map_type: MapType = "float16",
    max_errors: int | None = None,
    progress: bool = True,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Batch:
    """Explain the pictures of a data set, and write their maps to a folder of Parquet files.

    A run that was stopped goes on where it was: only pictures without a row, or with an error, are explained. A picture
    that cannot be read or explained has a row with the error.

    Args:
        source: a folder, with one folder for each class if these are known; a glob, a picture, a Parquet file, or an
            address such as ``s3://bucket/folder``; a list of these; or a `torch.utils.data.Dataset` of pictures as
            `explain` takes them, or of pairs of these and their classes.
        out: the folder; it is created.
        model: a name, or a `LoadedModel`.
        method, layer, against, proof, proof_area, proof_fill, proof_calibration: as `explain`, the same for all
            pictures.
        target: class index or label, the same for all pictures; None for the most probable class of each.
        engine: ``local``, this process.
        batch_size: pictures in a pass, at least 1.
        map_type: dtype of the maps in the files, ``float16`` or ``float32``.
        max_errors: pictures that may fail before the run stops; None for any number.
        progress: whether to show a bar with the rate, the remaining time and the errors.
        options: the method's own options.

    Returns:
        The results, also of earlier runs in the folder.

    Raises:
        OptionError: an invalid option, a source without pictures, or a folder with the results of another run.
        TooManyErrorsError: more pictures than `max_errors` failed; their rows, and all before, are written.
        LayerError, TargetError, ModelError: as `explain` and `load_model`.
        OSError: the folder cannot be written.
    """
    question = {"target": target, "layer": layer, "against": against, "proof": proof, **options}
    question |= {"proof_area": proof_area, "proof_fill": proof_fill, "proof_calibration": proof_calibration}
    run = _planned(source, out, model, method, question, engine, batch_size, map_type)
    total = sum(1 for _ in sources(source, named_only=True))
    run.folder.mkdir(parents=True, exist_ok=True)
    with _alone(run.folder):
        manifest = replace(_earlier(run) or run.manifest, finished=None)
        manifest.write(run.folder)
        shards.drop_errors(run.folder)
        explained = shards.done(run.folder)
        remaining = (item for item in sources(source) if item.path not in explained)
        done, errors = len(explained), 0
        with (
            tqdm(total=max(total, done), initial=done, unit="picture", disable=not progress, smoothing=0.1) as bar,
            _Writer(run.folder, map_type) as writer,
            closing(run.rows(remaining)) as rows,
        ):
            for row in rows:
                writer.add(row)
                bar.update()
                if row["error"] is None:
                    done += 1
                    continue
                errors += 1
                bar.set_postfix(errors=errors)
                if max_errors is not None and errors > max_errors:
                    raise TooManyErrorsError(
                        f"{errors} pictures failed, more than max_errors={max_errors}; the last one: "
                        f"{row['path']}: {row['error']}"
                    )
        replace(manifest, finished=now(), pictures=done, errors=errors).write(run.folder)
    return open_batch(run.folder)


def forecast(
    source: DataSource,
    out: str | os.PathLike[str],
    model: str | LoadedModel = "efficientnet_lite0",
    method: str | None = None,
    target: int | str | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    map_type: MapType = "float16",
    **options: Any,
) -> Forecast:
    """Return what `batch` with the same arguments would cost; it explains a few pictures and writes nothing.

    Raises:
        OptionError, LayerError, TargetError, ModelError: as `batch`.
    """
    proof = {"proof": False, "proof_area": AREA, "proof_fill": "blur", "proof_calibration": None}
    question = {"target": target, "layer": layer, "against": against, **proof, **options}
    run = _planned(source, out, model, method, question, "local", batch_size, map_type)
    _earlier(run)
    explained = shards.done(run.folder)
    paths = [item.path for item in sources(source, named_only=True)]
    remaining = sum(path not in explained for path in paths)
    tries = (item for item in sources(source) if item.path not in explained)
    marks, size = [monotonic()], 0
    for row in islice(run.rows(tries), _TRIAL_BATCHES * batch_size):
        marks.append(monotonic())
        size += shards.size_of(row)
    tried = len(marks) - 1
    first = batch_size if tried > batch_size else 0  # the first batch may compile the model
    seconds = (marks[-1] - marks[first]) / (tried - first) * remaining if tried else 0.0
    return Forecast(len(paths), remaining, run.passes, seconds, size * remaining // max(1, tried))


def _planned(
    source: DataSource,
    out: str | os.PathLike[str],
    model: str | LoadedModel,
    method: str | None,
    question: dict[str, Any],
    engine: str,
    batch_size: int,
    map_type: MapType,
) -> _Run:
    """Return the run of some arguments of `batch`, checked."""
    if engine not in ENGINES:
        raise OptionError(f"engine is {engine!r}; it must be {' or '.join(map(repr, ENGINES))}.", "engine")
    if map_type not in MAP_TYPES:
        raise OptionError(f"map_type is {map_type!r}; it must be {' or '.join(map(repr, MAP_TYPES))}.", "map_type")
    for name in ("target", "against"):
        if not isinstance(question[name], int | str | None):
            raise OptionError(f"{name} is {question[name]!r}; a batch takes the index or label of a class.", name)
    loaded = load_model(model) if isinstance(model, str) else model
    entry = get_method(method or loaded.task.default_method)
    # Checks the question too, before the folder is touched.
    explain_many(loaded, [], entry.name, batch_size=batch_size, on_error="yield", **question)
    own = {name: value for name, value in question.items() if name not in _OF_QUESTIONS}
    (explainer,) = explainers_of([entry], question["layer"], own, loaded.module)
    asked = {name: value for name, value in question.items() if name in _OF_QUESTIONS and name != "layer"}
    calibration = asked.pop("proof_calibration", None)
    options = {**asked, **asdict(explainer), "calibration": repr(calibration), "map_type": map_type}
    manifest = manifest_of(loaded, entry.name, json.loads(json.dumps(options, default=repr)), described(source))
    passes = entry.passes(explainer, loaded, loaded.spec.image_shape)
    total = None if passes is None else passes.total
    return _Run(loaded, entry.name, question, batch_size, map_type, Path(out), manifest, total)


def _earlier(run: _Run) -> Manifest | None:
    """Return the manifest of the folder, which this run continues; None if it is new or empty.

    Raises:
        OptionError: the folder holds another run, or something else.
    """
    earlier = Manifest.read(run.folder)
    if earlier is None:
        if run.folder.exists() and any(not file.name.startswith(".") for file in run.folder.iterdir()):
            raise OptionError(f"{run.folder} holds other files; choose a new or empty folder.", "out")
        return None
    if earlier.run != run.manifest.run:
        before, wanted = (
            {name: getattr(each, name) for name in ("model", "digest", "method", "source")} | each.options
            for each in (earlier, run.manifest)
        )
        changes = [
            f"{name} {before.get(name)!r}, not {value!r}" for name, value in wanted.items() if before.get(name) != value
        ]
        raise OptionError(f"{run.folder} holds a run with {'; '.join(changes)}. Choose another folder.", "out")
    return earlier


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from the folder; if this one dies, the system lets them in.

    Raises:
        OptionError: another process runs in it.
    """
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OptionError(f"Another process writes to {folder}; wait for it, or choose another.", "out") from error
        yield


class _Writer:
    """Collects rows, and writes a shard of many, of those of a minute, and of the last ones."""

    def __init__(self, folder: Path, map_type: MapType) -> None:
        self._folder, self._map_type = folder, map_type
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pyarrow.Table] = []
        self._start = monotonic()

    def add(self, row: dict[str, Any]) -> None:
        """Take the next row."""
        self._rows.append(row)
        if len(self._rows) >= _TABLE_ROWS:
            self._tabulate()
        if len(self._tables) * _TABLE_ROWS >= SHARD_ROWS or monotonic() - self._start > SHARD_SECONDS:
            self._write()

    def _tabulate(self) -> None:
        """Move rows to a table: Python's many small objects between large pictures would keep their memory in use."""
        self._tables.append(shards.table_of(self._rows, self._map_type))
        self._rows = []

    def _write(self) -> None:
        if self._rows:
            self._tabulate()
        tables, self._tables = self._tables, []
        if tables:
            shards.write(self._folder, tables)
        self._start = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()


def _truth(model: LoadedModel, truth: int | str | None) -> str | None:
    """Return the label of a picture's class; None if the model has no such class, as for most names of folders."""
    try:
        if truth is None or (isinstance(truth, str) and truth.isdigit()):
            return None
        return model.labels[class_index(truth.replace("_", " ") if isinstance(truth, str) else truth, model.labels)]
    except TargetError:
        return None
