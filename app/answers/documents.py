"""Bodies of answers: drawings, npz files and JSON documents."""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import ceil, isfinite
from typing import Any, Literal

import numpy as np
from PIL import Image

from seewhy.app.answers import schemas
from seewhy.app.answers.stream import Body, file_parts, json_parts
from seewhy.app.errors import AnswerTooLargeError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.choices import Drawing, Format
from seewhy.app.pipeline.record import Timings
from seewhy.app.pipeline.results import DetectResult, EvaluateResult, ExplainResult, PredictResult, Result
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.png import encode_png
from seewhy.explainers.imaging.render import fit, fitted, normalize, panel, panel_columns
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.array_files import ArrayFile
from seewhy.explainers.results.display import QUALITY
from seewhy.explainers.results.explanation import Explanation, arrays_of, members_of
from seewhy.explainers.results.origin import VERSIONS, options_of
from seewhy.explainers.results.predictions import ranked, target_of
from seewhy.explainers.tasks.detected import named
from seewhy.explainers.trust.metrics.measure import is_control
from seewhy.models import LoadedModel

_COPIES = 3
"""Bytes per value of a heatmap while it is resized to the picture and scaled."""

_DRAWN_BYTES = 32
"""Bytes per pixel of a drawing while it is drawn."""

_ENCODED_BYTES = 12
"""Bytes per pixel of a drawing as PNG, as base64 and within JSON."""


def evaluation_document(result: EvaluateResult) -> schemas.EvaluateAnswer:
    """Return the answer of /evaluate."""
    methods = [
        schemas.MethodValuesAnswer(
            **identity_of(name, explainer).model_dump(),
            control=is_control(explainer),
            values={
                column: value if isfinite(value := float(values)) else None
                for column, values in result.values[name].items()
            },
            reasons=dict(result.reasons[name]),
        )
        for name, explainer in result.explainers.items()
    ]
    return schemas.EvaluateAnswer(
        **head_of(result),
        target=target_of(result.target),
        metrics=list(result.columns),
        left_out=[name for name, rows in result.left_out.items() if rows.any()],
        methods=methods,
    )


def predict_document(result: PredictResult) -> schemas.PredictAnswer:
    """Return the answer of /predict."""
    return schemas.PredictAnswer(model=model_identity(result.model), predictions=ranked(result.predictions))


def detect_document(result: DetectResult) -> schemas.DetectAnswer:
    """Return the answer of /detect."""
    return schemas.DetectAnswer(model=model_identity(result.model), boxes=list(result.boxes))


def explain_body(result: ExplainResult, form: Format, values: bool | Literal["map"], settings: Settings) -> Body:
    """Return the body of explanations in a format.

    Args:
        values: as for `json_documents`.
    """
    if form == "json":
        body = json_parts(json_documents([result], values, settings.max_json_values)[0])
        return body if values is True else body.join()
    if form == "npz":
        with result.timings.stage("encode"):
            return file_parts(arrays(result, settings.max_values))
    return drawing(result, form)


def drawing(result: ExplainResult, form: Drawing) -> bytes:
    """Draw explanations and encode the drawing; errors as in `draw`, and `OutOfMemoryError`."""
    return encoded(lambda: draw(result), form, result.timings, _drawing_bytes(result))


def encoded(draw: Callable[[], Image.Image], form: Drawing, timings: Timings, size: int) -> bytes:
    """Draw and encode the drawing, counting time and memory (`drawn_bytes`) of both.

    Raises:
        OutOfMemoryError: there is no memory for it at present.
    """
    with account().holding(size, ANSWER):
        with timings.stage("render"):
            picture = draw()
        with timings.stage("encode"):
            return encode(picture, form)


def draw(result: ExplainResult) -> Image.Image:
    """Draw explanations: one picture, or a labelled panel of several.

    Raises:
        DeadlineError: there are too many tiles for the remaining time.
    """
    explanations = result.explanations
    columns = _columns(result)
    style = result.style.of_tiles(columns, ceil(len(explanations) / columns), 1.1 if len(explanations) > 1 else 1.0)
    small = fit(explanations[0].picture, style.max_side)  # all share one upload
    tiles = []
    for explanation in explanations:
        result.deadline.check()
        # Among other maps, a map is a single tile even if it has regions.
        if explanation.regions and len(result.methods) == 1:
            tiles.append(explanation.draw(style))
        else:
            tiles.append(replace(explanation, picture=small).draw_map(style))
    if len(tiles) == 1:
        return tiles[0]
    return panel(tiles, [_caption(explanation, result) for explanation in explanations], columns)


def encode(picture: Image.Image, form: Drawing) -> bytes:
    """Encode a picture as PNG, JPEG or WebP."""
    if form == "png":
        return encode_png(picture)
    buffer = io.BytesIO()
    picture.save(buffer, form.upper(), **QUALITY[f".{form}"])
    return buffer.getvalue()


def arrays(result: ExplainResult, max_values: int) -> ArrayFile:
    """Return explanations as an npz file; see `arrays_of`.

    Raises:
        AnswerTooLargeError: there are more values than allowed, or than ever fit into memory.
        OutOfMemoryError: there is no memory for them at present.
    """
    explanations = result.explanations
    take_heatmaps(explanations, max_values)
    geometry = explanations[0].geometry
    heatmaps = np.empty((len(explanations), geometry.height, geometry.width), dtype=np.float32)
    for heatmap, explanation in zip(heatmaps, explanations, strict=True):
        result.deadline.check()
        heatmap[:] = normalize(explanation.raw_heatmap, explanation.signed)
    return ArrayFile("npz", arrays_of(explanations, heatmaps, result.outputs))


def json_documents(
    results: Sequence[ExplainResult], values: bool | Literal["map"], max_values: int
) -> list[dict[str, Any]]:
    """Return explanations as JSON documents in which heatmaps are still arrays; see `stream.json_parts`.

    Args:
        results: the explanations, of one picture each.
        values: whether to include the values of the heatmaps; ``map`` for the methods' raw maps.

    Raises:
        AnswerTooLargeError, OutOfMemoryError: as in `arrays`.
        DeadlineError: there are too many drawings for the remaining time.
    """
    if values is True:
        take_heatmaps([explanation for result in results for explanation in result.explanations], max_values)
    documents = []
    for result in results:
        with account().holding(_drawing_bytes(result), ANSWER):
            documents.append(_document(result, "values" if values is True else "map" if values == "map" else None))
    return documents


def _document(result: ExplainResult, numbers: Literal["values", "map"] | None) -> dict[str, Any]:
    style = result.style.of_tiles(1)
    options = {method.name: options_of(explainer) for method, explainer in result.methods}
    parts = []
    for explanation in result.explanations:
        result.deadline.check()
        with result.timings.stage("render"):
            overlay = explanation.draw(style)
        with result.timings.stage("encode"):
            png = encode_png(overlay)
        parts.append(explanation.part(style, png, options[explanation.method], numbers))
    methods = [{"name": name, "options": own} for name, own in options.items()]
    return {**head_of(result), **members_of(result.explanations, methods, parts)}


def layers_of(result: ExplainResult) -> tuple[str, ...]:
    """Return the layers of the explanations, each once."""
    return tuple(dict.fromkeys(layer for explanation in result.explanations for layer in explanation.layers))


def _columns(result: ExplainResult) -> int:
    """Return the number of columns of a panel: one per method if there are several methods and several classes."""
    methods, maps = len(result.methods), len(result.explanations)
    return methods if methods > 1 and maps > methods else panel_columns(maps)


def _caption(explanation: Explanation, result: ExplainResult) -> str:
    target, against = explanation.target, explanation.against
    text = f"{named(target)} {target.text}" + (f" against {against.label}" if against else "")
    return f"{explanation.method}: {text}" if len(result.methods) > 1 else text


def identity_of(name: str, explainer: Explainer) -> schemas.MethodIdentity:
    """Return a method by its name and its options."""
    return schemas.MethodIdentity(name=name, options=options_of(explainer))


def head_of(result: Result) -> dict[str, Any]:
    """Return the members of all documents that say how long the work has taken."""
    return {"model": asdict(result.model.identity), "timings_ms": result.timings.milliseconds, "versions": VERSIONS}


def model_identity(model: LoadedModel) -> schemas.ModelIdentity:
    """Return the identity of a model."""
    return schemas.ModelIdentity(**asdict(model.identity))


def take_heatmaps(
    explanations: Sequence[Explanation], limit: int, remedy: str = "explain fewer classes at a time"
) -> None:
    """Take memory for the values of the heatmaps of explanations; arguments and errors as in `take_values`."""
    take_values([part.geometry.width * part.geometry.height for part in explanations], limit, remedy)


def take_values(sizes: Sequence[int], limit: int, remedy: str) -> None:
    """Take memory for the values of these maps, or refuse them.

    Raises:
        AnswerTooLargeError: there are more values than `limit`, or than ever fit into memory.
        OutOfMemoryError: there is no memory for them at present.
    """
    if sum(sizes) > limit:
        raise AnswerTooLargeError(
            f"The heatmaps have {sum(sizes):,} values, more than the {limit:,} allowed in one response; {remedy}, or "
            "use a smaller picture."
        )
    account().take(4 * (sum(sizes) + _COPIES * max(sizes, default=0)), ANSWER)


def drawn_bytes(width: int, height: int, drawings: int = 1) -> int:
    """Return the maximum bytes for drawing and encoding pictures one after another."""
    return width * height * (_DRAWN_BYTES + _ENCODED_BYTES * drawings)


def _drawing_bytes(result: ExplainResult) -> int:
    geometry, count = result.explanations[0].geometry, len(result.explanations)
    width, height = fitted(geometry.width, geometry.height, result.style.max_side)
    return drawn_bytes(width, height, count) * result.style.across
