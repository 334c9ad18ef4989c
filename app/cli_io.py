"""What the commands have in common: pictures in, files out, failures told at the end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.settings import Settings

if TYPE_CHECKING:
    from app.service import Service

Form = TypeVar("Form", bound=str)


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument PICTURES and the options --model and --device to a command."""
    command = click.option("--model", help="A name of `seewhy models`.")(command)
    command = click.option("--device", help="auto, cpu, cuda or cuda:N.")(command)
    return click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))(command)


def open_service(device: str | None) -> "Service":
    """Return a service with the settings of the environment, on this device if one is given."""
    from app.service import Service

    given: dict[str, Any] = {"device": device} if device else {}
    return Service(Settings(**given), warm=False)  # for a picture or two it does not pay


def read(picture: Path) -> bytes:
    """Return the bytes of a picture; of the standard input for ``-``."""
    try:
        return sys.stdin.buffer.read() if str(picture) == "-" else picture.read_bytes()
    except OSError as error:
        raise click.ClickException(f"{picture}: {error.strerror}") from error


def form_of(output: Path | None, forms: tuple[Form, ...]) -> Form:
    """Return the format that the output's suffix names; the first one where it names none."""
    if output is None or output.is_dir() or not output.suffix:
        return forms[0]
    suffixes: dict[str, Form] = {f".{form}": form for form in forms}
    if ".jpeg" in suffixes:
        suffixes[".jpg"] = suffixes[".jpeg"]
    if output.suffix.lower() not in suffixes:
        known = ", ".join(suffixes)
        raise click.BadParameter(f"{output.suffix!r} is no format that can be written; use {known}", param_hint="-o")
    return suffixes[output.suffix.lower()]


def destination(pictures: tuple[Path, ...], output: Path | None, form: str) -> Callable[[Path], Path]:
    """Return the function from a picture to the file that its answer goes into."""
    suffix = ".jpg" if form == "jpeg" else f".{form}"
    if output is not None and len(pictures) == 1 and not output.is_dir():
        output.parent.mkdir(parents=True, exist_ok=True)
        return lambda _: output
    folder = output or Path()
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter("several pictures need a folder", param_hint="-o")
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[Path, Path] = {}
    for picture in pictures:
        stem = "stdin" if str(picture) == "-" else picture.stem
        names = [stem, picture.name, *(f"{picture.name}-{number}" for number in range(2, len(pictures) + 2))]
        paths = (folder / f"{name}.seewhy{suffix}" for name in names)
        taken[picture] = next(path for path in paths if path not in taken.values())
    return lambda picture: taken[picture]


def each(pictures: tuple[Path, ...], work: Callable[[Path], str]) -> None:
    """Do the work for each picture, with a bar on many; report failures at the end and exit with 1."""
    from app.errors import EXPECTED

    failures = []
    with click.progressbar(pictures, file=sys.stderr, hidden=len(pictures) < 2) as bar:
        lines = []
        for picture in bar:
            try:
                lines.append(work(picture))
            except click.ClickException as error:
                failures.append(error.message)
            except EXPECTED as error:
                failures.append(f"{picture}: {error}")
            except OSError as error:
                failures.append(f"{error.filename or picture}: {error.strerror}")
    for line in lines:
        click.echo(line)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        sys.exit(1)


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
    return name, value


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns under their heads."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def yes(value: bool) -> str:
    """Return yes or no."""
    return "yes" if value else "no"
