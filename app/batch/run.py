"""A run over a data set: explanations of pictures that have none yet, written as shards."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from tqdm.auto import tqdm

from seewhy.app.batch import shards
from seewhy.app.batch.choices import ENGINES, MAP_TYPES, Engine, MapType
from seewhy.app.batch.manifest import Manifest, manifest_of, now
from seewhy.app.batch.processes import OnThisMachine
from seewhy.app.batch.reader import Batch, open_batch
from seewhy.app.batch.sources import DataSource, Source, description_of, places_of, sources
from seewhy.app.batch.work import Outcome, RunsBatch, TooManyErrorsError, Work
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, Extent, Fill
from seewhy.explainers.errors import OptionError
from seewhy.explainers.explain import Layers, explainers_of
from seewhy.explainers.many import explain_many
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.trust.trial import trial_of
from seewhy.models import LoadedModel, load_model

_NO_PROOF = {"proof": False, "proof_area": AREA, "proof_fill": "blur", "proof_calibration": None}

_OF_QUESTIONS = ("target", "layer", "against", *_NO_PROOF)
"""Options that are not the method's."""

_CPU_BATCH, _GPU_BATCH = 8, 32
"""Pictures per pass: OpenVINO's graphs are made for this number; a GPU needs more to be busy."""

_TRIAL, _AGAIN = 24, 8
"""Number of pictures that a dry run explains while the model is compiled, and the minimum number that it then explains
again to measure the time for a picture."""


@dataclass(frozen=True)
class Forecast:
    """The estimated cost of a run, measured on a few pictures.

    Attributes:
        pictures: pictures of the data set.
        remaining: pictures without a row.
        passes: maximum passes of the model for a picture; None if they depend on the picture.
        seconds: estimated time for the remaining pictures, once the process has started.
        bytes: size of their shards, without compression.
    """

    pictures: int
    remaining: int
    passes: int | None
    seconds: float
    bytes: int


@dataclass(frozen=True)
class _Run:
    """A run that was checked.

    Attributes:
        passes: passes of the model for a picture, at most; None if they depend on the picture.
    """

    work: Work
    folder: Path
    manifest: Manifest
    passes: int | None


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
    address: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    map_type: MapType = "float16",
    pictures: bool = False,
    logits: bool = False,
    max_errors: int | None = None,
    progress: bool = True,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Batch:
    """Explain the pictures of a data set, and write their maps to a folder of Parquet files.

    A stopped run resumes where it stopped: only pictures without a row, or with an error, are explained. A picture
    that cannot be read or explained has a row with the error.

    Args:
        source: a folder, with one folder for each class if these are known; a glob, a picture, a Parquet file, a
            WebDataset shard, or an address such as ``s3://bucket/folder``; a list of these; or a
            `torch.utils.data.Dataset` of pictures as `explain` takes them, or of (picture, class) pairs.
        out: the folder; it is created.
        model: a name, or a `LoadedModel`.
        method, layer, against, proof, proof_area, proof_fill, proof_calibration: as in `explain`, the same for
            all pictures.
        target: class index or label, the same for all pictures; None for the most probable class of each.
        engine: ``local``, this process or several of this machine; or ``ray``, processes of this machine or of a Ray
            cluster. All read the source and write to the folder.
        address: address of the Ray cluster, as ``ray.init`` takes it; None for this machine.
        workers: number of processes, at least 1; None for one on each processor or GPU. With ``local``, None means
            fewer if memory is short, and only this process if the run is short, the source is a data set, or the model
            is on a GPU or cannot be pickled. Other processes have copies of model and data set.
        batch_size: pictures in a pass, at least 1; None for 8, or 32 on a GPU.
        map_type: dtype of the maps in the files, ``float16`` or ``float32``.
        pictures: whether to write overlays too, as WebDataset shards.
        logits: whether to write all outputs of a classifier, or of a model of values, too; 4 bytes for each.
        max_errors: pictures that may fail before the run stops; None for any number.
        progress: whether to show a bar with the rate, the remaining time and the errors, on a terminal or in a
            notebook.
        options: the method's own options.

    Returns:
        The results, including those of earlier runs in the folder.

    Raises:
        OptionError: an invalid option, a source without pictures, or a folder with the results of another run.
        TooManyErrorsError: more pictures than `max_errors` failed; their rows, and all before, are written.
        LayerError, TargetError, ModelError: as in `explain` and `load_model`.
        OSError: the folder cannot be written.
    """
    question = {"target": target, "layer": layer, "against": against, "proof": proof, **options}
    question |= {"proof_area": proof_area, "proof_fill": proof_fill, "proof_calibration": proof_calibration}
    run = _plan(source, out, model, method, question, batch_size, map_type, pictures, logits)
    explain = _engine(engine, address, workers, source, run)
    listing = list(sources(source))
    run.folder.mkdir(parents=True, exist_ok=True)
    with _lock(run.folder):
        manifest = replace(_earlier_manifest(run) or run.manifest, finished=None)
        manifest.write(run.folder)
        shards.tidy(run.folder)
        outcome = _explain_rest(run, explain, listing, max_errors, progress)
        explained = outcome.pictures - outcome.errors
        replace(manifest, finished=now(), pictures=explained, errors=outcome.errors).write(run.folder)
    results = open_batch(run.folder)
    results.report()
    return results


def _explain_rest(
    run: _Run, explain: RunsBatch, listing: list[Source], max_errors: int | None, progress: bool
) -> Outcome:
    """Explain the pictures that have no row, and return their outcome.

    Args:
        listing: the pictures; those that have a row are removed from it.
    """
    paths = shards.explained_paths(run.folder)
    total, outcome = max(len(listing), len(paths)), Outcome(len(paths))
    listing[:] = [source for source in listing if source.path not in paths]
    paths.clear()
    hidden = None if progress else True  # None: hidden unless it is a terminal or a notebook
    with (
        tqdm(total=total, initial=outcome.pictures, unit="picture", disable=hidden, smoothing=0.1) as bar,
        closing(explain(run.work, listing, run.folder)) if listing else nullcontext(()) as outcomes,
    ):
        for latest in outcomes:
            outcome += latest
            bar.update(latest.pictures)
            if latest.errors:
                bar.set_postfix(errors=outcome.errors)
            if max_errors is not None and outcome.errors > max_errors:
                raise TooManyErrorsError(
                    f"{outcome.errors} pictures failed, more than max_errors={max_errors}; the last one: {outcome.last}"
                )
    return outcome


def forecast(
    source: DataSource,
    out: str | os.PathLike[str],
    model: str | LoadedModel = "efficientnet_lite0",
    method: str | None = None,
    target: int | str | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    batch_size: int | None = None,
    map_type: MapType = "float16",
    pictures: bool = False,
    logits: bool = False,
    **options: Any,
) -> Forecast:
    """Estimate the cost of `batch` with the same arguments, by explaining a few pictures; nothing is written.

    Raises:
        OptionError, LayerError, TargetError, ModelError: as in `batch`.
    """
    question = {"target": target, "layer": layer, "against": against, **_NO_PROOF, **options}
    run = _plan(source, out, model, method, question, batch_size, map_type, pictures, logits)
    _earlier_manifest(run)
    paths, listing = shards.explained_paths(run.folder), list(sources(source))
    remaining = [item for item in listing if item.path not in paths]
    count = max(_TRIAL, run.work.batch_size)
    trial = remaining[:: max(1, len(remaining) // count)][:count]  # from all parts of the source
    start = monotonic()
    rows = list(run.work.rows(iter(trial)))
    seconds = monotonic() - start
    size = sum(shards.size_of(row) + len(overlay or b"") for row, overlay in rows)
    again = [item for item, (row, _) in zip(trial, rows, strict=True) if row["error"] is None]
    again = again[: max(_AGAIN, run.work.batch_size)]
    if len(remaining) > len(trial):
        each = seconds / len(trial)
        if again:
            start = monotonic()
            for _ in run.work.rows(iter(again)):
                pass
            each = (monotonic() - start) / len(again)
        seconds += each * (len(remaining) - len(trial))
    return Forecast(len(listing), len(remaining), run.passes, seconds, size * len(remaining) // max(1, len(trial)))


def _engine(engine: str, address: str | None, workers: int | None, source: DataSource, run: _Run) -> RunsBatch:
    """Return an engine by its name.

    Raises:
        OptionError: there is no such engine, its package is missing, or it takes no address or fewer workers.
    """
    if workers is not None and (type(workers) is not int or workers < 1):
        raise OptionError(f"workers is {workers!r}; it must be an integer of at least 1.", "workers")
    data = source if places_of(source) is None else None
    if engine not in ENGINES:
        raise OptionError(f"engine is {engine!r}; it must be {' or '.join(map(repr, ENGINES))}.", "engine")
    if engine == "local":
        if address is not None:
            raise OptionError("Only a Ray cluster has an address; use the engine ray.", "address")
        device = run.work.model.device.type
        if device != "cpu" and workers not in (None, 1):
            raise OptionError(f"workers is {workers}; a model on {device} is run by one process.", "workers")
        return OnThisMachine(workers if device == "cpu" else 1, data, run.passes)
    if not find_spec("ray"):
        raise OptionError("The engine ray needs more packages: pip install 'seewhy[ray]'.", "engine")
    from seewhy.app.batch.cluster import OnRay  # takes seconds to import

    return OnRay(address, workers, data, run.passes)


def _plan(
    source: DataSource,
    out: str | os.PathLike[str],
    model: str | LoadedModel,
    method: str | None,
    question: dict[str, Any],
    batch_size: int | None,
    map_type: MapType,
    pictures: bool,
    logits: bool,
) -> _Run:
    """Return the run of some arguments of `batch`, checked."""
    if map_type not in MAP_TYPES:
        raise OptionError(f"map_type is {map_type!r}; it must be {' or '.join(map(repr, MAP_TYPES))}.", "map_type")
    for name in ("target", "against"):
        if not isinstance(question[name], int | str | None):
            raise OptionError(f"{name} is {question[name]!r}; a batch takes the index or label of a class.", name)
    loaded = load_model(model) if isinstance(model, str) else model
    entry = get_method(method or loaded.task.default_method)
    size = (_GPU_BATCH if loaded.device.type == "cuda" else _CPU_BATCH) if batch_size is None else batch_size
    own = {name: value for name, value in question.items() if name not in _OF_QUESTIONS}
    (explainer,) = explainers_of([entry], question["layer"], own, loaded.module, batch)
    # Checks the question too, before the folder is touched.
    explain_many(loaded, [], entry.name, batch_size=size, on_error="yield", **question)
    options = {name: value for name, value in question.items() if name in _OF_QUESTIONS and name != "layer"}
    calibration = options.pop("proof_calibration")
    options["calibration"] = None if calibration is None else _named(calibration)
    options |= {**asdict(explainer), "map_type": map_type, "pictures": pictures, "logits": logits}
    manifest = manifest_of(loaded, entry.name, json.loads(json.dumps(options, default=repr)), description_of(source))
    passes = entry.passes(explainer, loaded, loaded.spec.image_shape)
    trial = trial_of(*(question[name] for name in ("proof", "proof_area", "proof_fill")))
    total = None if passes is None else passes.total + (trial.passes.total if trial else 0)
    return _Run(Work(loaded, entry.name, question, size, map_type, pictures, logits), Path(out), manifest, total)


def _named(calibration: Calibration) -> str:
    """Return the name of a calibration in manifests; different calibrations have different names."""
    digest = hashlib.sha256(repr(calibration).encode()).hexdigest()
    return f"{len(calibration.scores)} scores for {calibration.model or 'a model'}, SHA-256 {digest[:16]}"


def _earlier_manifest(run: _Run) -> Manifest | None:
    """Return the manifest of the folder, which this run continues; None if it is new or empty.

    Raises:
        OptionError: the folder holds another run, or other files.
    """
    earlier = Manifest.read(run.folder)
    if earlier is None:
        if run.folder.exists() and any(not file.name.startswith(".") for file in run.folder.iterdir()):
            raise OptionError(f"{run.folder} holds other files; choose a new or empty folder.", "out")
        return None
    if earlier.run != run.manifest.run:
        changes = "; ".join(_changes(earlier, run.manifest))
        raise OptionError(f"{run.folder} holds a run with {changes}. Choose another folder.", "out")
    return earlier


def _changes(before: Manifest, after: Manifest) -> Iterator[str]:
    """Yield the differences between two runs; options that only one of two methods has do not count separately."""
    if before.model == after.model and before.digest != after.digest:
        yield f"another version of {after.model}, such as other weights, preprocessing, labels or another device"
    for name in ("model", "method", "source"):
        if (old := getattr(before, name)) != (new := getattr(after, name)):
            yield f"{name} {_shown(old)}, not {_shown(new)}"
    for name in before.options | after.options:
        is_shared = name in before.options and name in after.options
        old, new = before.options.get(name), after.options.get(name)
        if old != new and (is_shared or before.method == after.method):
            yield f"{'layer' if name == 'layers' else name} {_shown(old)}, not {_shown(new)}"


def _shown(value: Any) -> str:
    """Return a value of a manifest as text."""
    if value is None:
        return "none"
    return ", ".join(map(repr, value)) or "none" if isinstance(value, list) else repr(value)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder; if this one dies, the system lets them in.

    Raises:
        OptionError: another process writes to the folder.
    """
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OptionError(f"Another process writes to {folder}; wait for it, or choose another.", "out") from error
        yield
