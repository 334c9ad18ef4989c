"""Sources: the pictures of a data set one by one, each with a path that names it and, where it is known, its truth."""

import glob
import os
import tarfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import fsspec
import pyarrow.parquet as parquet

from seewhy.app.batch.folders import READABLE, SUFFIXES, below, is_special
from seewhy.explainers.errors import ExplainerError, OptionError
from seewhy.explainers.view import ViewSource

_PICTURES, _PATHS, _TRUTHS = ("image", "bytes"), ("path", "id", "file_name"), ("label", "truth")
"""Names of columns of a Parquet file; the first one that it has counts."""

_ROWS = 64
"""Number of pictures that are read from a Parquet file at once."""

_RECENT = 8
"""Number of such parts of a column that stay in memory: threads ask for rows in nearly the right order."""

_TABLE, _ARCHIVE = ".parquet", ".tar"


@dataclass(eq=False, slots=True)
class Source:
    """A picture of a data set.

    Attributes:
        path: its name, unique in the data set.
        file: absolute path or address from which it can be read again; None for a picture in a table or a data set, and
            possibly, for a path in a table, before `open`.
        content: a path or bytes, or a function that returns a picture as for `explain`, or a pair of it and its truth.
            The function may raise `OSError`.
        truth: index or label of its class; None if it is not known, possibly only before `open`.
    """

    path: str
    content: str | bytes | Callable[[], Any] | None
    truth: int | str | None = None
    file: str | None = None

    def open(self) -> ViewSource:
        """Return the picture, as for `explain`.

        Raises:
            OSError: the picture cannot be read.
        """
        content: Any = self._call() if callable(self.content) else self.content
        if content is None:
            raise OSError("There is no picture in this row.")
        if isinstance(content, str):
            self.file = content
        picture: ViewSource = content
        return picture

    def _call(self) -> Any:
        try:
            content = self.content()  # type: ignore[operator,misc]
        except (OSError, ExplainerError):
            raise
        except Exception as error:  # clients of stores have errors of their own, and data sets may raise anything
            raise OSError(f"{type(error).__name__}: {error}") from error
        if isinstance(content, tuple | list) and len(content) == 2:
            content, self.truth = content
        return content


class Dataset(Protocol):
    """The interface of a `torch.utils.data.Dataset` of pictures, or of pairs of a picture and its class."""

    def __len__(self) -> int:
        """Return the number of pictures."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a picture, or a pair."""


DataSource: TypeAlias = str | os.PathLike[str] | Dataset
"""A folder, a glob, a picture, a Parquet file, a WebDataset shard, or an address of an object store such as
``s3://bucket/folder``; a list of these; or a data set."""


def sources(data: DataSource) -> Iterator[Source]:
    """Yield the pictures of a data set, in a stable order. Their bytes are not read yet.

    A folder means all pictures in it and below it; the folder that contains a picture names its class. A Parquet file
    has a column ``image`` or ``bytes`` (files as bytes, or as Hugging Face stores them), or only ``path``; and may have
    a column ``label``. A WebDataset shard (``.tar``) has a picture for each key, and may have its class as ``.cls``.

    Args:
        data: see `DataSource`.

    Raises:
        OptionError: there is no picture, or two have the same path.
    """
    _column.cache_clear()  # a file may have changed since the last run
    paths = set[str]()
    for source in _sources_of(data):
        if source.path in paths:
            raise OptionError(f"Two pictures have the path {source.path!r}; each needs its own.", "source")
        paths.add(source.path)
        yield source
    if not paths:
        places = data if isinstance(data, str) else ", ".join(description_of(data))
        raise OptionError(f"There is no picture in {places or data}; pictures end in {', '.join(READABLE)}.", "source")


def places_of(data: DataSource) -> list[str] | None:
    """Return the paths and addresses of pictures; None for a data set."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, Sequence) and all(isinstance(item, str | os.PathLike) for item in data):
        return [os.fspath(item) for item in data]
    return None


def description_of(data: DataSource) -> list[str]:
    """Return the description of a data set in a manifest: absolute paths and addresses, or its type and length."""
    places = places_of(data)
    if places is None:
        return [f"{type(data).__name__} of {_length(data)}"]
    return [place if "://" in place else os.path.abspath(place) for place in places]


def _length(data: Any) -> int:
    try:
        return len(data)
    except TypeError as error:
        raise OptionError("A data set needs a length; turn an iterator into a list.", "source") from error


def _sources_of(data: Any) -> Iterator[Source]:
    places = places_of(data)
    if isinstance(data, str | os.PathLike):
        yield from _sources_at(os.fspath(data))
    elif places is not None:
        for place in places:
            for source in _sources_at(place):
                # Pictures of several folders may have the same name.
                yield replace(source, path=Path(place, source.path).as_posix()) if os.path.isdir(place) else source
    else:
        yield from (Source(str(index), partial(data.__getitem__, index)) for index in range(len(data)))


def _sources_at(place: str) -> Iterator[Source]:
    """Yield the pictures of a path, a glob or an address."""
    if "://" in place:
        yield from _sources_in_store(place)
    elif os.path.isdir(place):
        for suffix in (_TABLE, _ARCHIVE):
            for file in sorted(Path(place).glob(f"*{suffix}")):
                yield from _sources_in_file(str(file))
        yield from (_source_of_file(path, os.path.relpath(path, place)) for path in below(place))
    elif not os.path.exists(place) and glob.has_magic(place):
        for match in sorted(glob.glob(place, recursive=True)):
            if not is_special(match):
                yield from _sources_at(match)
    elif not os.path.exists(place):
        raise OptionError(f"{place} does not exist.", "source")
    elif place.lower().endswith((_TABLE, _ARCHIVE)):
        yield from _sources_in_file(place)
    else:
        yield _source_of_file(place, place)


def _source_of_file(file: str, path: str) -> Source:
    place = os.path.abspath(file)
    return Source(Path(path).as_posix(), place, _folder_of(place), place)


def _folder_of(file: str) -> str | None:
    return Path(file).parent.name or None


def _sources_in_store(address: str) -> Iterator[Source]:
    """Yield the pictures at an address of an object store."""
    try:
        system, root = fsspec.core.url_to_fs(address)
        if glob.has_magic(root):
            files = sorted(system.glob(root))
        elif system.isdir(root):
            suffixes = (*SUFFIXES, _TABLE, _ARCHIVE)
            files = sorted(file for file in system.find(root) if file.lower().endswith(suffixes))
        else:
            files = [root]
    except (ImportError, ValueError, OSError) as error:  # the package of a store is missing, or the store refuses
        raise OptionError(f"{address} cannot be listed: {error}", "source") from error
    for file in files:
        name = system.unstrip_protocol(file)
        if file.lower().endswith((_TABLE, _ARCHIVE)):
            yield from _sources_in_file(name)
        else:
            yield Source(name, partial(_bytes_of, name), _folder_of(f"/{file}"), name)


def _bytes_of(place: str, start: int | None = None, end: int | None = None) -> bytes:
    """Return the bytes of a file or an address, from `start` to before `end`."""
    system, root = fsspec.core.url_to_fs(place)
    content: bytes = system.cat_file(root, start=start, end=end)
    return content


def _sources_in_file(place: str) -> Iterator[Source]:
    """Yield the pictures of a Parquet file or a tar file.

    Raises:
        OptionError: the file cannot be read.
    """
    try:
        with fsspec.open(place, "rb") as file:
            if place.lower().endswith(_TABLE):
                yield from _sources_in_table(place, parquet.ParquetFile(file))
            else:
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    yield from _sources_in_tar(place, archive)
    except (ImportError, ValueError, OSError, tarfile.TarError) as error:  # ValueError: not a Parquet file
        raise OptionError(f"{place} cannot be read: {error}", "source") from error


def _sources_in_tar(place: str, archive: tarfile.TarFile) -> Iterator[Source]:
    """Yield the pictures of a WebDataset shard: consecutive files with one name up to the first dot are one sample."""
    address = place if "://" in place else os.path.abspath(place)
    name_of_sample, sample, truth = None, list[Source](), None
    for member in archive:
        folder, _, name = member.name.rpartition("/")
        stem, _, kind = name.partition(".")
        if not member.isreg() or member.issparse() or not stem:
            continue
        if (folder, stem) != name_of_sample:
            yield from (replace(source, truth=truth) for source in sample)
            name_of_sample, sample, truth = (folder, stem), [], None
        if name.lower().endswith(SUFFIXES):
            content = partial(_bytes_of, address, member.offset_data, member.offset_data + member.size)
            path = f"{os.path.basename(place)}/{member.name}"
            sample.append(Source(path, content, None, f"tar://{member.name}::{address}"))
        elif kind == "cls" and (file := archive.extractfile(member)):
            text = file.read(1024).decode(errors="replace").strip()
            truth = int(text) if text.isdecimal() else text
    yield from (replace(source, truth=truth) for source in sample)


def _sources_in_table(place: str, file: parquet.ParquetFile) -> Iterator[Source]:
    """Yield the pictures of a Parquet file."""
    names = file.schema_arrow.names
    picture, path, truth = (
        next((name for name in columns if name in names), None) for columns in (_PICTURES, _PATHS, _TRUTHS)
    )
    if picture is None and path != "path":
        raise OptionError(f"{place} has no column {' or '.join((*_PICTURES, 'path'))}.", "source")
    address = place if "://" in place else os.path.abspath(place)
    columns = [name for name in (path, truth) if name]
    parts = (part.to_pylist() for part in file.iter_batches(columns=columns))
    rows = chain.from_iterable(parts) if columns else repeat({}, file.metadata.num_rows)
    for number, row in enumerate(rows):
        identifier = row[path] if path else None
        name = f"{os.path.basename(place)}:{number}" if identifier is None else str(identifier)
        content: Any = partial(_cell, address, picture, number) if picture else row["path"]
        yield Source(name, content, row[truth] if truth else None, None if picture else content)


def _cell(place: str, column: str, number: int) -> str | bytes | None:
    """Return the picture in a row of a Parquet file."""
    value = _column(place, column).at(number)
    content: str | bytes | None = (value.get("bytes") or value.get("path")) if isinstance(value, dict) else value
    return content


@lru_cache(maxsize=2)
def _column(place: str, column: str) -> "_Column":
    return _Column(place, column)


class _Column:
    """Reads a column of a Parquet file in parts, so that row groups may have any size.

    Args:
        place: path or address of the file.
        name: name of the column.
    """

    def __init__(self, place: str, name: str) -> None:
        self._file = parquet.ParquetFile(fsspec.open(place, "rb").open())
        self._name = name
        groups = range(self._file.num_row_groups)
        self._starts = list(accumulate((self._file.metadata.row_group(group).num_rows for group in groups), initial=0))
        self._lock = Lock()
        self._parts: OrderedDict[int, list[Any]] = OrderedDict()
        self._remaining: Iterator[Any] = iter(())
        self._next = self._starts[-1]

    def at(self, number: int) -> Any:
        """Return the value in a row."""
        with self._lock:
            for start, part in self._parts.items():
                if 0 <= number - start < len(part):
                    return part[number - start]
            return self._read(number)

    def _read(self, number: int) -> Any:
        """Read on up to a row; from the beginning of its row group, if the row was passed or is in a later group."""
        group = bisect_right(self._starts, number) - 1
        if number < self._next or self._starts[group] > self._next:
            groups = range(group, self._file.num_row_groups)
            self._remaining = self._file.iter_batches(_ROWS, row_groups=groups, columns=[self._name])
            self._next = self._starts[group]
            self._parts.clear()
        while self._next <= number:
            part = next(self._remaining).column(0).to_pylist()
            self._parts[self._next] = part
            self._next += len(part)
            if len(self._parts) > _RECENT:
                self._parts.popitem(last=False)
        return part[number - self._next]
