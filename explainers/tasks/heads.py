"""Heads: the kinds of a network's outputs, as users declare them, and the tasks that follow from them."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor

from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import ModelOutputError, counted, given
from seewhy.explainers.tasks.candidates import Detector
from seewhy.explainers.tasks.classification import Classification, head_of
from seewhy.explainers.tasks.detection import Detection
from seewhy.explainers.tasks.segmentation import Segmentation
from seewhy.explainers.tasks.values import Values

Head = Literal["softmax", "sigmoid", "value", "segmentation", "detection"]
"""Logits of classes that exclude each other, logits of labels that do not, values, logits at each position, or
boxes."""


def declared_head(head: Head | None, count: int) -> Head:
    """Return the head of a network of this many outputs: as declared, otherwise that of a bare classifier."""
    return head or head_of(count)


def guessed_head(raw: Any) -> Head | None:
    """Return the head of a network with this result, if it is certain, as with torchvision's segmenters."""
    logits = raw.get("out") if isinstance(raw, dict) else None
    return "segmentation" if isinstance(logits, Tensor) and logits.ndim == 4 else None


def task_with(
    head: Head | None, labels: Sequence[str], units: Sequence[str] = (), detector: Detector | None = None
) -> Task:
    """Return the task of a network whose outputs have these labels; `detector` reads those of a detector."""
    if detector is not None:
        return Detection(labels, detector)
    if head == "detection":
        raise ModelOutputError(
            "A detector needs a function that reads its boxes; pass it as `head`, see docs/own-models.md."
        )
    if head == "value":
        return Values(labels, units)
    return Segmentation(labels) if head == "segmentation" else Classification(labels, head)


def head_fault(head: str | None, count: int, units: Sequence[str] = ()) -> str | None:
    """Return why a network of this many outputs cannot have a head, with these units of values; None if it can."""
    if head not in (None, *get_args(Head)):
        return f"There is no head {head!r}; choose from {', '.join(map(repr, get_args(Head)))}."
    if head in (None, "softmax") and count == 1:
        reason = "The softmax of one output is always 1" if head else "There is one output, and no head says what it is"
        return f"{reason}; declare the head 'sigmoid' if it is the logit of a label, or 'value' if it is a value."
    if units and head != "value":
        return "Only values have units; declare the head 'value'."
    if units and len(units) != count:
        return f"{given(len(units), 'unit')} for {counted(count, 'value')}; give one for each, '' for none."
    return None
