"""The engine `ray`: Ray Data gives parts of the listing to processes of one or more machines, which write shards."""

import logging
import pickle  # nosec B403 - of what the same run has written
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch

from seewhy.app.batch import shards
from seewhy.app.batch.sources import DataSource, Source
from seewhy.app.batch.work import Outcome, Work, WorkerError
from seewhy.app.system.processors import processors
from seewhy.explainers.errors import OptionError

_SHARES = 8
"""Parts of the listing for each worker, at least, so that all end at about the same time."""

_FEWEST, _MOST = 32, 1024
"""Pictures in a part, which becomes a shard."""

_PASSES = 8192
"""Passes of the model in a part, about: what a worker that is killed loses."""

_DECODERS = 4
"""Processors for a worker with a GPU, if there are so many: it decodes in as many threads."""

_ATTEMPTS = 5
"""Workers that may die on a part; it may hold a picture that ends every process, and Ray tries again for ever."""

_DATA = "the data set"


@dataclass(frozen=True)
class OnRay:
    """The engine.

    Attributes:
        address: of a cluster, as ``ray.init`` takes it; None for processes of this machine.
        data: the source of the pictures, if it is a data set of the user; None for others.
        passes: of the model for a picture; None if they depend on the picture.
    """

    address: str | None
    data: DataSource | None
    passes: int | None

    def __call__(self, work: Work, remaining: list[Source], folder: Path) -> Generator[Outcome]:
        """See `RunsBatch`."""
        with _cluster(self.address):
            workers, cpus, gpus = _pool(work.model.device)
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            parts = self._parts(remaining, workers, folder)
            remaining.clear()
            outcomes = parts.map_batches(
                _Worker,
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(workers, parts.num_blocks())),
                fn_constructor_args=(ray.put((_on_cpu(work), self.data)), folder.absolute(), _ATTEMPTS),
                num_cpus=cpus,
                num_gpus=gpus,
            )
            try:
                for row in outcomes.iter_rows():
                    self._publish(folder, row)
                    yield Outcome(row["pictures"], row["errors"], row["last"])
            except ray.exceptions.RayError as error:
                raise WorkerError(f"A worker failed: {_reason(error)}") from error

    def _parts(self, remaining: list[Source], workers: int, folder: Path) -> ray.data.Dataset:
        """Return the listing in Ray's memory, a block for each part."""
        size, first = self._part_size(len(remaining), workers), shards.next_number(folder)
        parts = [
            {"number": number, "sources": _dump(remaining[start : start + size], self.data)}
            for number, start in zip(count(first), range(0, len(remaining), size))
        ]
        return ray.data.from_items(parts, override_num_blocks=len(parts))

    def _part_size(self, pictures: int, workers: int) -> int:
        most = _MOST if self.passes is None else max(1, min(_MOST, _PASSES // max(1, self.passes)))
        return min(most, max(_FEWEST, pictures // (_SHARES * workers)))

    @staticmethod
    def _publish(folder: Path, row: dict[str, Any]) -> None:
        """Show a shard. Only this process does, which holds the lock: a worker that outlives it adds nothing."""
        try:
            shards.publish(folder, row["name"], row["number"])
        except FileNotFoundError as error:
            raise OptionError(
                f"A worker's shard is not in {folder}: all machines of the cluster must share this folder.", "out"
            ) from error


class _Worker:
    """Explains parts of the listing, in a process of its own.

    Args:
        shared: the work, with the model on the CPU, and the data set of the user, if the pictures are from one.
        folder: the folder of the run.
        attempts: workers that may die on a part.
    """

    def __init__(self, shared: "ray.ObjectRef[tuple[Work, DataSource | None]]", folder: Path, attempts: int) -> None:
        work, data = ray.get(shared)
        device = work.model.device
        self._work = replace(work, model=replace(work.model, module=work.model.module.to(device)))
        self._folder, self._data, self._attempts = folder, data, attempts

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        """Write the shard of a part, and return its hidden name and what became of the pictures."""
        pictures = _load(part["sources"][0], self._data)
        if shards.count_attempt(self._folder, int(part["number"][0])) > self._attempts:
            names = f"from {pictures[0].path} to {pictures[-1].path}"
            raise WorkerError(f"{self._attempts} workers died on pictures {names}.")
        shard, outcome = self._work.shard(self._folder), Outcome(0)
        for row, overlay in self._work.rows(iter(pictures)):
            shard.add(row, overlay)
            outcome += Outcome.of(row)
        return {
            "number": part["number"],
            "name": np.array([shard.write()]),
            **{name: np.array([value]) for name, value in outcome._asdict().items()},
        }


def _reason(error: Exception) -> str:
    """Return the last line of an error that names an exception, not Ray's own: tracebacks and advice are around it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    errors = [line for line in lines if re.match(r"\s*(?!ray\.)[\w.]+(Error|Exception): ", line)]
    return (errors or lines)[-1].strip()


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Join a cluster, or start processes of this machine; leave it alone if this process has done so already."""
    if ray.is_initialized():
        yield
        return
    try:
        cpus, dashboard = (processors(), False) if address is None else (None, None)  # a cluster has its own
        ray.init(
            address or "local",
            num_cpus=cpus,
            include_dashboard=dashboard,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"The Ray cluster {address or 'of this machine'} cannot be used: {error}", "address"
        ) from error
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        ray.shutdown()


def _pool(device: torch.device) -> tuple[int, int, int]:
    """Return the number of workers, and the processors and GPUs of each."""
    available = ray.cluster_resources()  # type: ignore[no-untyped-call]
    processors_of_all = int(available.get("CPU", 1))
    if device.type != "cuda":
        return max(1, processors_of_all), 1, 0
    gpus = int(available.get("GPU", 0))
    if not gpus:
        raise OptionError("The cluster has no GPU; use the device cpu.", "device")
    return gpus, max(1, min(_DECODERS, processors_of_all // gpus)), 1


def _on_cpu(work: Work) -> Work:
    """Return work whose model is on the CPU, without what is compiled; each worker sees only its own GPU."""
    module, device = work.model.module, work.model.device
    if device.type == "cuda":
        module, device = deepcopy(module).cpu(), torch.device("cuda")
    return replace(work, model=replace(work.model, module=module, device=device))


def _dump(sources: list[Source], data: DataSource | None) -> bytes:
    """Return pictures as bytes, without the data set that they may refer to."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> str | None:
            return _DATA if data is not None and value is data else None

    with BytesIO() as file:
        Pickler(file, pickle.HIGHEST_PROTOCOL).dump(sources)
        return file.getvalue()


def _load(content: bytes, data: DataSource | None) -> list[Source]:
    """Return pictures from bytes, which refer to this data set."""

    class Unpickler(pickle.Unpickler):  # of what this run has written
        def persistent_load(self, _: object) -> DataSource | None:
            return data

    with BytesIO(content) as file:
        sources: list[Source] = Unpickler(file).load()
        return sources
