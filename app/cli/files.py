"""Pictures in and files out: arguments become pictures with the files that their answers go into, written whole."""

import glob
import itertools
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seewhy.app.cli.options import Form

SUFFIXES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Of the files that are taken from a folder; a file that is named is tried whatever its suffix."""

DASH = Path("-")
"""The standard input or output."""

_OWN = ".seewhy"
"""What answers have before their suffix; such files are not taken from folders."""

_SLASHES = tuple(filter(None, (os.sep, os.altsep)))

_parts = itertools.count()


@dataclass(frozen=True)
class Task:
    """One picture, and where its answer goes.

    Attributes:
        picture: `DASH` for the standard input.
        output: `DASH` for the standard output.
    """

    picture: Path
    output: Path

    @property
    def is_done(self) -> bool:
        """Whether the answer is there already."""
        return self.output != DASH and self.output.exists()


@dataclass(frozen=True)
class _Found:
    """A picture, and its place in the folder that it was found in."""

    picture: Path
    place: Path


def plan(
    arguments: Sequence[Path], output: str | None, form: Form | None, forms: Sequence[Form], sheet: Path | None = None
) -> tuple[Form, list[Task]]:
    """Return the format of the answers, and the pictures with the files that their answers go into.

    A folder means all pictures below it, hidden ones and what an earlier run made left out, and its answers keep their
    places; an argument that is no file may be a glob.

    Args:
        arguments: as typed.
        output: as typed: a file for the only picture, or a folder, as one that ends in a slash is; `-`; None for the
            present folder.
        form: None to choose it by the output's suffix.
        forms: to choose from; the first one is the default.
        sheet: the contact sheet, whose pages are no pictures to explain.

    Raises:
        click.UsageError: a folder or a glob without pictures, or an output that cannot be.
    """
    found = list(dict.fromkeys(one for argument in arguments for one in _expanded(argument, sheet)))
    place = Path(output or "")
    if place == DASH and len(found) > 1:
        raise click.UsageError(f"The standard output takes the answer of one picture, and these are {len(found)}.")
    if place == DASH:
        return form or forms[0], [Task(found[0].picture, DASH)]
    single = len(arguments) == 1 and found[0].picture == arguments[0]
    is_folder = not output or output.endswith(_SLASHES) or place.is_dir()
    if single and not is_folder:
        return form or _form_of(place, forms), [Task(found[0].picture, place)]
    several = "several pictures need a folder, such as heatmaps/; --sheet puts them on one page"
    named_as_file = not is_folder and place.suffix.lower() in (".jpg", *(f".{one}" for one in forms))
    if named_as_file or (place.exists() and not place.is_dir()):
        raise click.BadParameter(several, param_hint="-o")
    form = form or forms[0]
    return form, list(_tasks(found, place, ".jpg" if form == "jpeg" else f".{form}"))


def printable(path: Path) -> str:
    """Return a path as it may be printed: what a name holds that no terminal can show, or should obey, is replaced."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(path))


def read(picture: Path) -> bytes:
    """Return the bytes of a picture."""
    return sys.stdin.buffer.read() if picture == DASH else picture.read_bytes()


def write(path: Path, body: bytes) -> None:
    """Write a file, wholly or not at all: under another name first."""
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


def _expanded(argument: Path, sheet: Path | None) -> Iterator[_Found]:
    if argument == DASH:
        if sys.stdin.isatty():
            raise click.UsageError("The standard input is a terminal: pipe a picture into it, or name a file.")
        yield _Found(DASH, Path("stdin"))
    elif argument.is_dir():
        yield from _below(argument, sheet)
    elif not argument.exists() and glob.has_magic(str(argument)):
        matches = [Path(match) for match in sorted(glob.glob(str(argument), recursive=True))]
        files = [match for match in matches if not match.is_dir() and not _is_own(match, sheet)]
        if not files:
            raise click.UsageError(f"No file matches {str(argument)!r}.")
        yield from (_Found(file, Path(file.name)) for file in files)
    else:
        yield _Found(argument, Path(argument.name))


def _below(folder: Path, sheet: Path | None) -> Iterator[_Found]:
    empty = True
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(top, name)
            if file.suffix.lower() in SUFFIXES and not name.startswith(".") and not _is_own(file, sheet):
                empty = False
                yield _Found(file, file.relative_to(folder))
    if empty:
        raise click.UsageError(f"There is no picture in {str(folder)!r}; pictures end in {', '.join(SUFFIXES)}.")


def _is_own(file: Path, sheet: Path | None) -> bool:
    """Whether a file is an answer, or a page of the contact sheet."""
    if file.stem.endswith(_OWN) or sheet is None:
        return file.stem.endswith(_OWN)
    is_page = file.suffix == sheet.suffix and re.fullmatch(rf"{re.escape(sheet.stem)}(-\d+)?", file.stem)
    return bool(is_page) and file.parent.resolve() == sheet.parent.resolve()


def _tasks(found: Sequence[_Found], folder: Path, suffix: str) -> Iterator[Task]:
    """Name answers by the stems of their pictures; those that share one by their whole names, or these and a number.

    A name so never depends on the order of pictures, but where several folders hold the same name.
    """
    stems = Counter(one.place.with_suffix("") for one in found)
    wholes = {one.place for one in found}
    taken: set[Path] = set()
    for one in found:
        stem = one.place.with_suffix("")
        name = stem.name if stems[stem] == 1 and stem not in wholes else one.place.name
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        outputs = (folder / one.place.parent / f"{each}{_OWN}{suffix}" for each in numbered)
        output = next(each for each in outputs if each not in taken)
        taken.add(output)
        yield Task(one.picture, output)


def _form_of(output: Path, forms: Sequence[Form]) -> Form:
    """Return the format that a file's suffix names; the first one where it has none."""
    suffixes: dict[str, Form] = {f".{form}": form for form in forms}
    if ".jpeg" in suffixes:
        suffixes[".jpg"] = suffixes[".jpeg"]
    if output.suffix and output.suffix.lower() not in suffixes:
        known = ", ".join(suffixes)
        raise click.BadParameter(f"{output.suffix!r} is no format that can be written; use {known}", param_hint="-o")
    return suffixes.get(output.suffix.lower(), forms[0])
