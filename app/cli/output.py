"""Printing of commands, and their exit statuses."""

import logging
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from seewhy.app.errors import FAILED

log = logging.getLogger("seewhy.command")
"""The log that `--verbose` prints."""

_QUIET = "seewhy.quiet"


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --quiet and --verbose."""
    quiet = click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_set_quiet,
        help="Print only errors and requested results.",
    )
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_verbose,
        help="Also print the times of each picture, and what the library logs.",
    )
    return quiet(verbose(command))


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:  # before the command or after it
        ctx.meta[_QUIET] = True


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not is_verbose():
        library = log.parent or log
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        level = library.level
        library.addHandler(handler)
        library.setLevel(logging.INFO)
        ctx.call_on_close(lambda: library.setLevel(level))
        ctx.call_on_close(lambda: library.removeHandler(handler))


def is_quiet() -> bool:
    """Whether the running command prints neither progress nor what it has written."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_QUIET))


def is_verbose() -> bool:
    """Whether the running command prints what the library logs."""
    return log.isEnabledFor(logging.INFO)


def note(text: str, err: bool = False) -> None:
    """Print what a command has done, unless it is quiet."""
    if not is_quiet():
        click.echo(text, err=err)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns under headings."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def yes(value: bool) -> str:
    """Return yes or no."""
    return "yes" if value else "no"


def print_failure(name: str, fault: str) -> None:
    """Print the reason of a failure, such as that of a picture."""
    click.echo(f"{click.style('Error:', fg='red')} {name}: {fault}", err=True)


def exit_failed(failures: int, total: int) -> NoReturn:
    """End the command, because pictures failed."""
    if total > 1:
        click.echo(f"{failures} of {total} pictures failed.", err=True)
    sys.exit(FAILED)
