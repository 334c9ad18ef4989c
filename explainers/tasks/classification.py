"""From what a user types for a class, an index or a label, to its index; from logits to predictions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.errors import TargetError, near_matches

Head = Literal["softmax", "sigmoid"]
"""What makes probabilities of logits: the softmax of several, or the sigmoid of the only one."""


@dataclass(frozen=True)
class Prediction:
    """One class with its probability.

    Attributes:
        index: class index.
        label: class label.
        probability: softmax over all classes, or the sigmoid of the only logit, in [0, 1].
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
        raise outside(target, len(labels))
    return target


def outside(index: int, count: int) -> TargetError:
    """Return the error that tells of an index that a model of so many classes lacks."""
    if count == 1:
        return TargetError(
            f"Class {index} is out of range: the model has one logit, class 0, whose probability is its sigmoid. What "
            "speaks against it has negative values with sign=signed."
        )
    return TargetError(f"Class {index} is out of range: the model has classes 0 to {count - 1}.")


def head_of(classes: int) -> Head:
    """Return what makes probabilities of so many logits."""
    return "sigmoid" if classes == 1 else "softmax"


def probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities (..., K) of logits (..., K): their softmax, or the sigmoid of a single one."""
    return logits.sigmoid() if head_of(logits.shape[-1]) == "sigmoid" else logits.softmax(dim=-1)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the logarithms (..., K) of `probabilities`."""
    return functional.logsigmoid(logits) if head_of(logits.shape[-1]) == "sigmoid" else logits.log_softmax(dim=-1)


def predictions(logits: NDArray[np.float32], labels: Sequence[str], indices: Iterable[int]) -> tuple[Prediction, ...]:
    """Return these classes of one picture with their probabilities.

    Args:
        logits: (K,).
        labels: K of them.
        indices: the classes wanted, in order; see `best`.
    """
    likely = probabilities(torch.from_numpy(logits.astype(np.float64))).tolist()
    return tuple(Prediction(i, labels[i], likely[i], float(logits[i])) for i in indices)


def best(logits: NDArray[np.float32], count: int) -> list[int]:
    """Return the indices of the `count` largest logits (K,), the largest first."""
    order: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return order
