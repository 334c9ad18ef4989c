"""The publications of methods and metrics, from a table of their names, authors, titles, years and addresses."""

import csv
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Paper:
    """The publication of a method or a metric.

    Attributes:
        authors, title: as published.
        year: of the first version.
        url: of the paper.
    """

    authors: str
    title: str
    year: int
    url: str


_ROWS = csv.DictReader(files(__package__).joinpath("papers.csv").read_text(encoding="utf-8").splitlines())

PAPERS = {
    name: Paper(row["authors"], row["title"], int(row["year"]), row["url"])
    for row in _ROWS
    for name in row["entries"].split()
}
"""By the names of methods and metrics."""
