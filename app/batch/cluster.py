"""The engine `ray`: Ray Data gives parts of the listing to processes of one or more machines, which write shards."""

import logging
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch

from seewhy.app.batch import shards
from seewhy.app.batch.parts import ATTEMPTS, explain_part, load, parts_of, portable
from seewhy.app.batch.sources import DataSource, Source
from seewhy.app.batch.work import Outcome, Work, WorkerError
from seewhy.app.system.processors import processors
from seewhy.explainers.errors import OptionError

_DECODERS = 4
"""Processors for a worker with a GPU, if there are that many: it decodes in as many threads."""


@dataclass(frozen=True)
class OnRay:
    """The engine.

    Attributes:
        address: address of a cluster, as ``ray.init`` takes it; None for processes of this machine.
        workers: number of processes; None for one on each processor or GPU.
        data: the source of the pictures, if it is a data set of the user; None for others.
        passes: passes of the model for a picture; None if they depend on the picture.
    """

    address: str | None
    workers: int | None
    data: DataSource | None
    passes: int | None

    def __call__(self, work: Work, remaining: list[Source], folder: Path) -> Generator[Outcome]:
        """See `RunsBatch`."""
        with connected(self.address):
            available, cpus, gpus = _pool(work.model.device)
            workers = available if self.workers is None else min(self.workers, available)
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            parts = parts_of(remaining, self.data, workers, self.passes, shards.next_number(folder))
            remaining.clear()
            blocks = ray.data.from_items([part._asdict() for part in parts], override_num_blocks=len(parts))
            parts.clear()
            outcomes = blocks.map_batches(
                _Worker,
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(workers, blocks.num_blocks())),
                fn_constructor_args=(ray.put((portable(work), self.data)), folder.absolute(), ATTEMPTS),
                num_cpus=cpus,
                num_gpus=gpus,
            )
            try:
                for row in outcomes.iter_rows():
                    self._publish(folder, row)
                    yield Outcome(row["pictures"], row["errors"], row["last"])
            except ray.exceptions.RayError as error:
                raise WorkerError(f"A worker failed: {_reason(error)}") from error

    @staticmethod
    def _publish(folder: Path, row: dict[str, Any]) -> None:
        """Publish a shard. Only this process does so, because it holds the lock: a worker that outlives it adds
        nothing."""
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
        attempts: number of workers that may die on a part.
    """

    def __init__(self, shared: "ray.ObjectRef[tuple[Work, DataSource | None]]", folder: Path, attempts: int) -> None:
        work, data = ray.get(shared)
        device = work.model.device
        self._work = replace(work, model=replace(work.model, module=work.model.module.to(device)))
        self._folder, self._data, self._attempts = folder, data, attempts

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        """Write the shard of a part, and return its hidden name and the outcome of its pictures."""
        if shards.count_attempt(self._folder, int(part["number"][0])) > self._attempts:
            raise WorkerError(f"{self._attempts} workers died on pictures {part['pictures'][0]}.")
        shard, outcome = explain_part(self._work, load(part["sources"][0], self._data), self._folder)
        return {
            "number": part["number"],
            "name": np.array([shard]),
            **{name: np.array([value]) for name, value in outcome._asdict().items()},
        }


def _reason(error: Exception) -> str:
    """Return the last line of an error that names an exception, not Ray's own: tracebacks and advice are around it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    errors = [line for line in lines if re.match(r"\s*(?!ray\.)[\w.]+(Error|Exception): ", line)]
    return (errors or lines)[-1].strip()


@contextmanager
def connected(address: str | None) -> Iterator[None]:
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
