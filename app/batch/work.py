"""The work of engines: from pictures to rows."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from seewhy.app.answers.documents import encode
from seewhy.app.batch import shards
from seewhy.app.batch.choices import MapType
from seewhy.app.batch.sources import Source
from seewhy.explainers.errors import ExplainerError, TargetError
from seewhy.explainers.many import explain_many
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import class_index
from seewhy.models import LoadedModel

_NAMES = 4096
"""Maximum number of names of classes whose labels are cached."""


class TooManyErrorsError(ExplainerError):
    """More pictures of a run failed than it allows. Its rows are kept."""


class WorkerError(ExplainerError):
    """A process of a cluster failed, and not because of a picture. The same run, started again, resumes there."""


@dataclass(frozen=True)
class Work:
    """The question about all pictures, and the form of its rows.

    Attributes:
        question: further arguments of `explain_many`.
        pictures: whether overlays are wanted.
        logits: whether rows have all outputs of the model.
    """

    model: LoadedModel
    method: str
    question: dict[str, Any]
    batch_size: int
    map_type: MapType
    pictures: bool
    logits: bool

    def rows(self, remaining: Iterator[Source]) -> Generator[tuple[dict[str, Any], bytes | None]]:
        """Yield the row of each picture, in order, and its overlay as JPEG if it is wanted and there is one."""
        sources, sources_ahead = tee(remaining)  # which holds the pictures that are read ahead, two batches
        pictures = (source.open for source in sources_ahead)
        size = self.batch_size
        answers = explain_many(self.model, pictures, self.method, batch_size=size, on_error="yield", **self.question)
        truth_of = lru_cache(_NAMES)(partial(_truth, self.model))  # an unknown name is compared with all labels
        for source, answer in zip(sources, answers, strict=True):
            truth = truth_of(source.truth) if isinstance(source.truth, str) else _truth(self.model, source.truth)
            row = shards.row_of(source, answer, truth, self.map_type, self.logits)
            yield row, encode(answer.overlay(), "jpeg") if isinstance(answer, Explanation) and self.pictures else None

    def shard(self, folder: Path) -> shards.Shard:
        """Return an empty shard for these rows."""
        return shards.Shard(folder, self.map_type, self.pictures)


class Outcome(NamedTuple):
    """The outcome of some pictures.

    Attributes:
        pictures: their number.
        errors: number of pictures with an error instead of an explanation.
        last: path and error of the last of these; empty if there is none.
    """

    pictures: int
    errors: int = 0
    last: str = ""

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Outcome":
        """Return the outcome of a picture."""
        return cls(1) if row["error"] is None else cls(1, 1, f"{row['path']}: {row['error']}")

    def __add__(self, other: object) -> "Outcome":
        if not isinstance(other, Outcome):
            return NotImplemented
        return Outcome(self.pictures + other.pictures, self.errors + other.errors, other.last or self.last)


class RunsBatch(Protocol):
    """An engine: it explains pictures, writes their rows, and publishes shards in this process."""

    def __call__(self, work: Work, remaining: list[Source], folder: Path) -> Generator[Outcome]:
        """Yield the outcomes of pictures as they become known; when this ends, the rows of all of them are in
        shards."""


def _truth(model: LoadedModel, truth: int | str | None) -> str | None:
    """Return the label of a picture's class; None if the model has no such class, as for most names of folders."""
    try:
        if truth is None or (isinstance(truth, str) and truth.isdigit()):
            return None
        return model.labels[class_index(truth.replace("_", " ") if isinstance(truth, str) else truth, model.labels)]
    except TargetError:
        return None
