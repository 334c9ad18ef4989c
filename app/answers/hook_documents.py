"""Bodies of answers about hooks: drawings, arrays and JSON documents."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel

from seewhy.app.answers import schemas
from seewhy.app.answers.documents import (
    drawn_bytes,
    encoded,
    head_of,
    identity_of,
    take_heatmaps,
)
from seewhy.app.answers.stream import Body, file_parts, json_parts
from seewhy.app.pipeline.choices import CaptureFormat, Drawing, InterveneFormat, TraceFormat
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions
from seewhy.app.pipeline.record import Timings
from seewhy.app.pipeline.results import CaptureResult, InterveneResult, SweepResult, TargetResult, TraceResult
from seewhy.explainers.errors import EditError
from seewhy.explainers.imaging.png import data_url
from seewhy.explainers.inspection.capture import contact_sheet, strongest
from seewhy.explainers.inspection.intervene import Intervention, intervention_panel
from seewhy.explainers.inspection.sweep import sweep_sheet
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.predictions import ranked, target_of

_TILES = 3
"""Number of pictures side by side in a drawing about hooks."""


def trace_body(result: TraceResult, form: TraceFormat) -> bytes:
    """Return the body of a timeline in a format."""
    if form == "json":
        trace = result.trace
        return _json(schemas.TraceAnswer(**_head(result), summary=trace.summary, events=list(trace.events)))
    title = f"{result.model.name}: {result.target.label} {result.target.text}"
    with result.timings.stage("render"):
        return result.trace.drawn(form, title)


def capture_body(result: CaptureResult, form: CaptureFormat, options: CaptureOptions) -> Body:
    """Return the body of a capture in a format.

    Raises:
        LayerError: the format is a drawing, but no captured tensor is a grid of features.
        OutOfMemoryError: there is no memory for the drawing at present.
    """
    if form == "json":
        rows = result.capture.tensors
        tensors = [schemas.CapturedAnswer.model_validate(tensor, from_attributes=True) for tensor in rows]
        return _json(schemas.CaptureAnswer(**_head(result), tensors=tensors))
    if form == "npz" or form == "safetensors":
        with result.timings.stage("encode"):
            return file_parts(result.capture.file(form))
    picture, by_effect = result.picture, options.rank == "effect"

    def sheet() -> Image.Image:
        maps = strongest(result.capture, options.top, by_effect)
        return contact_sheet(maps, picture.picture, picture.geometry, result.style, by_effect)

    return _drawing(sheet, form, result.timings, picture.picture)


def intervention_body(result: InterveneResult, form: InterveneFormat, values: bool, max_values: int) -> Body:
    """Return the body of an intervention in a format."""
    intervention = result.intervention
    picture = intervention.before.picture

    def panel() -> Image.Image:
        return intervention_panel(intervention.before, intervention.after, result.style)

    if form != "json":
        return _drawing(panel, form, result.timings, picture)
    if values:
        sides = intervention.before, intervention.after
        take_heatmaps([*sides, sides[1]], max_values, remedy="leave values out")  # the third is their difference
    content = _intervention_answer(result, _drawing(panel, "png", result.timings, picture)).model_dump(mode="json")
    if values:
        heatmaps, largest = _heatmaps(intervention, is_exact=True)
        for part, heatmap in zip(("before", "after", "difference"), heatmaps, strict=True):
            content[part]["heatmap"]["values"] = heatmap / np.float32(largest)
    body = json_parts(content)
    return body if values else body.join()


def sweep_body(result: SweepResult, form: InterveneFormat, options: InterveneOptions) -> bytes:
    """Return the body of ranked channels in a format; a drawing shows the feature maps of the first ones.

    Raises:
        EditError: the format is a drawing, but the layer's output is not a grid of features.
        OutOfMemoryError: there is no memory for the drawing at present.
    """
    sweep, picture = result.sweep, result.picture
    if form == "json":
        content = {"layer": sweep.layer, "edit": sweep.edit, "channels": list(sweep.channels)}
        return _json(schemas.SweepAnswer(**_head(result), **content, predictions=ranked(result.top)))

    def sheet() -> Image.Image:
        drawing = sweep_sheet(sweep, options.top, picture.picture, picture.geometry, result.style)
        if drawing is None:
            raise EditError(
                f"{sweep.layer or '.'!r} has no grid of features to draw; use format=json.",
                field="edits[0].layer",
            )
        return drawing

    return _drawing(sheet, form, result.timings, picture.picture)


def _drawing(draw: Callable[[], Image.Image], form: Drawing, timings: Timings, background: Image.Image) -> bytes:
    return encoded(draw, form, timings, drawn_bytes(*background.size, _TILES))


def _json(answer: BaseModel) -> bytes:
    return answer.model_dump_json().encode()


def _head(result: TargetResult) -> dict[str, Any]:
    """Return the members of all documents about the hooks of one target."""
    return {**head_of(result), "target": target_of(result.target)}


def _heatmaps(intervention: Intervention, is_exact: bool) -> tuple[list[NDArray[np.float32]], float]:
    """Return the maps before, after and their difference, and the largest magnitude of the first two.

    Unless they must be exact, they have the size of the drawing, which may be smaller than the upload.
    """
    before, after = intervention.before, intervention.after
    geometry = before.geometry if is_exact else before.geometry.scaled(*before.picture.size)
    heatmaps = [geometry.lay_back(side.map) for side in (before, after)]
    heatmaps.append(heatmaps[1] - heatmaps[0])
    return heatmaps, max(float(np.abs(values).max()) for values in heatmaps[:2]) or 1.0


def _intervention_answer(result: InterveneResult, panel: bytes) -> schemas.InterveneAnswer:
    intervention = result.intervention
    before, after, geometry = intervention.before, intervention.after, intervention.before.geometry
    heatmaps = [
        schemas.HeatmapAnswer(
            shape=(geometry.height, geometry.width), min=float(heatmap.min()), max=float(heatmap.max())
        )
        for heatmap in _heatmaps(intervention, is_exact=False)[0]
    ]
    return schemas.InterveneAnswer(
        **head_of(result),
        method=identity_of(result.method.name, result.explainer),
        layers=list(before.layers),
        target=target_of(before.target),
        edits=list(intervention.edits),
        before=_side(before, heatmaps[0]),
        after=_side(after, heatmaps[1]),
        difference=schemas.DifferenceAnswer(
            score=intervention.score_change, probability=intervention.probability_change, heatmap=heatmaps[2]
        ),
        applied=list(intervention.applied),
        panel=data_url(panel),
    )


def _side(explanation: Explanation, heatmap: schemas.HeatmapAnswer) -> schemas.SideAnswer:
    return schemas.SideAnswer(
        target=target_of(explanation.target),
        predictions=ranked(explanation.predictions),
        heatmap=heatmap,
        diagnostics=list(explanation.diagnostics),
    )
