"""Results of requests, from which answers are made."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.options import SegmentOptions
from seewhy.app.pipeline.plan import Methods
from seewhy.app.pipeline.timings import Timings
from seewhy.explainers.core.task import Prediction
from seewhy.explainers.detect import DetectedBox
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import Capture
from seewhy.explainers.inspection.intervene import Intervention
from seewhy.explainers.inspection.sweep import Sweep
from seewhy.explainers.inspection.trace import Trace
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.likeness import Likeness
from seewhy.explainers.results.segments import Segments
from seewhy.explainers.view import View
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class PredictResult:
    """Everything that an answer of /predict is made from.

    Attributes:
        model: the model that answered.
        predictions: the most probable classes.
        outputs: outputs of the model, (K,) float32 logits of a classifier.
        timings: timings of the stages.
    """

    model: LoadedModel
    predictions: tuple[Prediction, ...]
    outputs: "np.ndarray[Any, np.dtype[np.float32]]"
    timings: Timings


@dataclass(frozen=True)
class DetectResult:
    """Everything that an answer of /detect is made from."""

    model: LoadedModel
    boxes: tuple[DetectedBox, ...]
    timings: Timings


@dataclass(frozen=True)
class ExplainResult:
    """Everything that an answer of /explain is made from.

    Attributes:
        model: the model that answered.
        methods: the methods with their options.
        explanations: one per explained class and method, grouped by class.
        style: how to draw them.
        outputs: outputs of the model, (K,) float32 logits of a classifier.
        timings: timings of the stages so far.
        deadline: deadline of the request.
    """

    model: LoadedModel
    methods: Methods
    explanations: list[Explanation]
    style: Style
    outputs: "np.ndarray[Any, np.dtype[np.float32]]"
    timings: Timings
    deadline: Deadline

    @property
    def targets(self) -> tuple[Prediction, ...]:
        """The explained classes, each once: passes of several methods may differ by rounding."""
        targets = [explanation.target for explanation in reversed(self.explanations)]
        return tuple({target.name: target for target in targets}.values())[::-1]


@dataclass(frozen=True)
class SimilarResult:
    """Everything that an answer of /similar is made from."""

    model: LoadedModel
    likeness: Likeness
    style: Style
    timings: Timings


@dataclass(frozen=True)
class SegmentResult:
    """Everything that an answer of /segment is made from."""

    model: LoadedModel
    segments: Segments
    options: SegmentOptions
    timings: Timings


@dataclass(frozen=True)
class TargetResult:
    """The part that the answers about hooks at one target share."""

    model: LoadedModel
    target: Prediction
    timings: Timings


@dataclass(frozen=True)
class TraceResult(TargetResult):
    """Everything that an answer of /hooks/trace is made from."""

    trace: Trace


@dataclass(frozen=True)
class CaptureResult(TargetResult):
    """Everything that an answer of /hooks/capture is made from."""

    capture: Capture
    picture: View
    style: Style


@dataclass(frozen=True)
class InterveneResult:
    """Everything that an answer of /hooks/intervene is made from."""

    model: LoadedModel
    method: Method
    explainer: Explainer
    intervention: Intervention
    style: Style
    timings: Timings


@dataclass(frozen=True)
class SweepResult(TargetResult):
    """Everything that an answer of /hooks/intervene with each_channel is made from."""

    sweep: Sweep
    top: tuple[Prediction, ...]
    picture: View
    style: Style
