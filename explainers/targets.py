"""From what a user types for a class, an index or a label, to its index; from logits to predictions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explainers.errors import TargetError, near_matches


@dataclass(frozen=True)
class Prediction:
    """One class with its probability.

    Attributes:
        index: class index.
        label: class label.
        probability: softmax over all classes, in [0, 1].
        logit: as the model gave it.
    """

    index: int
    label: str
    probability: float
    logit: float


def class_index(target: int | str, labels: Sequence[str]) -> int:
    """Return the class that a user means.

    A string that equals a label is that label, case ignored unless it tells two labels apart (ImageNet has a
    dog named Cardigan and a cardigan); otherwise a string of digits is an index.

    Raises:
        TargetError: an index out of range, an unknown label (with near matches), or one of several classes.
    """
    if isinstance(target, str):
        wanted = target.strip().casefold()
        found = [index for index, label in enumerate(labels) if label == target.strip()]
        found = found or [index for index, label in enumerate(labels) if label.casefold() == wanted]
        if len(found) > 1:
            numbers = ", ".join(map(str, found))
            raise TargetError(f"The label {target!r} names the classes {numbers}; give one of these numbers.")
        if found:
            return found[0]
        if not re.fullmatch(r"[+-]?\d{1,18}", wanted):
            listed = f"`seewhy predict PICTURE --top {len(labels)}` or GET /models/NAME lists the labels."
            hint = near_matches(target.strip(), labels) or listed
            raise TargetError(f"The model has no class {target!r}. {hint}")
        target = int(wanted)
    if not 0 <= target < len(labels):
        raise TargetError(f"Class {target} is out of range: the model has classes 0 to {len(labels) - 1}.")
    return target


def predictions(logits: NDArray[np.float32], labels: Sequence[str], indices: Iterable[int]) -> tuple[Prediction, ...]:
    """Return these classes of one picture with their probabilities.

    Args:
        logits: (K,).
        labels: K of them.
        indices: the classes wanted, in order; see `best`.
    """
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = shifted / shifted.sum()
    return tuple(Prediction(i, labels[i], float(probabilities[i]), float(logits[i])) for i in indices)


def best(logits: NDArray[np.float32], count: int) -> list[int]:
    """Return the indices of the `count` largest logits (K,), the largest first."""
    order: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return order
