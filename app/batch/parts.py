"""Parts of a listing, which processes explain: each becomes a shard."""

import pickle  # nosec B403 - reads only what the same run has written
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from seewhy.app.batch.sources import DataSource, Source
from seewhy.app.batch.work import Outcome, Work
from seewhy.app.system.warnings import ignore_large_pictures

_SHARES = 8
"""Minimum number of parts of the listing per worker, so that all workers end at about the same time."""

_FEWEST, _MOST = 32, 1024
"""Pictures in a part."""

_PASSES = 8192
"""Approximate number of passes of the model in a part; a killed worker loses them."""

ATTEMPTS = 5
"""Number of workers that may die on a part; it may hold a picture that ends every process."""

_DATA = "the data set"


class Part(NamedTuple):
    """Pictures of a shard.

    Attributes:
        number: number of the shard.
        pictures: a description of the pictures, for people.
        sources: the pictures, as `dump` writes them.
    """

    number: int
    pictures: str
    sources: bytes


def parts_of(
    remaining: list[Source], data: DataSource | None, workers: int, passes: int | None, first: int
) -> list[Part]:
    """Return the parts of a listing, as many as it has shards.

    Args:
        remaining: the pictures.
        data: see `dump`.
        workers: number of processes.
        passes: passes of the model for a picture; None if they depend on the picture.
        first: number of the first shard.
    """
    most = _MOST if passes is None else max(1, min(_MOST, _PASSES // max(1, passes)))
    size = min(most, max(_FEWEST, len(remaining) // (_SHARES * workers)))
    parts = []
    for number, start in zip(count(first), range(0, len(remaining), size), strict=False):
        sources = remaining[start : start + size]
        parts.append(Part(number, f"from {sources[0].path} to {sources[-1].path}", dump(sources, data)))
    return parts


def dump(sources: list[Source], data: DataSource | None) -> bytes:
    """Return pictures as bytes, without the data set of the user that they may refer to.

    Args:
        sources: the pictures.
        data: the data set; None if they are files.
    """

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> str | None:
            return _DATA if data is not None and value is data else None

    with BytesIO() as file:
        Pickler(file, pickle.HIGHEST_PROTOCOL).dump(sources)
        return file.getvalue()


def load(content: bytes, data: DataSource | None) -> list[Source]:
    """Return pictures from the bytes of `dump`, which refer to this data set."""

    class Unpickler(pickle.Unpickler):  # reads only what this run has written
        def persistent_load(self, _: object) -> DataSource | None:
            return data

    with BytesIO(content) as file:
        sources: list[Source] = Unpickler(file).load()
        return sources


def portable(work: Work) -> Work:
    """Return work for other processes: the model is on the CPU, not compiled; each process sees only its own GPU."""
    module, device = work.model.module, work.model.device
    if device.type == "cuda":
        module, device = deepcopy(module).cpu(), torch.device("cuda")
    return replace(work, model=replace(work.model, module=module, device=device))


def explain_part(work: Work, sources: Iterable[Source], folder: Path) -> tuple[str, Outcome]:
    """Write the shard of some pictures, in a process of its own.

    Return the name by which `publish` knows the shard, and the outcome of the pictures.
    """
    ignore_large_pictures()
    shard, outcome = work.shard(folder), Outcome(0)
    for row, overlay in work.rows(iter(sources)):
        shard.add(row, overlay)
        outcome += Outcome.of(row)
    return shard.write(), outcome
