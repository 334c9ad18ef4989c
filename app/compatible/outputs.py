"""The tensors that requests of the Open Inference Protocol are answered with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from seewhy.app.answers.documents import drawing, json_body, take_values
from seewhy.app.answers.stream import json_parts
from seewhy.app.compatible.instances import Numbers
from seewhy.app.compatible.schemas import V2RequestedOutput
from seewhy.app.compatible.service import Classified
from seewhy.app.compatible.tensors import Tensor
from seewhy.app.errors import FieldError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.plan import Explained
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import best

PREDICTED = ("logits", "probabilities", "indices", "classes")
"""Outputs of infer."""

EXPLAINED = ("heatmaps", "maps", "targets", "labels", "methods", "probabilities", "logits")
"""Outputs of explain that come unasked."""

DRAWN = ("overlays", "explanation")
"""Outputs of explain for who asks for them."""


def predicted_tensors(found: Classified, top: int, wanted: Sequence[V2RequestedOutput]) -> list[Tensor]:
    """Return what is wanted of a classification.

    Args:
        found: of N pictures.
        top: how many classes `indices` and `classes` hold.
        wanted: names of `PREDICTED`.
    """
    return [_classes(found, one) or Tensor(one.name, _predicted(found, one.name, top)) for one in wanted]


def _predicted(found: Classified, name: str, top: int) -> Numbers:
    if name == "logits":
        return found.logits
    if name == "probabilities":
        return found.probabilities
    indices = np.array([best(logits, top) for logits in found.logits], dtype=np.int64)
    return indices if name == "indices" else np.array(found.model.labels, dtype=object)[indices]


def _classes(found: Classified, wanted: V2RequestedOutput) -> Tensor | None:
    """Return the best classes as Triton's extension has them, VALUE:INDEX:LABEL, where the request asks so."""
    count = wanted.parameters.get("classification")
    if count is None:
        return None
    if wanted.name not in ("logits", "probabilities"):
        raise FieldError("Only logits and probabilities can be asked for as a classification.", field="classification")
    if type(count) is not int or not 1 <= count <= found.logits.shape[1]:
        raise FieldError(
            f"classification is how many classes to name, 1 to {found.logits.shape[1]}.", field="classification"
        )
    rows = found.logits if wanted.name == "logits" else found.probabilities
    labels = found.model.labels
    named = [[f"{row[index]:f}:{index}:{labels[index]}" for index in best(row, count)] for row in rows]
    return Tensor(wanted.name, np.array(named, dtype=object))


def explained_tensors(
    found: Sequence[Explained],
    wanted: Sequence[V2RequestedOutput],
    values: bool | Literal["map"],
    limits: Sequence[int],
) -> list[Tensor]:
    """Return what is wanted of the explanations of N pictures, T maps each.

    Args:
        found: one per picture.
        wanted: names of `EXPLAINED` and `DRAWN`.
        values: whether documents hold the numbers of heatmaps; see `document`.
        limits: how many numbers each output may hold.

    Raises:
        AnswerTooLargeError: more numbers than allowed.
        FieldError: what is wanted of these pictures is no one tensor.
    """
    tensors = []
    for one, limit in zip(wanted, limits, strict=True):
        if one.name == "heatmaps":
            take_values([explanation for explained in found for explanation in explained.explanations], limit)
        if one.name in _OF_MAPS:
            rows = [[_OF_MAPS[one.name](explanation) for explanation in explained.explanations] for explained in found]
            tensors.append(Tensor(one.name, _stacked(rows, one.name)))
        elif one.name == "logits":
            tensors.append(Tensor(one.name, np.stack([explained.logits for explained in found])))
        elif one.name == "overlays":
            tensors.append(Tensor(one.name, np.array([drawing(explained, "png") for explained in found], dtype=object)))
        else:
            told = [json_parts(one) for one in json_body(found, values, limit)]
            account().take(2 * sum(one.most for one in told), ANSWER)  # as texts, and within JSON again
            texts = np.array([one.whole().decode() for one in told], dtype=object)
            tensors.append(Tensor(one.name, texts, {"content_type": "str"}))
    return tensors


_OF_MAPS: Mapping[str, Callable[[Explanation], Any]] = {
    "heatmaps": lambda one: one.heatmap,
    "maps": lambda one: one.map,
    "targets": lambda one: one.target.index,
    "labels": lambda one: one.target.label,
    "methods": lambda one: one.method,
    "probabilities": lambda one: np.float32(one.target.probability),
}


def _stacked(rows: Sequence[Sequence[Any]], name: str) -> Numbers:
    """Return an array (N, T, ...) of what is one for each map."""
    if len({len(row) for row in rows}) > 1:
        raise FieldError("The pictures have different numbers of maps; send them one at a time.", field="top")
    if len({np.shape(one) for row in rows for one in row}) > 1:
        other = "maps, which have one size" if name == "heatmaps" else "heatmaps, or for one method at a time"
        raise FieldError(
            f"The {name} differ in size, so they are no one tensor: send pictures of one size, or one at a time, or "
            f"ask for {other}.",
            field="outputs",
        )
    if isinstance(rows[0][0], str):
        return np.array(rows, dtype=object)
    return np.array(rows)
