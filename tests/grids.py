"""Grids of cases: `make test` runs the fewest of each that tell apart what can break, `make test-slow` the others."""

from collections.abc import Collection, Iterable, Sequence
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

UNLIKE = (
    *("convnext_tiny", "densenet121", "googlenet", "maxvit_t", "mobilenet_v3_small", "regnet_y_400mf", "resnet18"),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vit_b_32"),
)
"""Of the smallest of each kind of torchvision's classifiers, those whose graphs have parts that no other has."""


def few(values: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Return parameters of a test; those that are not in the short run are marked as slow."""
    return [pytest.param(value, marks=[] if value in short else [pytest.mark.slow]) for value in values]


def diagonal(rows: Sequence[Any], columns: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs in which each row and each column stands at least once, instead of all pairs."""
    return [(rows[place % len(rows)], columns[place % len(columns)]) for place in range(max(len(rows), len(columns)))]
