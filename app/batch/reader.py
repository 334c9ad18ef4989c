"""The results of a run, read back."""

import operator
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from PIL import Image

from seewhy.app.batch import shards
from seewhy.app.batch.manifest import Manifest
from seewhy.app.batch.report import Results, report
from seewhy.explainers.errors import ExplainerError, OptionError, PictureError, counted
from seewhy.explainers.imaging.decode import Probe
from seewhy.explainers.imaging.render import fitted
from seewhy.explainers.results.explanation import Explanation

if TYPE_CHECKING:
    from fiftyone import Dataset
    from pandas import DataFrame

REPORT = "report.html"

_HEATMAP_SIDE = 256
"""Longest side of a heatmap for FiftyOne, in pixels; it is stretched over the picture."""


def open_batch(path: str | os.PathLike[str]) -> "Batch":
    """Return the results in a folder that `batch` has written, even if the run was stopped.

    Raises:
        OptionError: the folder has no such results.
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
        manifest: the model and the question, among others.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder
        self._files = shards.files(folder)
        self._starts: list[int] = list(
            accumulate((parquet.read_metadata(file).num_rows for file in self._files), initial=0)
        )
        self._last: tuple[int, pyarrow.Table] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Explanation:
        """Return the explanation of a picture.

        Raises:
            IndexError: there is no such row.
            TypeError: the index is not an integer.
            PictureError: the picture could not be explained; the message says why.
        """
        return self._explanation(index)

    def _explanation(self, index: int, side: int | None = None) -> Explanation:
        """Return the explanation of a picture, which may be reduced to the size that a drawing of this longest side
        needs."""
        rows = f"the run has {counted(len(self), 'row')}, numbered from 0"
        try:
            number = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"There is no row {index}; {rows}.") from None
        except TypeError:
            raise TypeError(f"{index!r} is not the number of a row; {rows}.") from None
        row = self._row(number)
        if row["error"] is not None:
            raise PictureError(f"{row['path']}: {row['error']}")
        return shards.explanation_of(row, _picture(row["file"], side))

    def __iter__(self) -> Iterator[Explanation]:
        for index in range(len(self)):
            try:
                yield self[index]
            except PictureError:
                continue

    def _row(self, index: int) -> dict[str, Any]:
        number = bisect_right(self._starts, index) - 1
        if self._last is None or self._last[0] != number:
            self._last = number, parquet.read_table(self._files[number])
        row: dict[str, Any] = self._last[1].slice(index - self._starts[number], 1).to_pylist()[0]
        return row

    @cached_property
    def table(self) -> pyarrow.Table:
        """All columns but the maps, as an Arrow table."""
        columns = {name: kind for name, kind in shards.COLUMNS.items() if name not in ("height", "width", "scale")}
        tables = (parquet.read_table(file, columns=list(columns)) for file in self._files)
        return pyarrow.concat_tables([pyarrow.schema(columns).empty_table(), *tables])

    def to_pandas(self) -> "DataFrame":
        """Return one row for each picture: path, error, truth, target, label, probability, score, proof and more."""
        return self.table.to_pandas()

    def to_coco(self, share: float = 0.1) -> list[dict[str, Any]]:
        """Return the strongest part of each map as COCO results, with masks in (uncompressed) run-length encoding.

        Args:
            share: share of the picture's pixels, in (0, 1).

        Returns:
            One dictionary for each explanation: ``image_id`` and ``file_name`` are the path, ``category_id`` the index
            of the class, ``score`` its probability.
        """
        if not 0 < share < 1:
            raise OptionError(f"share is {share}; it must be more than 0 and less than 1.", "share")
        paths = self.table.filter(self.table["error"].is_null())["path"].to_pylist()
        return [_coco(path, explanation, share) for path, explanation in zip(paths, self, strict=True)]

    def to_fiftyone(self, name: str | None = None) -> "Dataset":
        """Return a FiftyOne data set of the pictures that were explained, with their heatmaps.

        A sample has the picture's ``filepath``; ``heatmap``, a `fiftyone.Heatmap` in [0, 1], or in [-1, 1] if it is
        signed; ``prediction``, a `fiftyone.Classification` of the explained class with its ``confidence``; and, where
        it is known, ``ground_truth``. Only pictures that are files can be shown, not those of tables and archives.

        Args:
            name: name of the data set; None for one that FiftyOne chooses.

        Raises:
            OptionError: FiftyOne is not installed.
        """
        if not find_spec("fiftyone"):
            raise OptionError("to_fiftyone needs the package fiftyone: pip install fiftyone.", "fiftyone")
        import fiftyone  # takes seconds, and starts a database

        samples = []
        rows = zip(*(self.table[column].to_pylist() for column in ("file", "truth", "error")), strict=True)
        for index, (file, truth, error) in enumerate(rows):
            if error is not None or file is None or "::" in file:
                continue
            explanation = shards.explanation_of(self._row(index), None)
            target = explanation.target
            sample = fiftyone.Sample(
                filepath=file,
                heatmap=fiftyone.Heatmap(map=_small_heatmap(explanation), range=[-1 if explanation.signed else 0, 1]),
                prediction=fiftyone.Classification(label=target.label, confidence=target.probability),
            )
            if truth is not None:
                sample["ground_truth"] = fiftyone.Classification(label=truth)
            samples.append(sample)
        dataset = fiftyone.Dataset(name)
        dataset.add_samples(samples)
        return dataset

    def to_zarr(self, path: str | os.PathLike[str]) -> Path:
        """Write all rows to a Zarr store (format 3), which `xarray.open_zarr` reads, and return its path.

        ``heatmaps`` (picture, y, x) are the maps as shards hold them: of the layer's size, in the run's dtype, each
        divided by its ``scale``; those of errors are NaN. Each other column is an array (picture,), in which a missing
        string is empty and a missing number NaN; ``correct`` is 1, 0, or -1 if it is not known. Attributes are those of
        the manifest.

        Args:
            path: path of the store, a folder that does not exist yet.

        Raises:
            OptionError: zarr is not installed, the path exists, or the maps are not all of one size.
        """
        if not find_spec("zarr"):
            raise OptionError("to_zarr needs more packages: pip install 'seewhy[zarr]'.", "zarr")
        from seewhy.app.batch import zarr_store  # needs an extra

        zarr_store.write(self._files, self.manifest, Path(path))
        return Path(path)

    def report(self) -> Path:
        """Write `report.html` into the folder again, and return its path.

        It has counts and errors, distributions of probabilities and scores, the most confident wrong answers, the least
        trustworthy heatmaps, a gallery, and for each frequent class groups of heatmaps that look at the same places.
        Large runs are sampled.
        """
        place = self._folder / REPORT
        part = self._folder / f".{REPORT}"
        part.write_text(report(Results(self.manifest, self.table, self._explanation, self._maps)), encoding="utf-8")
        os.replace(part, place)
        return place

    def _maps(self, rows: Sequence[int]) -> list[NDArray[np.float32]]:
        """Return the maps of some rows, in ascending order."""
        maps, columns = list[NDArray[np.float32]](), ["height", "width", "scale", "map"]
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers):
            inside = np.asarray(rows)[numbers == number] - self._starts[number]
            table = parquet.read_table(self._files[number], columns=columns)
            maps += [shards.map_of(row) for row in table.take(inside).to_pylist()]
        return maps

    def __repr__(self) -> str:
        pictures = counted(len(self), "picture")
        return f"Batch({pictures} by {self.manifest.method} of {self.manifest.model}, in {self._folder})"


def _picture(file: str | None, side: int | None) -> Image.Image | None:
    """Return a picture that was explained; None if it cannot be read any more.

    Args:
        file: its path or address.
        side: longest side of what will be drawn on it; None to decode it in full size.
    """
    if file is None:
        return None
    try:
        if "://" in file:
            with fsspec.open(file) as remote:
                probe = Probe(remote.read())
        else:
            probe = Probe(Path(file).read_bytes())
        if side is not None:
            probe.reduce(fitted(*probe.size, 2 * side))  # so that each pixel of the drawing still averages several
        return probe.decode()
    except (OSError, ExplainerError, ImportError, ValueError):
        return None


def _small_heatmap(explanation: Explanation) -> NDArray[np.float32]:
    """Return the heatmap (h, w) of a picture, in [0, 1] or, if it is signed, in [-1, 1]."""
    geometry = explanation.geometry
    size = fitted(geometry.width, geometry.height, _HEATMAP_SIDE)
    heatmap: NDArray[np.float32] = geometry.scaled(*size).lay_back(explanation.map)
    return heatmap / (np.abs(heatmap).max() or np.float32(1))


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
