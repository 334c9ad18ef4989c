"""Input and output files of commands: arguments become pictures with their output files."""

import glob
import itertools
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from seewhy.app.batch.folders import READABLE, below, is_special
from seewhy.app.cli.options import Form
from seewhy.explainers.imaging.choices import PICTURE_SUFFIXES

DASH = Path("-")
"""The standard input or output."""

_MARK = ".seewhy"
"""Precedes the suffix of answers; folders and globs skip such files."""

_SLASHES = tuple(filter(None, (os.sep, os.altsep)))

_parts = itertools.count()

_TEXTS = ("json", "svg", "csv")
"""Formats that a terminal can print."""


@dataclass(frozen=True)
class Item:
    """A picture and the file of its answer.

    Attributes:
        picture: `DASH` for standard input.
        output: `DASH` for the standard output.
    """

    picture: Path
    output: Path

    @property
    def is_done(self) -> bool:
        """Whether the answer already exists."""
        return self.output != DASH and self.output.exists()


@dataclass(frozen=True)
class _PlacedPicture:
    """A picture, and its place below the named folder; without a folder, its name."""

    picture: Path
    place: Path


def plan(
    arguments: Sequence[Path], output: str | None, form: Form | None, forms: Sequence[Form], sheet: Path | None = None
) -> tuple[Form, list[Item]]:
    """Return the format of the answers, and the pictures with the files of their answers.

    A folder means all pictures below it except hidden ones and earlier answers, and its answers keep their
    places. An argument that is not a file may be a glob.

    Args:
        arguments: as typed.
        output: as typed: a file for the only picture, a folder (it may end in a slash), or `-`; None for the current
            folder.
        form: the format; None to choose it by the output's suffix.
        forms: possible formats; the first is the default.
        sheet: the contact sheet, whose pages are not pictures to explain.

    Raises:
        click.UsageError: a folder or a glob has no pictures, or the output does not fit them or is a terminal.
    """
    sources = list(dict.fromkeys(source for argument in arguments for source in _expanded(argument, sheet)))
    place = Path(output or "")
    if place == DASH and len(sources) > 1:
        raise click.UsageError(f"Standard output takes the result of one picture; there are {len(sources)}.")
    if place == DASH:
        form = form or forms[0]
        if sys.stdout.isatty() and form not in _TEXTS:
            raise click.UsageError("Standard output is a terminal, but the result is not text: name a file.")
        return form, [Item(sources[0].picture, DASH)]
    single = len(arguments) == 1 and sources[0].picture == arguments[0]
    is_folder = not output or output.endswith(_SLASHES) or place.is_dir()
    if single and not is_folder:
        return _form_of(place, forms, form), [Item(sources[0].picture, place)]
    several = "several pictures need a folder, such as heatmaps/; --sheet puts them on one page"
    named_as_file = not is_folder and place.suffix.lower() in suffixes_of(forms)
    if named_as_file or (place.exists() and not place.is_dir()):
        raise click.BadParameter(several, param_hint="-o")
    form = form or forms[0]
    return form, list(_items(sources, place, suffix_of(form)))


def suffix_of(form: Form) -> str:
    """Return the usual suffix of a format."""
    return next(iter(suffixes_of([form])))


def suffixes_of(forms: Sequence[Form]) -> dict[str, Form]:
    """Return the suffixes of formats, and the format that each means."""
    pictures = {suffix: form for suffix, name in PICTURE_SUFFIXES.items() for form in forms if form == name}
    others = [form for form in forms if form not in pictures.values()]
    return pictures | {".html" if form == "report" else f".{form}": form for form in others}


def printable(path: Path) -> str:
    """Return a path that is safe to print: characters that a terminal cannot show or would interpret are replaced."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(path))


def read(picture: Path) -> bytes:
    """Return the bytes of a picture."""
    return sys.stdin.buffer.read() if picture == DASH else picture.read_bytes()


def write(path: Path, body: bytes) -> None:
    """Write a file atomically, first under another name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe
            path.write_bytes(body)
            return
        real = path.resolve()
        part = real.with_name(f".seewhy-{os.getpid()}-{next(_parts)}.part")
        try:
            part.write_bytes(body)
            part.replace(real)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write {str(path)!r}: {error.strerror}") from error


def _expanded(argument: Path, sheet: Path | None) -> Iterator[_PlacedPicture]:
    if argument == DASH:
        if sys.stdin.isatty():
            raise click.UsageError("Standard input is a terminal: pipe a picture into it, or name a file.")
        yield _PlacedPicture(DASH, Path("stdin"))
    elif argument.is_dir():
        yield from _below(argument, sheet)
    elif not argument.exists() and glob.has_magic(str(argument)):
        matches = [Path(match) for match in sorted(glob.glob(str(argument), recursive=True))]
        files = [match for match in matches if not is_special(str(match)) and not _is_output(match, sheet)]
        if not files:
            raise click.UsageError(f"No file matches {str(argument)!r}.")
        yield from (_PlacedPicture(file, Path(file.name)) for file in files)
    else:
        yield _PlacedPicture(argument, Path(argument.name))


def _below(folder: Path, sheet: Path | None) -> Iterator[_PlacedPicture]:
    pictures = [file for file in map(Path, below(str(folder))) if not _is_output(file, sheet)]
    if not pictures:
        raise click.UsageError(f"There is no picture in {str(folder)!r}; pictures end in {', '.join(READABLE)}.")
    yield from (_PlacedPicture(file, file.relative_to(folder)) for file in pictures)


def _is_output(file: Path, sheet: Path | None) -> bool:
    """Whether a file is an answer, or a page of the contact sheet."""
    if file.stem.endswith(_MARK) or sheet is None:
        return file.stem.endswith(_MARK)
    is_page = file.suffix == sheet.suffix and re.fullmatch(rf"{re.escape(sheet.stem)}(-\d+)?", file.stem)
    return bool(is_page) and file.parent.resolve() == sheet.parent.resolve()


def _items(sources: Sequence[_PlacedPicture], folder: Path, suffix: str) -> Iterator[Item]:
    """Name answers by the stems of their pictures, by their whole names if a stem is shared, then with a number.

    Pictures of one name from several folders keep the names of these folders. Only the number, needed if several
    folders have the same name, depends on the order of the pictures.
    """
    counts = Counter(source.place for source in sources)
    sources = [
        replace(source, place=source.picture.resolve().parent.name / source.place)
        if counts[source.place] > 1 and source.place.name == str(source.place)
        else source
        for source in sources
    ]
    stems = Counter(source.place.with_suffix("") for source in sources)
    places = {source.place for source in sources}
    outputs: set[Path] = set()
    for source in sources:
        stem = source.place.with_suffix("")
        name = stem.name if stems[stem] == 1 and stem not in places else source.place.name
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        candidates = (folder / source.place.parent / f"{name}{_MARK}{suffix}" for name in names)
        output = next(candidate for candidate in candidates if candidate not in outputs)
        outputs.add(output)
        yield Item(source.picture, output)


def _form_of(output: Path, forms: Sequence[Form], form: Form | None) -> Form:
    """Return the given format, or that of a file's suffix; the first without a suffix."""
    suffixes = suffixes_of(forms)
    if form:
        if suffixes.get(output.suffix.lower(), form) != form:
            raise click.BadParameter(
                f"{output.suffix!r} is not the suffix of the format {form}; use {suffix_of(form)}", param_hint="-o"
            )
        return form
    if output.suffix and output.suffix.lower() not in suffixes:
        raise click.BadParameter(
            f"{output.suffix!r} is not an output format; use {', '.join(suffixes)}", param_hint="-o"
        )
    return suffixes.get(output.suffix.lower(), forms[0])
