"""Tables of the documentation: printed as they are made, and written between their marks if nothing is wrong."""

from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def printed(lines: Iterable[str]) -> list[str]:
    """Print lines as they come; return all of them."""
    known = []
    for line in lines:
        print(line, flush=True)
        known.append(line)
    return known


def print_tables(heading: str, tables: Iterable[Iterable[str]]) -> list[str]:
    """Print tables line by line; return the heading and all lines."""
    return [heading, *(line for table in tables for line in ("", *printed(table)))]


def write_tables(name: str, lines: Iterable[str], page: Path = PAGE) -> None:
    """Put lines between the marks of that name on a page, by default docs/reliability.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text("\n".join([before + begin, *lines, end + rest.partition(end)[2]]), encoding="utf-8")
