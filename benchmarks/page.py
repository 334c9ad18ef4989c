"""docs/performance.md: the results fill the tables between its markers; the text around them stays."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = Path(__file__).parent / "results"
PARTS = ("library", "metrics", "proofs", "service", "fairness", "deployment", "threads", "gpu")

MISSING = {"gpu": "Not measured: no machine with a CUDA device has run it yet."}


def publish(part: str, results: dict[str, Any], quick: bool) -> None:
    """Print `results["tables"]` of one benchmark, which go into the page; write the results, unless it was quick."""
    print(results["tables"])
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{part}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def saved(part: str, machine: str) -> dict[str, Any]:
    """Return the results of an earlier run of a benchmark, if the machine and the software were the same; else none."""
    results = _results(part)
    return results if results.get("machine") == machine else {}


def _results(part: str) -> dict[str, Any]:
    file = RESULTS / f"{part}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def filled(text: str) -> str:
    """Return the page with the tables of the results in their places."""
    for part in PARTS:
        tables = _results(part).get("tables") or MISSING.get(part, "Not measured yet.")
        between = re.compile(rf"(<!-- {part} -->\n).*?(<!-- end of {part} -->\n)", re.DOTALL)
        text, count = between.subn(lambda match, tables=tables: f"{match[1]}\n{tables.strip()}\n\n{match[2]}", text)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for {part}; it needs one.")
    return text


def write() -> None:
    """Fill the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def times(value: float | None) -> str:
    """Return a ratio as a cell; empty if there is none."""
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
