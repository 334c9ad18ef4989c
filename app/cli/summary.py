"""The summary of a command's results, one row per explanation, as CSV or JSON lines."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import write

COLUMNS = (
    *("picture", "output", "model", "method", "target", "label", "probability", "logit", "value"),
    *("contrast", "diagnostics", "proof", "error", "milliseconds"),
)
_EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS)


class Summary:
    """A file of rows, written as they are added.

    Args:
        path: path that ends in .csv or .jsonl.
        resume: keep the rows without an error of an earlier, possibly interrupted run.

    Raises:
        click.BadParameter: the file to resume is not a summary.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self._is_csv = path.suffix.lower() == ".csv"
        rows = self._read(path) if resume and path.exists() else []
        self._pictures = {_escaped(row["picture"]) for row in rows}
        head = self._line(dict(zip(COLUMNS, COLUMNS, strict=True))) if self._is_csv else ""
        write(path, (head + "".join(map(self._line, rows))).encode())
        self._file = path.open("a", encoding="utf-8", newline="")

    def add(self, *rows: dict[str, Any]) -> None:
        """Write rows; missing columns are empty."""
        self._file.write("".join(self._line({**_EMPTY, **row}) for row in rows))
        self._file.flush()

    def add_skipped(self, picture: str, output: str) -> None:
        """Write a row for a picture whose answer already existed, unless an earlier run wrote one."""
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
        """Return the complete rows of a file that have no error."""
        text = path.read_text(encoding="utf-8")
        *lines, _ = text.split("\n")  # the last line may be truncated
        try:
            rows = list(csv.DictReader(f"{line}\n" for line in lines)) if self._is_csv else list(map(json.loads, lines))
        except ValueError:
            rows = [{}]
        if any(not isinstance(row, dict) or set(row) != set(COLUMNS) for row in rows):
            raise click.BadParameter(f"{path} is not a summary to resume; name another file", param_hint="--summary")
        return [row for row in rows if not row["error"]]


def _escaped(text: str) -> str:
    """Return text with bytes of names that are not UTF-8 escaped as in JSON."""
    return text.encode(errors="backslashreplace").decode()
