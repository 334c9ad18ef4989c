"""The engine `local`: this process explains few pictures; several processes of this machine explain parts of many."""

import os
import signal
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from time import monotonic

import cloudpickle
import torch
from loky import BrokenProcessPool, ProcessPoolExecutor
from tqdm import tqdm

from seewhy.app.batch import shards
from seewhy.app.batch.parts import ATTEMPTS, Part, explain_part, load, parts_of, portable
from seewhy.app.batch.sources import DataSource, Source
from seewhy.app.batch.work import Outcome, Work, WorkerError
from seewhy.app.memory.limit import memory_limit
from seewhy.app.system.processors import processors
from seewhy.explainers.errors import OptionError

SHARD_ROWS = 1024
"""Rows of a shard that this process writes."""

_SHARD_SECONDS = 60.0
"""Seconds after which a shard is written with fewer rows, so that a killed run loses only a minute."""

_WORTH = 16_384
"""Minimum number of passes that several processes end sooner than this one: each takes seconds to start."""

_MEMORY = 2 * 2**30
"""Bytes for a process, which holds a compiled model."""

_UNKNOWN_PASSES = 100
"""Approximate number of passes for a picture, if they depend on the picture."""

_AHEAD = 2
"""Number of parts given to a process at a time, so that it need not wait for the next one."""


@dataclass(frozen=True)
class OnThisMachine:
    """The engine.

    Attributes:
        workers: number of processes; None for one on each processor, as far as memory allows, or only this one if the
            run is short, the pictures are a data set of the user, which may hold them in memory, or the model cannot be
            pickled.
        data: the source of the pictures, if it is a data set of the user; None for others.
        passes: passes of the model for a picture; None if they depend on the picture.
    """

    workers: int | None
    data: DataSource | None
    passes: int | None

    def __call__(self, work: Work, remaining: list[Source], folder: Path) -> Generator[Outcome]:
        """See `RunsBatch`."""
        workers = self._default(len(remaining)) if self.workers is None else self.workers
        with TemporaryDirectory() as place:
            file = Path(place, "work")
            if workers == 1 or not self._save(work, file):
                yield from _here(work, remaining, folder)
                return
            parts = parts_of(remaining, self.data, workers, self.passes, shards.next_number(folder))
            remaining.clear()
            yield from _in_processes(parts, workers, file, folder)

    def _default(self, pictures: int) -> int:
        passes = _UNKNOWN_PASSES if self.passes is None else self.passes
        is_long = self.data is None and pictures * passes >= _WORTH
        return max(1, min(processors(), memory_limit() // _MEMORY)) if is_long else 1

    def _save(self, work: Work, file: Path) -> bool:
        """Write model and data set to a file, from which all processes map the same weights.

        Returns:
            Whether this is possible.

        Raises:
            OptionError: this is impossible, but several processes are wanted.
        """
        try:
            torch.save((portable(work), self.data), file, pickle_module=cloudpickle)
        except Exception as error:  # objects of users may raise anything
            if self.workers is None:
                return False
            raise OptionError(
                f"The model or the data set cannot be copied to other processes ({error}); use workers=1.", "workers"
            ) from error
        return True


def _here(work: Work, remaining: list[Source], folder: Path) -> Generator[Outcome]:
    """Explain pictures in this process. A shard holds `SHARD_ROWS` or the rows of a minute."""
    numbers = count(shards.next_number(folder))
    shard, start = work.shard(folder), monotonic()
    try:
        with closing(work.rows(iter(remaining))) as rows:
            for row, overlay in rows:
                shard.add(row, overlay)
                yield Outcome.of(row)
                if len(shard) >= SHARD_ROWS or monotonic() - start > _SHARD_SECONDS:
                    full, shard, start = shard, work.shard(folder), monotonic()
                    shards.publish(folder, full.write(), next(numbers))
    finally:
        if len(shard):
            shards.publish(folder, shard.write(), next(numbers))


def _in_processes(parts: list[Part], workers: int, file: Path, folder: Path) -> Generator[Outcome]:
    """Explain parts in processes, and publish their shards in this one, which holds the folder's lock.

    If a process dies, all are started anew, with the parts that are not done.

    Raises:
        WorkerError: processes died `ATTEMPTS` times without finishing a part in between.
    """
    waiting, deaths = deque(parts), 0
    while waiting:
        begun: dict[Future[tuple[str, Outcome]], Part] = {}
        pool = ProcessPoolExecutor(min(workers, len(waiting)), env=_environment(workers))
        try:
            while waiting or begun:
                while waiting and len(begun) < _AHEAD * workers:
                    begun[pool.submit(_explain, file, os.getpid(), folder, waiting[0].sources)] = waiting[0]
                    waiting.popleft()
                for future in wait(begun, return_when=FIRST_COMPLETED).done:
                    name, outcome = future.result()
                    shards.publish(folder, name, begun.pop(future).number)
                    deaths = 0
                    yield outcome
        except BrokenProcessPool as error:
            deaths += 1
            if deaths == ATTEMPTS:
                pictures = " or ".join(part.pictures for part in begun.values())
                raise WorkerError(f"A process died {deaths} times on pictures {pictures}.") from error
            waiting.extendleft(begun.values())
        finally:
            pool.shutdown(kill_workers=bool(waiting or begun))
        shards.discard(folder)


def _environment(workers: int) -> dict[str, str]:
    """Return the variables that divide the processors among processes."""
    return {"OMP_NUM_THREADS": str(max(1, processors() // workers)), "OMP_WAIT_POLICY": "PASSIVE"}


def _explain(file: Path, parent: int, folder: Path, sources: bytes) -> tuple[str, Outcome]:
    """Write the shard of a part, in a process of its own; see `explain_part`."""
    work, data = _saved(file)
    return explain_part(work, _while_alive(parent, load(sources, data)), folder)


@cache
def _saved(file: Path) -> tuple[Work, DataSource | None]:
    """Return the work and the data set of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    tqdm.set_lock(RLock())  # its own lock is shared by all processes, and would stay behind if one is killed
    work, data = torch.load(file, mmap=True, weights_only=False)  # nosec B614 - of what the same run has written
    return work, data


def _while_alive(parent: int, sources: list[Source]) -> Iterator[Source]:
    """Yield pictures, and end this process if its parent was killed: nobody would publish the shard."""
    for source in sources:
        if os.getppid() != parent:
            os._exit(1)
        yield source
