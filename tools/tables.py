"""The tables of docs/reliability.md: printed as they are made, and written there once all is well."""

from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def print_tables(heading: str, tables: Iterable[Iterable[str]]) -> list[str]:
    """Print tables line by line; return the heading and all lines."""
    lines = [heading]
    for table in tables:
        lines.append("")
        for line in table:
            print(line, flush=True)
            lines.append(line)
    return lines


def write_tables(name: str, lines: list[str]) -> None:
    """Put lines between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    PAGE.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}", encoding="utf-8")
