"""Output tensors of the Open Inference Protocol."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from seewhy.app.answers.documents import drawing, json_documents, take_heatmaps
from seewhy.app.answers.stream import json_parts
from seewhy.app.compatible.instances import Numbers
from seewhy.app.compatible.schemas import V2RequestedOutput
from seewhy.app.compatible.tensors import Tensor
from seewhy.app.errors import FieldError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.results import ExplainResult, PredictResult
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import best, probabilities
from seewhy.explainers.tasks.heads import Head
from seewhy.explainers.trust.proof_files import proof_arrays

_MAPS = ("heatmaps", "maps", "targets", "labels", "methods")

DRAWN = ("overlays", "explanation")
"""Further outputs of explain, which need a drawing."""

PROOFS = "proofs"
"""A further output of explain, which `proof` adds to the default ones: JSON texts."""


_NUMBERS: dict[str, tuple[str, ...]] = {"value": ("values",), "segmentation": (), "detection": ()}
"""The numbers that networks of some heads give instead of logits and probabilities."""


def predicted_names(head: Head) -> tuple[str, ...]:
    """Return the outputs of infer."""
    if head == "segmentation":
        return ("masks", "areas")
    return (*_NUMBERS.get(head, ("logits", "probabilities")), "indices", "classes")


def explained_names(head: Head, has_proofs: bool = False) -> tuple[str, ...]:
    """Return the default outputs of explain."""
    return (*_MAPS, *_NUMBERS.get(head, ("probabilities", "logits")), *((PROOFS,) if has_proofs else ()))


def check_proofs(outputs: Sequence[V2RequestedOutput], has_proofs: bool) -> None:
    """Check that outputs contain proofs if and only if these are requested."""
    names = {output.name for output in outputs}
    if has_proofs and names.isdisjoint({PROOFS, "explanation"}):
        raise FieldError(
            "No output contains the proof: request proofs or explanation too, or leave proof out.", field="outputs"
        )
    if PROOFS in names and not has_proofs:
        raise FieldError("The output `proofs` needs the parameter `proof`: true or full.", field="outputs")


def numbers(results: Sequence[PredictResult], name: str) -> Numbers:
    """Return (N, K) float32 of N pictures: logits, probabilities or values.

    Raises:
        FieldError: the model gives none of these.
    """
    head = results[0].model.spec.head
    if head == "segmentation" or head == "detection" or (name == "values") != (head == "value"):
        raise FieldError(f"The model has no {name}: its head is {head!r}.", field="output")
    rows = np.stack([result.outputs for result in results])
    if name != "probabilities" or head == "value":
        return rows
    array: Numbers = probabilities(torch.from_numpy(rows.astype(np.float64)), head).float().numpy()
    return array


def predicted_tensors(results: Sequence[PredictResult], outputs: Sequence[V2RequestedOutput]) -> list[Tensor]:
    """Return the outputs of N classified pictures.

    Args:
        outputs: outputs of `predicted_names`.
    """
    return [_named_classes(results, output) or Tensor(output.name, _array(results, output.name)) for output in outputs]


def _array(results: Sequence[PredictResult], name: str) -> Numbers:
    if name in ("logits", "probabilities", "values"):
        return numbers(results, name)
    if name in ("masks", "areas"):
        return _segmented(results, name)
    indices = [[prediction.index for prediction in result.predictions] for result in results]
    if len({len(row) for row in indices}) > 1:  # a detector predicts the boxes that it sees
        raise FieldError("The pictures have different numbers of predictions; send them one at a time.", field="inputs")
    array = np.array(indices, dtype=np.int64)
    return array if name == "indices" else np.array(results[0].model.labels, dtype=object)[array]


def _segmented(results: Sequence[PredictResult], name: str) -> Numbers:
    """Return masks (N, h, w) of class indices over the model's input, or areas (N, K) float32, shares of classes."""
    count = len(results[0].outputs)
    # Pictures are of one model, so masks are of one size.
    masks = np.stack([result.outputs.argmax(axis=0) for result in results])
    if name == "masks":
        return masks.astype(np.min_scalar_type(count))
    counts = [np.bincount(mask.ravel(), minlength=count) for mask in masks]
    areas: Numbers = np.stack(counts).astype(np.float32) / masks[0].size
    return areas


def _named_classes(results: Sequence[PredictResult], output: V2RequestedOutput) -> Tensor | None:
    """Return the best classes as VALUE:INDEX:LABEL, Triton's extension, if the request asks for them."""
    count = output.parameters.get("classification")
    if count is None:
        return None
    if output.name not in ("logits", "probabilities"):
        raise FieldError("Only logits and probabilities can be requested as a classification.", field="classification")
    classes = len(results[0].outputs)
    if type(count) is not int or not 1 <= count <= classes:
        raise FieldError(f"classification must be a number of classes, 1 to {classes}.", field="classification")
    labels = results[0].model.labels
    rows = _array(results, output.name)
    names = [[f"{row[index]:f}:{index}:{labels[index]}" for index in best(row, count)] for row in rows]
    return Tensor(output.name, np.array(names, dtype=object))


def explained_tensors(
    results: Sequence[ExplainResult],
    outputs: Sequence[V2RequestedOutput],
    values: bool | Literal["map"],
    limits: Sequence[int],
) -> list[Tensor]:
    """Return the outputs of N explained pictures, T maps each.

    Args:
        outputs: outputs of `explained_names`, `DRAWN` and `PROOFS`.
        values: whether documents include the values of heatmaps; see `document`.

    Raises:
        AnswerTooLargeError: there are more values than allowed.
        FieldError: an output of these pictures is not one tensor.
    """
    tensors = []
    for output, limit in zip(outputs, limits, strict=True):
        name = output.name
        if name == "heatmaps":
            take_heatmaps([explanation for result in results for explanation in result.explanations], limit)
        if name in _OF_MAPS:
            rows = [[_OF_MAPS[name](explanation) for explanation in result.explanations] for result in results]
            tensors.append(Tensor(name, _stacked(rows, name)))
        elif name in ("logits", "values"):
            tensors.append(Tensor(name, np.stack([result.outputs for result in results])))
        elif name == "overlays":
            tensors.append(Tensor(name, np.array([drawing(result, "png") for result in results], dtype=object)))
        else:
            documents = [json_parts(document) for document in json_documents(results, values, limit)]
            account().take(2 * sum(parts.most_bytes for parts in documents), ANSWER)  # as texts, and within JSON again
            texts = np.array([parts.join().decode() for parts in documents], dtype=object)
            tensors.append(Tensor(name, texts, {"content_type": "str"}))
    return tensors


_OF_MAPS: Mapping[str, Callable[[Explanation], Any]] = {
    "heatmaps": lambda explanation: explanation.heatmap,
    "maps": lambda explanation: explanation.map,
    "targets": lambda explanation: explanation.target.name,
    "labels": lambda explanation: explanation.target.label,
    "methods": lambda explanation: explanation.method,
    "probabilities": lambda explanation: np.float32(explanation.target.probability),
    PROOFS: lambda explanation: str(proof_arrays([explanation.proof])["proofs"][0]),
}


def _stacked(rows: Sequence[Sequence[Any]], name: str) -> Numbers:
    """Return an array (N, T, ...) of one item for each map."""
    if len({len(row) for row in rows}) > 1:
        raise FieldError("The pictures have different numbers of maps; send them one at a time.", field="top")
    if len({np.shape(value) for row in rows for value in row}) > 1:
        hint = "maps, which have one size" if name == "heatmaps" else "heatmaps, or for one method at a time"
        raise FieldError(
            f"The {name} differ in size, so they are not one tensor: send pictures of one size, or one at a time, or "
            f"ask for {hint}.",
            field="outputs",
        )
    if isinstance(rows[0][0], str):
        return np.array(rows, dtype=object)
    return np.array(rows)
