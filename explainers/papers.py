"""The publications of methods and metrics, from a table of their names, authors, titles, years and addresses."""

import csv
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Paper:
    """The publication of a method or a metric.

    Attributes:
        authors, title: as published.
        year: year of the first version.
        url: URL of the paper.
    """

    authors: str
    title: str
    year: int
    url: str


_ROWS = [
    (Paper(row["authors"], row["title"], int(row["year"]), row["url"]), row["entries"], row["sources"] or "")
    for row in csv.DictReader(files(__package__).joinpath("papers.csv").read_text(encoding="utf-8").splitlines())
]

PAPERS = {name: paper for paper, entries, _ in _ROWS for name in entries.split()}
"""The publications, by the names of methods and metrics."""


def sources_of(name: str) -> tuple[Paper, ...]:
    """Return the other publications that a method draws on."""
    return tuple(paper for paper, _, heirs in _ROWS if name in heirs.split())
