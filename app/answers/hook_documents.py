"""What requests about hooks are answered with: drawings, arrays and JSON documents."""

import base64
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.app.answers.documents import drawn_bytes, encode, identity, method_identity, ranked
from seewhy.app.answers.schemas import (
    CaptureAnswer,
    CapturedAnswer,
    DiagnosticAnswer,
    DifferenceAnswer,
    HeatmapAnswer,
    InterveneAnswer,
    SideAnswer,
    SweepAnswer,
    TargetAnswer,
    TraceAnswer,
)
from seewhy.app.answers.stream import Body, json_parts
from seewhy.app.errors import AnswerTooLargeError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.ask import VERSIONS
from seewhy.app.pipeline.choices import Drawing
from seewhy.app.pipeline.results import CaptureResult, InterveneResult, SweepResult, TraceResult
from seewhy.app.pipeline.timings import Timings
from seewhy.explainers.errors import EditError
from seewhy.explainers.inspection.capture import strongest
from seewhy.explainers.inspection.intervene import Intervention
from seewhy.explainers.inspection.sheets import contact_sheet, intervention_panel, sweep_sheet
from seewhy.explainers.inspection.statistics import statistics
from seewhy.explainers.results.explanation import Explanation

_TILES = 3
"""Pictures side by side in a drawing about hooks."""


def trace_document(traced: TraceResult) -> TraceAnswer:
    """Return the time line as a JSON document."""
    return TraceAnswer(
        model=identity(traced.model),
        target=TargetAnswer(**asdict(traced.target)),
        summary=traced.trace.summary,
        events=list(traced.trace.events),
        timings_ms=_milliseconds(traced.timings),
        versions=VERSIONS,
    )


def trace_chart(traced: TraceResult, form: Literal["svg", "png"]) -> bytes:
    """Draw the time line."""
    # Matplotlib takes a second to import, and nothing else needs it.
    from seewhy.explainers.inspection.trace_chart import draw_trace

    return draw_trace(traced.trace, form, f"{traced.model.name}: {traced.target.label} {traced.target.probability:.1%}")


def capture_document(captured: CaptureResult) -> CaptureAnswer:
    """Return the statistics of what was captured as a JSON document."""
    tensors = [
        CapturedAnswer(
            key=item.key,
            layer=item.layer,
            kind=item.kind,
            call=item.call,
            name=item.name,
            statistics=None if item.tensor is None else statistics(item.tensor),
        )
        for item in captured.capture.tensors
    ]
    return CaptureAnswer(
        model=identity(captured.model),
        target=TargetAnswer(**asdict(captured.target)),
        tensors=tensors,
        timings_ms=_milliseconds(captured.timings),
        versions=VERSIONS,
    )


def capture_sheet(captured: CaptureResult, count: int, by_effect: bool) -> Image.Image:
    """Draw the strongest feature maps.

    Raises:
        LayerError: nothing that was captured is a grid of features.
    """
    maps = strongest(captured.capture, count, by_effect)
    return contact_sheet(maps, captured.shown.picture, captured.shown.geometry, captured.style, by_effect)


def intervention_body(intervened: InterveneResult, values: bool, max_values: int) -> Body:
    """Return what edits changed as JSON, as `intervention_document` does.

    Raises:
        AnswerTooLargeError: more numbers than allowed, or than there is ever memory for.
        OutOfMemoryError: there is no memory for them at present.
    """
    intervention = intervened.intervention
    count = _check_values(intervention, max_values) if values else 0
    account().take(4 * 2 * count, ANSWER)
    with account().holding(drawn_bytes(*intervention.before.picture.size, _TILES), ANSWER):
        content = intervention_document(intervened, False, max_values).model_dump(mode="json")
    if values:
        raw, largest = _raw(intervention, exact=True)
        for part, heatmap in zip((content["before"], content["after"], content["difference"]), raw, strict=True):
            part["heatmap"]["values"] = heatmap / np.float32(largest)
    body = json_parts(content)
    return body if values else body.whole()


def _check_values(intervention: Intervention, most: int) -> int:
    count = 3 * intervention.before.geometry.width * intervention.before.geometry.height
    if count > most:
        raise AnswerTooLargeError(
            f"The heatmaps hold {count:,} numbers, more than the {most:,} that one answer may; send a smaller "
            "picture, or leave values out."
        )
    return count


def _raw(intervention: Intervention, exact: bool) -> tuple[list[NDArray[np.float32]], float]:
    """Return the maps before, after and their difference, and the largest magnitude of the first two.

    Unless they are to be exact, they are as large as the picture is drawn, which may be smaller than the upload.
    """
    before, after = intervention.before, intervention.after
    geometry = before.geometry if exact else before.geometry.scaled(*before.picture.size)
    raw = [geometry.lay_back(side.map) for side in (before, after)]
    raw.append(raw[1] - raw[0])
    return raw, max(float(np.abs(values).max()) for values in raw[:2]) or 1.0


def intervention_document(intervened: InterveneResult, values: bool, max_values: int) -> InterveneAnswer:
    """Return what edits changed as a JSON document.

    Raises:
        AnswerTooLargeError: more numbers than allowed.
    """
    intervention = intervened.intervention
    before, after = intervention.before, intervention.after
    if values:
        _check_values(intervention, max_values)
    raw, largest = _raw(intervention, values)
    heatmaps = [
        HeatmapAnswer(
            shape=(before.geometry.height, before.geometry.width),
            min=float(heatmap.min()),
            max=float(heatmap.max()),
            values=(heatmap / np.float32(largest)).tolist() if values else None,
        )
        for heatmap in raw
    ]
    with intervened.timings.stage("render"):
        panel = intervention_drawing(intervened)
    with intervened.timings.stage("encode"):
        png = base64.b64encode(encode(panel, "png")).decode("ascii")
    return InterveneAnswer(
        model=identity(intervened.model),
        method=method_identity(intervened.method, intervened.explainer),
        layers=list(before.layers),
        target=TargetAnswer(**asdict(before.target)),
        edits=list(intervention.edits),
        before=_side(before, heatmaps[0]),
        after=_side(after, heatmaps[1]),
        difference=DifferenceAnswer(
            logit=intervention.logit_change, probability=intervention.probability_change, heatmap=heatmaps[2]
        ),
        applied=list(intervention.applied),
        panel=f"data:image/png;base64,{png}",
        timings_ms=_milliseconds(intervened.timings),
        versions=VERSIONS,
    )


def intervention_drawing(intervened: InterveneResult) -> Image.Image:
    """Draw the heatmaps before, after and their difference."""
    return intervention_panel(intervened.intervention.before, intervened.intervention.after, intervened.style)


def sweep_document(swept: SweepResult) -> SweepAnswer:
    """Return the ranked channels as a JSON document."""
    return SweepAnswer(
        model=identity(swept.model),
        layer=swept.sweep.layer,
        edit=swept.sweep.edit,
        target=TargetAnswer(**asdict(swept.target)),
        predictions=ranked(swept.top),
        channels=list(swept.sweep.channels),
        timings_ms=_milliseconds(swept.timings),
        versions=VERSIONS,
    )


def sweep_drawing(swept: SweepResult, count: int) -> Image.Image:
    """Draw the feature maps of the first channels.

    Raises:
        EditError: the layer's output is no grid of features.
    """
    sheet = sweep_sheet(swept.sweep, count, swept.shown.picture, swept.shown.geometry, swept.style)
    if sheet is None:
        raise EditError(
            f"{swept.sweep.layer or '.'!r} has no grid of features that could be drawn; use format=json.",
            field="edits[0].layer",
        )
    return sheet


def encoded(draw: Callable[[], Image.Image], form: Drawing, timings: Timings, background: Image.Image) -> bytes:
    """Draw over a picture and encode, and count the time and the memory of both."""
    with account().holding(drawn_bytes(*background.size, _TILES), ANSWER):
        with timings.stage("render"):
            picture = draw()
        with timings.stage("encode"):
            return encode(picture, form)


def _side(explanation: Explanation, heatmap: HeatmapAnswer) -> SideAnswer:
    return SideAnswer(
        logit=explanation.target.logit,
        probability=explanation.target.probability,
        predictions=ranked(explanation.predictions),
        heatmap=heatmap,
        diagnostics=[DiagnosticAnswer(**asdict(diagnostic)) for diagnostic in explanation.diagnostics],
    )


def _milliseconds(timings: Timings) -> dict[str, float]:
    return {name: round(milliseconds, 3) for name, milliseconds in timings.stages.items()}
