"""What a request is answered with: a drawing, an npz file, or a JSON document."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from math import ceil
from typing import Any, Literal

import numpy as np
from PIL import Image

from seewhy.app.answers.png import encode_png
from seewhy.app.answers.schemas import (
    AgreementAnswer,
    DiagnosticAnswer,
    DrawnAnswer,
    ExplainAnswer,
    ExplainedHeatmapAnswer,
    ExplanationAnswer,
    MethodIdentity,
    ModelIdentity,
    PredictAnswer,
    PredictionAnswer,
    RegionAnswer,
    TargetAnswer,
)
from seewhy.app.errors import AnswerTooLargeError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.ask import VERSIONS
from seewhy.app.pipeline.choices import Drawing
from seewhy.app.pipeline.results import ExplainResult, PredictResult
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.imaging.render import (
    Style,
    default_colormap,
    ends,
    fit,
    fitted,
    normalize,
    panel,
    panel_columns,
    value_range,
)
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.agreement import rank_correlation
from seewhy.explainers.results.array_files import ArrayFile
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import Prediction
from seewhy.models import LoadedModel

_COPIES = 3
"""Of a heatmap, while it is laid onto the picture and divided by its maximum."""

_DRAWN_BYTES = 32
"""Bytes for each pixel of a drawing while it is made."""

_ENCODED_BYTES = 12
"""Bytes for each pixel of a drawing as PNG, as base64 and within JSON."""


def prediction_document(result: PredictResult) -> PredictAnswer:
    """Return the answer of /predict."""
    return PredictAnswer(model=identity(result.model), predictions=ranked(result.predictions))


def drawing(explained: ExplainResult, form: Drawing) -> bytes:
    """Draw the answer and encode it; raises what `draw` raises, and `OutOfMemoryError`."""
    with account().holding(_drawing_bytes(explained), ANSWER):
        with explained.timings.stage("render"):
            picture = draw(explained)
        with explained.timings.stage("encode"):
            return encode(picture, form)


def draw(explained: ExplainResult) -> Image.Image:
    """Draw the answer: one picture, or a labelled panel where several classes are explained.

    Raises:
        DeadlineError: too many tiles for the time that is left.
    """
    explanations = explained.explanations
    columns = _columns(explained)
    style = _fitting(explained.style, columns, ceil(len(explanations) / columns))
    small = fit(explanations[0].picture, style.max_side)  # all are of one upload
    tiles = []
    for explanation in explanations:
        explained.deadline.check()
        # Beside other maps a map is one picture, whatever regions it has.
        if explanation.regions and len(explained.methods) == 1:
            tiles.append(explanation.drawn(style))
        else:
            tiles.append(replace(explanation, picture=small).drawn_map(style))
    if len(tiles) == 1:
        return tiles[0]
    return panel(tiles, [_caption(explanation, explained) for explanation in explanations], columns)


def encode(picture: Image.Image, form: Drawing) -> bytes:
    """Encode a picture as PNG, JPEG or WebP."""
    if form == "png":
        return encode_png(picture)
    settings: Mapping[Drawing, dict[str, Any]] = {"jpeg": {"quality": 90}, "webp": {"quality": 90, "method": 2}}
    buffer = io.BytesIO()
    picture.save(buffer, form.upper(), **settings[form])
    return buffer.getvalue()


def arrays(explained: ExplainResult, max_values: int) -> ArrayFile:
    """Return the answer as an npz file: heatmaps (T, H, W), maps (T, h, w), targets and methods (T), logits (K).

    Where methods have maps of several shapes, these are maps_0, maps_1 and so on; a method that cuts the picture into
    regions has these as regions (T, k, h, w).

    Raises:
        AnswerTooLargeError: more numbers than allowed, or than there is ever memory for.
        OutOfMemoryError: there is no memory for them at present.
    """
    explanations = explained.explanations
    take_values(explanations, max_values)
    geometry = explanations[0].geometry
    heatmaps = np.empty((len(explanations), geometry.height, geometry.width), dtype=np.float32)
    for heatmap, explanation in zip(heatmaps, explanations, strict=True):
        explained.deadline.check()
        heatmap[:] = normalize(explanation.raw_heatmap, explanation.signed)
    contents: dict[str, Any] = {
        "heatmaps": heatmaps,
        **_raw_maps(explanations),
        **_regions(explanations),
        "targets": np.array([explanation.target.index for explanation in explanations], dtype=np.int64),
        "methods": np.array([explanation.method for explanation in explanations]),
        "logits": explained.logits,
    }
    return ArrayFile("npz", contents)


def json_body(
    explained: Sequence[ExplainResult], values: bool | Literal["map"], max_values: int
) -> list[dict[str, Any]]:
    """Return answers as `document` does, as JSON in which heatmaps are still arrays; see `stream.json_parts`.

    Raises:
        AnswerTooLargeError, OutOfMemoryError: as `arrays`.
    """
    if values is True:
        take_values([explanation for result in explained for explanation in result.explanations], max_values)
    answers = []
    for result in explained:
        with account().holding(_drawing_bytes(result), ANSWER):
            answer = document(result, "map" if values == "map" else False, max_values)
            content = answer.model_dump(mode="json", exclude_unset=True)
        if values is True:
            for part, explanation in zip(content["explanations"], result.explanations, strict=True):
                part["heatmap"]["values"] = explanation.heatmap
        answers.append(content)
    return answers


def document(explained: ExplainResult, values: bool | Literal["map"], max_values: int) -> ExplainAnswer:
    """Return the answer as a JSON document.

    Args:
        explained: what to tell.
        values: whether to include the numbers of the heatmaps; ``map`` for the maps as the methods gave them.
        max_values: most numbers of heatmaps.

    Raises:
        AnswerTooLargeError: more numbers than allowed.
    """
    if values is True:
        check_values(explained.explanations, max_values)
    answers = []
    style = _fitting(explained.style, 1)
    for explanation in explained.explanations:
        explained.deadline.check()
        with explained.timings.stage("render"):
            overlay = explanation.drawn(style)
        with explained.timings.stage("encode"):
            png = base64.b64encode(encode(overlay, "png")).decode("ascii")
        heatmap, colours = _heatmap(explanation, values, style)
        answers.append(
            ExplanationAnswer(
                method=explanation.method,
                target=TargetAnswer(**asdict(explanation.target)),
                against=None if explanation.against is None else TargetAnswer(**asdict(explanation.against)),
                heatmap=heatmap,
                drawn=colours,
                overlay=f"data:image/png;base64,{png}",
                diagnostics=[DiagnosticAnswer(**asdict(diagnostic)) for diagnostic in explanation.diagnostics],
                regions=[
                    RegionAnswer(gain=region.gain, predictions=ranked(region.predictions))
                    for region in explanation.regions
                ],
            )
        )
    first = explained.explanations[0]
    methods = [method_identity(method, explainer) for method, explainer in explained.methods]
    return ExplainAnswer(
        model=identity(explained.model),
        method=methods[0],
        methods=methods,
        agreement=_agreement(explained.explanations),
        layers=list(layers_of(explained)),
        predictions=ranked(first.predictions),
        explanations=answers,
        timings_ms={name: round(milliseconds, 3) for name, milliseconds in explained.timings.stages.items()},
        versions=VERSIONS,
    )


def _raw_maps(explanations: list[Explanation]) -> dict[str, Any]:
    """Return the raw maps as one array where all have one shape, or else as one per map."""
    maps = [explanation.map for explanation in explanations]
    if len({array.shape for array in maps}) == 1:
        return {"maps": np.stack(maps)}
    return {f"maps_{number}": array for number, array in enumerate(maps)}


def _regions(explanations: list[Explanation]) -> dict[str, Any]:
    """Return the regions (T, k, h, w) of a method that has any, where all explanations have as many."""
    maps = [np.array([region.map for region in explanation.regions]) for explanation in explanations]
    return {"regions": np.stack(maps)} if maps[0].size and len({array.shape for array in maps}) == 1 else {}


def layers_of(explained: ExplainResult) -> tuple[str, ...]:
    """Return the layers that the explanations used, each once."""
    return tuple(dict.fromkeys(layer for explanation in explained.explanations for layer in explanation.layers))


def _agreement(explanations: list[Explanation]) -> list[AgreementAnswer]:
    """Return how much the maps of each two methods for one class agree."""
    return [
        AgreementAnswer(
            target=first.target.index,
            methods=(first.method, second.method),
            rank_correlation=rank_correlation(first.map, second.map),
        )
        for first, second in combinations(explanations, 2)
        if first.target.index == second.target.index and first.method != second.method
    ]


def _fitting(style: Style, columns: int, rows: int = 1) -> Style:
    """Return the style with which a grid of tiles, captions included, stays within the longest side allowed."""
    if style.max_side is None:
        return style
    across = max(columns * (2 if style.view == "side-by-side" else 1), rows)
    captions = 1.1 if columns * rows > 1 else 1
    return replace(style, max_side=max(16, int(style.max_side / across / captions)))


def _columns(explained: ExplainResult) -> int:
    """Return how many columns a panel has: one per method where there are several methods and several classes."""
    methods, maps = len(explained.methods), len(explained.explanations)
    return methods if methods > 1 and maps > methods else panel_columns(maps)


def _caption(explanation: Explanation, explained: ExplainResult) -> str:
    target, against = explanation.target, explanation.against
    text = f"{target.label} {target.probability:.1%}" if target.probability >= 0.001 else f"{target.label} <0.1%"
    text += f" against {against.label}" if against else ""
    return f"{explanation.method}: {text}" if len(explained.methods) > 1 else text


def _heatmap(
    explanation: Explanation, values: bool | Literal["map"], style: Style
) -> tuple[ExplainedHeatmapAnswer, DrawnAnswer]:
    geometry, signed = explanation.geometry, explanation.signed
    raw = geometry.scaled(*explanation.picture.size).lay_back(explanation.map)
    numbers: dict[str, Any] = {}
    if values == "map":
        numbers["map"] = geometry.covering(explanation.map).tolist()
    elif values:
        numbers["values"] = explanation.heatmap.tolist()
    heatmap = ExplainedHeatmapAnswer(
        shape=(geometry.height, geometry.width),
        min=float(raw.min()),
        max=float(raw.max()),
        signed=signed,
        box=geometry.box,
        **numbers,
    )
    low, high = value_range(raw, signed, ends(explanation.map, style.scale))
    return heatmap, DrawnAnswer(colormap=style.colormap or default_colormap(signed), low=low, high=high)


def method_identity(method: Method, explainer: Explainer) -> MethodIdentity:
    """Return which method explained, with which options."""
    options = {name: value for name, value in asdict(explainer).items() if name != "layers"}
    return MethodIdentity(name=method.name, options=options)


def identity(model: LoadedModel) -> ModelIdentity:
    """Return which model answered."""
    return ModelIdentity(name=model.name, weights=model.weights, sha256=model.sha256, head=model.spec.head)


def ranked(predictions: tuple[Prediction, ...]) -> list[PredictionAnswer]:
    """Return predictions as answers have them."""
    return [
        PredictionAnswer(index=prediction.index, label=prediction.label, probability=prediction.probability)
        for prediction in predictions
    ]


def take_values(explanations: Sequence[Explanation], limit: int) -> None:
    """Take memory for the numbers of these heatmaps, or refuse to answer with them.

    Raises:
        AnswerTooLargeError: more numbers than `limit`, or than there is ever memory for.
        OutOfMemoryError: there is no memory for them at present.
    """
    count = check_values(explanations, limit)
    largest = max((explanation.geometry.width * explanation.geometry.height for explanation in explanations), default=0)
    account().take(4 * (count + _COPIES * largest), ANSWER)


def check_values(explanations: Sequence[Explanation], limit: int) -> int:
    """Return how many numbers these heatmaps have.

    Raises:
        AnswerTooLargeError: more than `limit`.
    """
    count = sum(explanation.geometry.width * explanation.geometry.height for explanation in explanations)
    if count > limit:
        raise AnswerTooLargeError(
            f"The heatmaps hold {count:,} numbers, more than the {limit:,} that one answer may; explain fewer classes "
            "at a time, or send a smaller picture."
        )
    return count


def drawn_bytes(width: int, height: int, drawings: int = 1) -> int:
    """Return the bytes that it takes at the most to make and encode drawings, one after another."""
    return width * height * (_DRAWN_BYTES + _ENCODED_BYTES * drawings)


def _drawing_bytes(explained: ExplainResult) -> int:
    geometry, count = explained.explanations[0].geometry, len(explained.explanations)
    width, height = fitted(geometry.width, geometry.height, explained.style.max_side)
    return drawn_bytes(width, height, count) * (2 if explained.style.view == "side-by-side" else 1)
