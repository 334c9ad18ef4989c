"""What a request is answered with: a drawing, an npz file, or a JSON document."""

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from app.errors import AnswerTooLargeError
from app.schemas import (
    DiagnosticAnswer,
    ExplainAnswer,
    ExplanationAnswer,
    Format,
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
from explainers.render import panel
from explainers.targets import Prediction
from models import LoadedModel


def predicted(found: Predicted) -> PredictAnswer:
    """Return the answer of /predict."""
    return PredictAnswer(model=_identity(found.model), predictions=_answers(found.predictions))


def draw(explained: Explained) -> Image.Image:
    """Draw the answer: one picture, or a labelled panel where several classes are explained."""
    tiles = [explanation.drawn(explained.style) for explanation in explained.explanations]
    if len(tiles) == 1:
        return tiles[0]
    targets = [explanation.target for explanation in explained.explanations]
    return panel(tiles, [f"{target.label} {target.probability:.1%}" for target in targets])


def encode(picture: Image.Image, form: Format) -> bytes:
    """Encode a picture as PNG, JPEG or WebP."""
    settings: Mapping[Format, dict[str, Any]] = {
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
    buffer = io.BytesIO()
    np.savez(
        buffer,
        heatmaps=np.stack([explanation.heatmap for explanation in found]),
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
    for explanation in explained.explanations:
        with explained.timings.stage("render"):
            drawn = explanation.drawn(explained.style)
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
        model=_identity(explained.model),
        method=MethodIdentity(name=explained.method.name, options=_options(explained.explainer)),
        layers=list(first.layers),
        predictions=_answers(first.predictions),
        explanations=answers,
        timings_ms={name: round(milliseconds, 3) for name, milliseconds in explained.timings.stages.items()},
        versions=VERSIONS,
    )


def _heatmap(explanation: Explanation, values: bool) -> HeatmapAnswer:
    raw = explanation.raw_heatmap
    shape = (raw.shape[0], raw.shape[1])
    low, high = float(raw.min()), float(raw.max())
    if not values:
        return HeatmapAnswer(shape=shape, min=low, max=high)
    return HeatmapAnswer(shape=shape, min=low, max=high, values=explanation.heatmap.tolist())


def _options(explainer: Explainer) -> dict[str, Any]:
    return {name: value for name, value in asdict(explainer).items() if name != "layers"}


def _identity(model: LoadedModel) -> ModelIdentity:
    return ModelIdentity(name=model.name, weights=model.weights, sha256=model.sha256)


def _answers(ranked: tuple[Prediction, ...]) -> list[PredictionAnswer]:
    return [PredictionAnswer(index=one.index, label=one.label, probability=one.probability) for one in ranked]


def _check_values(found: list[Explanation], limit: int) -> None:
    wanted = sum(explanation.picture.width * explanation.picture.height for explanation in found)
    if wanted > limit:
        raise AnswerTooLargeError(
            f"The heatmaps hold {wanted:,} numbers, more than the {limit:,} that one answer may; explain fewer classes "
            "at a time, or send a smaller picture."
        )
