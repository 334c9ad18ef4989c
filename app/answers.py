"""What a request is answered with: a drawing, an npz file, or a JSON document."""

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from PIL import Image

from app.errors import AnswerTooLargeError
from app.schemas import (
    DiagnosticAnswer,
    Drawing,
    ExplainAnswer,
    ExplanationAnswer,
    HeatmapAnswer,
    MethodIdentity,
    ModelIdentity,
    PredictAnswer,
    PredictionAnswer,
    TargetAnswer,
)
from app.service import VERSIONS, Explained, Predicted
from explainers.base import Explainer
from explainers.explanation import Explanation
from explainers.registry import Method
from explainers.render import Style, normalize, panel, panel_columns
from explainers.targets import Prediction
from models import LoadedModel


def predicted(found: Predicted) -> PredictAnswer:
    """Return the answer of /predict."""
    return PredictAnswer(model=identity(found.model), predictions=ranked(found.predictions))


def draw(explained: Explained) -> Image.Image:
    """Draw the answer: one picture, or a labelled panel where several classes are explained.

    Raises:
        DeadlineError: too many tiles for the time that is left.
    """
    found = explained.explanations
    style = _fitting(explained.style, panel_columns(len(found)))
    tiles = []
    for one in found:
        explained.deadline.check()
        tiles.append(one.drawn(style))
    return tiles[0] if len(tiles) == 1 else panel(tiles, [_caption(one.target) for one in found])


def encode(picture: Image.Image, form: Drawing) -> bytes:
    """Encode a picture as PNG, JPEG or WebP."""
    settings: Mapping[Drawing, dict[str, Any]] = {
        "png": {"compress_level": 3},
        "jpeg": {"quality": 90},
        "webp": {"quality": 90, "method": 2},
    }
    buffer = io.BytesIO()
    picture.save(buffer, form.upper(), **settings[form])
    return buffer.getvalue()


def arrays(explained: Explained, max_values: int) -> bytes:
    """Return the answer as an npz file: heatmaps (T, H, W), maps (T, h, w), targets (T), logits (K).

    Raises:
        AnswerTooLargeError: more numbers than allowed.
    """
    found = explained.explanations
    _check_values(found, max_values)
    geometry = found[0].geometry
    heatmaps = np.empty((len(found), geometry.height, geometry.width), dtype=np.float32)
    for heatmap, explanation in zip(heatmaps, found, strict=True):
        explained.deadline.check()
        heatmap[:] = normalize(explanation.raw_heatmap, explanation.signed)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        heatmaps=heatmaps,
        maps=np.stack([explanation.map for explanation in found]),
        targets=np.array([explanation.target.index for explanation in found], dtype=np.int64),
        logits=explained.logits,
    )
    return buffer.getvalue()


def document(explained: Explained, values: bool, max_values: int) -> ExplainAnswer:
    """Return the answer as a JSON document.

    Raises:
        AnswerTooLargeError: more numbers than allowed.
    """
    if values:
        _check_values(explained.explanations, max_values)
    answers = []
    style = _fitting(explained.style, 1)
    for explanation in explained.explanations:
        explained.deadline.check()
        with explained.timings.stage("render"):
            drawn = explanation.drawn(style)
        with explained.timings.stage("encode"):
            png = base64.b64encode(encode(drawn, "png")).decode("ascii")
        answers.append(
            ExplanationAnswer(
                target=TargetAnswer(**asdict(explanation.target)),
                heatmap=_heatmap(explanation, values),
                overlay=f"data:image/png;base64,{png}",
                diagnostics=[DiagnosticAnswer(**asdict(found)) for found in explanation.diagnostics],
            )
        )
    first = explained.explanations[0]
    return ExplainAnswer(
        model=identity(explained.model),
        method=method_identity(explained.method, explained.explainer),
        layers=list(first.layers),
        predictions=ranked(first.predictions),
        explanations=answers,
        timings_ms={name: round(milliseconds, 3) for name, milliseconds in explained.timings.stages.items()},
        versions=VERSIONS,
    )


def _fitting(style: Style, columns: int) -> Style:
    """Return the style with which so many tiles in a row, captions included, stay within the longest side allowed."""
    if style.max_side is None:
        return style
    across = columns * (2 if style.view == "side-by-side" else 1)
    captions = 1.1 if columns > 1 else 1
    return replace(style, max_side=max(16, int(style.max_side / across / captions)))


def _caption(target: Prediction) -> str:
    return f"{target.label} {target.probability:.1%}" if target.probability >= 0.001 else f"{target.label} <0.1%"


def _heatmap(explanation: Explanation, values: bool) -> HeatmapAnswer:
    geometry = explanation.geometry
    shape = (geometry.height, geometry.width)
    raw = geometry.scaled(*explanation.picture.size).lay_back(explanation.map)
    low, high = float(raw.min()), float(raw.max())
    if not values:
        return HeatmapAnswer(shape=shape, min=low, max=high)
    return HeatmapAnswer(shape=shape, min=low, max=high, values=explanation.heatmap.tolist())


def method_identity(method: Method, explainer: Explainer) -> MethodIdentity:
    """Return which method explained, with which options."""
    options = {name: value for name, value in asdict(explainer).items() if name != "layers"}
    return MethodIdentity(name=method.name, options=options)


def identity(model: LoadedModel) -> ModelIdentity:
    """Return which model answered."""
    return ModelIdentity(name=model.name, weights=model.weights, sha256=model.sha256)


def ranked(found: tuple[Prediction, ...]) -> list[PredictionAnswer]:
    """Return predictions as answers have them."""
    return [PredictionAnswer(index=one.index, label=one.label, probability=one.probability) for one in found]


def _check_values(found: list[Explanation], limit: int) -> None:
    wanted = sum(explanation.geometry.width * explanation.geometry.height for explanation in found)
    if wanted > limit:
        raise AnswerTooLargeError(
            f"The heatmaps hold {wanted:,} numbers, more than the {limit:,} that one answer may; explain fewer classes "
            "at a time, or send a smaller picture."
        )
