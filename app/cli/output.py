"""Printing of commands, and their exit statuses."""

import sys
from typing import NoReturn

import click

FAILED = 1
"""Exit status if a picture failed."""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns under headings."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def yes(value: bool) -> str:
    """Return yes or no."""
    return "yes" if value else "no"


def print_failure(name: str, fault: str) -> None:
    """Print why something failed, such as a picture."""
    click.echo(f"{click.style('Error:', fg='red')} {name}: {fault}", err=True)


def exit_failed(failures: int, total: int) -> NoReturn:
    """End the command, as pictures failed."""
    if total > 1:
        click.echo(f"{failures} of {total} pictures failed.", err=True)
    sys.exit(FAILED)
