"""The results of a run, read back."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
from PIL import Image

from seewhy.app.batch import shards
from seewhy.app.batch.manifest import Manifest
from seewhy.explainers.errors import ExplainerError, OptionError, PictureError
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.results.explanation import Explanation

if TYPE_CHECKING:
    from pandas import DataFrame


def open_batch(path: str | os.PathLike[str]) -> "Batch":
    """Return the results in a folder that `batch` has written, also of a run that was stopped.

    Raises:
        OptionError: it is no such folder.
    """
    folder = Path(path)
    manifest = Manifest.read(folder)
    if manifest is None:
        raise OptionError(f"{folder} holds no results of a batch.", "path")
    return Batch(folder, manifest)


class Batch:
    """The results of a run, one row for each picture, in the order in which they were written.

    ``batch[i]`` is the `Explanation` of a picture, which is read again to be drawn on; if it is gone, it is grey.
    Iterating gives the explanations of all pictures that have one.

    Attributes:
        manifest: what was asked of which model.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder
        self._files = shards.files(folder)
        self._ends = list(accumulate(parquet.read_metadata(file).num_rows for file in self._files))
        self._last: tuple[int, pyarrow.Table] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Explanation:
        """Return the explanation of a picture.

        Raises:
            IndexError: there is no such row.
            PictureError: the picture could not be explained; the message says why.
        """
        row = self._row(range(len(self))[index])
        if row["error"] is not None:
            raise PictureError(f"{row['path']}: {row['error']}")
        return shards.explanation_of(row, _picture(row["file"]))

    def __iter__(self) -> Iterator[Explanation]:
        for index in range(len(self)):
            try:
                yield self[index]
            except PictureError:
                continue

    def _row(self, index: int) -> dict[str, Any]:
        number = bisect_right(self._ends, index)
        if self._last is None or self._last[0] != number:
            self._last = number, parquet.read_table(self._files[number])
        start = self._ends[number - 1] if number else 0
        row: dict[str, Any] = self._last[1].slice(index - start, 1).to_pylist()[0]
        return row

    @cached_property
    def table(self) -> pyarrow.Table:
        """All columns but the maps, as an Arrow table."""
        names = [name for name in shards.COLUMNS if name not in ("height", "width", "scale")]
        tables = [parquet.read_table(file, columns=names) for file in self._files]
        return pyarrow.concat_tables(tables) if tables else pyarrow.table({name: [] for name in names})

    def to_pandas(self) -> "DataFrame":
        """Return one row for each picture: path, error, truth, target, label, probability, score, proof and more."""
        return self.table.to_pandas()

    def to_coco(self, share: float = 0.1) -> list[dict[str, Any]]:
        """Return the strongest part of each map as COCO results, with masks in (uncompressed) run-length encoding.

        Args:
            share: of the picture's pixels, in (0, 1).

        Returns:
            One dictionary for each explanation: ``image_id`` and ``file_name`` are the path, ``category_id`` the index
            of the class, ``score`` its probability.
        """
        if not 0 < share < 1:
            raise OptionError(f"share is {share}; it must be more than 0 and less than 1.", "share")
        paths = (
            path
            for path, error in zip(*(self.table[name].to_pylist() for name in ("path", "error")), strict=True)
            if error is None
        )
        return [_coco(path, explanation, share) for path, explanation in zip(paths, self, strict=True)]

    def __repr__(self) -> str:
        return f"Batch({len(self)} pictures by {self.manifest.method} of {self.manifest.model}, in {self._folder})"


def _picture(file: str | None) -> Image.Image | None:
    """Return a picture that was explained; None if it cannot be read any more."""
    if file is None:
        return None
    try:
        if "://" in file:
            with fsspec.open(file) as remote:
                return read_picture(remote.read())
        return read_picture(file)
    except (OSError, ExplainerError, ImportError, ValueError):
        return None


def _coco(path: str, explanation: Explanation, share: float) -> dict[str, Any]:
    values = explanation.raw_heatmap
    mask = values >= max(np.quantile(values, 1 - share), np.nextafter(np.float32(0), np.float32(1)))
    column_wise = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(column_wise)) + 1
    runs = np.diff([0, *edges, column_wise.size]).tolist()
    return {
        "image_id": path,
        "file_name": path,
        "category_id": explanation.target.index,
        "score": explanation.target.probability,
        "segmentation": {"size": list(mask.shape), "counts": [0, *runs] if column_wise[0] else runs},
    }
