"""Grids of cases: `make test` runs a few of each, which tell apart what can break, `make test-all` all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

import seewhy.explainers.methods  # noqa: F401  which enters the methods into the catalogue
from seewhy.explainers.methods.catalogue import METHODS, list_methods

CLASSIFYING = tuple(name for name in list_methods() if not {"boxes", "region"} & {*METHODS[name].needs})
"""The methods that explain classifiers."""

CONVOLUTIONAL = tuple(name for name in CLASSIFYING if "attention" not in METHODS[name].needs)
"""Of these, the methods that explain networks without attention."""


ONE_A_FAMILY = tuple({METHODS[name].family: name for name in CLASSIFYING}.values())
"""A method of each family, for what their bases do."""


def few(values: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Return parameters of a test; those that are not in the short run are marked as slow."""
    return [pytest.param(value, marks=[] if value in short else [pytest.mark.slow]) for value in values]
