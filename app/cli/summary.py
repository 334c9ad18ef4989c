"""The summary of a command's results, a row for each explanation, as CSV or as JSON lines."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import write

COLUMNS = (
    *("picture", "output", "model", "method", "target", "label", "probability", "logit", "contrast", "diagnostics"),
    *("error", "milliseconds"),
)
_EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS)


class Summary:
    """Rows that are written as they come.

    Args:
        path: ends in .csv or .jsonl.
        resume: keep the rows without an error that an earlier run, perhaps interrupted, has written.

    Raises:
        click.BadParameter: another suffix, or the file to resume is no summary.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        if path.suffix.lower() not in (".csv", ".jsonl"):
            raise click.BadParameter("a summary ends in .csv or .jsonl", param_hint="--summary")
        self._is_csv = path.suffix.lower() == ".csv"
        rows = self._read(path) if resume and path.exists() else []
        self._pictures = {_escaped(row["picture"]) for row in rows}
        head = self._line(dict(zip(COLUMNS, COLUMNS, strict=True))) if self._is_csv else ""
        write(path, (head + "".join(map(self._line, rows))).encode())
        self._file = path.open("a", encoding="utf-8", newline="")

    def add(self, *rows: dict[str, Any]) -> None:
        """Write rows; columns that a row lacks are empty."""
        self._file.write("".join(self._line({**_EMPTY, **row}) for row in rows))
        self._file.flush()

    def add_skipped(self, picture: str, output: str) -> None:
        """Write a row of a picture whose answer was there before, unless an earlier run did."""
        if _escaped(picture) not in self._pictures:
            self.add({"picture": picture, "output": output})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, row: dict[str, Any]) -> str:
        if not self._is_csv:
            return _escaped(json.dumps(row, ensure_ascii=False)) + "\n"
        cells = {name: " ".join(value) if isinstance(value, list) else value for name, value in row.items()}
        text = io.StringIO()
        csv.DictWriter(text, COLUMNS, lineterminator="\n").writerow(cells)
        return _escaped(text.getvalue())

    def _read(self, path: Path) -> list[dict[str, Any]]:
        """Return the rows of a file that are whole and have no error."""
        text = path.read_text(encoding="utf-8")
        *lines, _ = text.split("\n")  # the last line may be cut short
        try:
            rows = list(csv.DictReader(f"{line}\n" for line in lines)) if self._is_csv else list(map(json.loads, lines))
        except ValueError:
            rows = [{}]
        if any(not isinstance(row, dict) or set(row) != set(COLUMNS) for row in rows):
            raise click.BadParameter(f"{path} is no summary to go on with; name another file", param_hint="--summary")
        return [row for row in rows if not row["error"]]


def _escaped(text: str) -> str:
    """Return text with the bytes of names that are no UTF-8 written as JSON writes them."""
    return text.encode(errors="backslashreplace").decode()
