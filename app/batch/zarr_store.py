"""The results of a run as a Zarr store, which xarray opens as a data set."""

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import zarr
from numpy.typing import NDArray

from seewhy.app.batch import shards
from seewhy.app.batch.manifest import Manifest
from seewhy.explainers.errors import OptionError
from seewhy.explainers.process_wide import exclusive

_ROWS, _BYTES = 8192, 2**23
"""Maximum rows of a chunk, and maximum bytes of a chunk of maps."""

_MISSING: dict[pyarrow.DataType, tuple[type, Any]] = {
    pyarrow.string(): (str, ""),
    pyarrow.bool_(): (np.int8, -1),
    pyarrow.float32(): (np.float32, np.nan),
}
"""Dtypes of arrays by those of columns, with the value for rows that have none."""


def write(files: Sequence[Path], manifest: Manifest, place: Path) -> None:
    """Write a store whole, then rename it; one shard is in memory at a time.

    Args:
        files: the shards.
        manifest: manifest of the run.
        place: folder of the store.

    Raises:
        OptionError: `place` exists, no picture was explained, or maps are not all of one size.
    """
    if place.exists():
        raise OptionError(f"{place} exists; choose another path.", "path")
    size = _size(files)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as folder:
        part = Path(folder) / place.name  # not the folder itself, which only its owner may read
        _fill(zarr.open_group(part, mode="w", zarr_format=3, attributes=asdict(manifest)), files, size, manifest)
        with exclusive(), warnings.catch_warnings():  # zarr warns with it, xarray without it
            warnings.filterwarnings("ignore", "Consolidated metadata")
            zarr.consolidate_metadata(part)
        os.rename(part, place)


def _size(files: Sequence[Path]) -> tuple[int, int]:
    """Return height and width of all maps."""
    sizes = set[tuple[int, int]]()
    for file in files:
        table = parquet.read_table(file, columns=["height", "width"]).drop_null()
        sizes.update(zip(table["height"].to_pylist(), table["width"].to_pylist(), strict=True))
    if not sizes:
        raise OptionError("No picture of this run was explained, so there are no maps to write.", "path")
    if len(sizes) > 1:
        examples = ", ".join(f"{height}×{width}" for height, width in sorted(sizes)[:3])
        raise OptionError(
            f"A Zarr array has maps of one size; this run has {len(sizes)}, such as {examples}. Explain pictures of "
            "each size in a separate run, or read the maps one by one: open_batch(folder)[i].map.",
            "path",
        )
    return sizes.pop()


def _fill(group: zarr.Group, files: Sequence[Path], size: tuple[int, int], manifest: Manifest) -> None:
    rows = sum(parquet.read_metadata(file).num_rows for file in files)
    dtype = np.dtype(manifest.options["map_type"])
    kinds = {name: _MISSING[kind] for name, kind in shards.COLUMNS.items() if name not in ("height", "width")}
    kinds["details"] = _MISSING[pyarrow.string()]
    arrays = {
        name: group.create_array(
            name,
            shape=(rows,),
            chunks=(min(rows, _ROWS),),
            dtype=kind,
            dimension_names=("picture",),
            attributes={"_FillValue": missing} if kind is np.int8 else {},  # xarray reads such rows as NaN
        )
        for name, (kind, missing) in kinds.items()
    }
    in_chunk = max(1, min(rows, _ROWS, _BYTES // (size[0] * size[1] * dtype.itemsize)))
    heatmaps = group.create_array(
        "heatmaps",
        shape=(rows, *size),
        chunks=(in_chunk, *size),
        dtype=dtype,
        dimension_names=("picture", "y", "x"),
        fill_value=np.nan,
    )
    start = 0
    for file in files:
        table = parquet.read_table(file)
        place = slice(start, start := start + table.num_rows)
        for name, (kind, missing) in kinds.items():
            column = table[name].cast(pyarrow.int8()) if kind is np.int8 else table[name]
            arrays[name][place] = column.fill_null(missing).to_numpy()
        heatmaps[place] = _maps(table, size, dtype)


def _maps(table: pyarrow.Table, size: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the maps (n, h, w) of rows, divided by their scales; those of errors are NaN."""
    maps = np.full((table.num_rows, *size), np.nan, dtype)
    maps[table["error"].is_null().to_numpy()] = table["map"].combine_chunks().flatten().to_numpy().reshape(-1, *size)
    return maps
