"""Predictions as documents give them."""

from collections.abc import Sequence
from typing import Any

from seewhy.explainers.core.task import Prediction

_OF_TARGETS = {"logit", "direction", "attribute"}
"""Fields that only targets have."""


def target_of(prediction: Prediction) -> dict[str, Any]:
    """Return the target, for a document."""
    return dict(vars(prediction))


def ranked(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return predictions without the fields of targets; the value of a box belongs to its attribute."""
    rows = []
    for prediction in predictions:
        fields = vars(prediction)
        hidden = _OF_TARGETS | ({"value"} if "attribute" in fields else set())
        rows.append({name: value for name, value in fields.items() if name not in hidden})
    return rows
