"""Sources: the pictures of a data set one by one, each with a path that names it and, where it is known, its truth."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import fsspec
import pyarrow.parquet as parquet

from seewhy.app.batch.folders import SUFFIXES, below
from seewhy.explainers.errors import ExplainerError, OptionError
from seewhy.explainers.view import ViewSource

_PICTURES, _PATHS, _TRUTHS = ("image", "bytes"), ("path", "id", "file_name"), ("label", "truth")
"""Names of columns of a Parquet file: the first that it has counts."""

_ROWS = 64
"""Rows that are read from a Parquet file at once."""


@dataclass(eq=False)
class Source:
    """A picture of a data set.

    Attributes:
        path: names it; unique in the data set.
        file: where it can be read again: an absolute path or an address; None for what a table or a data set holds.
        content: a path or bytes, or a function that returns what `explain` takes, or a pair of this and the truth. It
            may raise `OSError`.
        truth: index or label of its class; None if it is not known, perhaps before `open`.
    """

    path: str
    content: str | bytes | Callable[[], Any] | None
    truth: int | str | None = None
    file: str | None = None

    def open(self) -> ViewSource:
        """Return what `explain` takes.

        Raises:
            OSError: it cannot be read.
        """
        if self.content is None:
            raise OSError("There is no picture in this row.")
        content: Any = self._called() if callable(self.content) else self.content
        picture: ViewSource = content
        return picture

    def _called(self) -> Any:
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
    """What a `torch.utils.data.Dataset` of pictures, or of pairs of a picture and its class, offers."""

    def __len__(self) -> int:
        """Return the number of pictures."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a picture, or a pair."""


DataSource: TypeAlias = str | os.PathLike[str] | Dataset
"""A folder, a glob, a picture, a Parquet file, or an address of an object store such as ``s3://bucket/folder``; a list
of these; or a data set."""


def sources(data: DataSource, named_only: bool = False) -> Iterator[Source]:
    """Yield the pictures of a data set, in a stable order.

    A folder means all pictures in it and below it; the folder that contains a picture names its class. A Parquet file
    has a column ``image`` or ``bytes`` (files as bytes, or as Hugging Face stores them), or only ``path``; and may have
    a column ``label``.

    Args:
        data: see `DataSource`.
        named_only: whether to leave out the bytes that tables hold.

    Raises:
        OptionError: there is no picture, or two have the same path.
    """
    seen = set[str]()
    for source in _named(data, named_only):
        if source.path in seen:
            raise OptionError(f"Two pictures have the path {source.path!r}; each needs its own.", "source")
        seen.add(source.path)
        yield source
    if not seen:
        places = data if isinstance(data, str) else ", ".join(described(data))
        raise OptionError(f"There is no picture in {places or data}; pictures end in {', '.join(SUFFIXES)}.", "source")


def described(data: DataSource) -> list[str]:
    """Return what a manifest says of a data set: absolute paths and addresses, or its type and length."""
    if isinstance(data, str | os.PathLike):
        data = [os.fspath(data)]
    if isinstance(data, Sequence) and all(isinstance(item, str | os.PathLike) for item in data):
        return [place if "://" in place else os.path.abspath(place) for place in map(os.fspath, data)]
    try:
        return [f"{type(data).__name__} of {len(data)}"]
    except TypeError as error:
        raise OptionError("A data set needs a length; make a list of an iterator.", "source") from error


def _named(data: DataSource, named_only: bool) -> Iterator[Source]:
    if isinstance(data, str | os.PathLike):
        yield from _found(os.fspath(data), named_only)
    elif isinstance(data, Sequence) and all(isinstance(item, str | os.PathLike) for item in data):
        for place in map(os.fspath, data):
            for source in _found(place, named_only):
                # Pictures of several folders may have the same name.
                yield replace(source, path=Path(place, source.path).as_posix()) if os.path.isdir(place) else source
    else:
        yield from (Source(str(index), partial(data.__getitem__, index)) for index in range(len(data)))


def _found(place: str, named_only: bool) -> Iterator[Source]:
    """Yield the pictures of a path, a glob or an address."""
    if "://" in place:
        yield from _remote(place)
    elif os.path.isdir(place):
        for table in sorted(Path(place).glob("*.parquet")):
            yield from _rows(str(table), named_only)
        yield from (_file(path, os.path.relpath(path, place)) for path in below(place))
    elif not os.path.exists(place) and glob.has_magic(place):
        for match in sorted(glob.glob(place, recursive=True)):
            if not os.path.isdir(match):
                yield from _found(match, named_only)
    elif place.lower().endswith(".parquet"):
        yield from _rows(place, named_only)
    elif os.path.exists(place):
        yield _file(place, place)
    else:
        raise OptionError(f"{place} does not exist.", "source")


def _file(file: str, path: str) -> Source:
    return Source(Path(path).as_posix(), file, _folder_of(file), os.path.abspath(file))


def _folder_of(file: str) -> str | None:
    return Path(file).absolute().parent.name or None


def _remote(address: str) -> Iterator[Source]:
    """Yield the pictures at an address of an object store."""
    try:
        system, root = fsspec.core.url_to_fs(address)
        if glob.has_magic(root):
            files = sorted(system.glob(root))
        elif system.isdir(root):
            files = sorted(file for file in system.find(root) if file.lower().endswith(SUFFIXES))
        else:
            files = [root]
    except (ImportError, ValueError, OSError) as error:  # the package of a store is missing, or the store refuses
        raise OptionError(f"{address} cannot be listed: {error}", "source") from error
    for file in files:
        name = system.unstrip_protocol(file)
        yield Source(name, partial(system.cat_file, file), _folder_of(f"/{file}"), name)


def _rows(table: str, named_only: bool) -> Iterator[Source]:
    """Yield the pictures of a Parquet file."""
    with parquet.ParquetFile(table) as file:
        names = file.schema_arrow.names
        picture, path, truth = (
            next((name for name in columns if name in names), None) for columns in (_PICTURES, _PATHS, _TRUTHS)
        )
        if picture is None and path != "path":
            raise OptionError(f"{table} has no column {' or '.join((*_PICTURES, 'path'))}.", "source")
        columns = [name for name in (None if named_only and path else picture, path, truth) if name]
        number = 0
        for rows in file.iter_batches(_ROWS, columns=columns):
            for row in rows.to_pylist():
                value = row.get(picture) if picture else row[path]
                content = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
                named = row[path] if path else None
                name = f"{os.path.basename(table)}:{number}" if named is None else str(named)
                file_name = content if isinstance(content, str) else None
                yield Source(name, content, row[truth] if truth else None, file_name)
                number += 1
