"""Results of requests, from which responses are made."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.options import SegmentOptions
from seewhy.app.pipeline.plan import Methods
from seewhy.app.pipeline.record import Timings
from seewhy.explainers.core.task import Prediction
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import Capture
from seewhy.explainers.inspection.intervene import Intervention
from seewhy.explainers.inspection.sweep import Sweep
from seewhy.explainers.inspection.trace import Trace
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.boxes import DetectedBox
from seewhy.explainers.results.evaluation import Column
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.likeness import Likeness
from seewhy.explainers.results.segments import Segments
from seewhy.explainers.view import View
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class Result:
    """The part that all results share."""

    model: LoadedModel
    timings: Timings


@dataclass(frozen=True)
class PredictResult(Result):
    """Everything that an answer of /predict is made from.

    Attributes:
        outputs: outputs of the model, (K,) float32 logits of a classifier.
    """

    predictions: tuple[Prediction, ...]
    outputs: NDArray[np.float32]


@dataclass(frozen=True)
class DetectResult(Result):
    """Everything that an answer of /detect is made from."""

    boxes: tuple[DetectedBox, ...]


@dataclass(frozen=True)
class ExplainResult(Result):
    """Everything that an answer of /explain is made from.

    Attributes:
        explanations: one per explained class and method, grouped by class.
        outputs: outputs of the model, (K,) float32 logits of a classifier.
    """

    methods: Methods
    explanations: list[Explanation]
    style: Style
    outputs: NDArray[np.float32]
    deadline: Deadline

    @property
    def targets(self) -> tuple[Prediction, ...]:
        """The explained classes, each once: passes of several methods may differ by rounding."""
        targets = [explanation.target for explanation in reversed(self.explanations)]
        return tuple({target.name: target for target in targets}.values())[::-1]


@dataclass(frozen=True)
class SimilarResult(Result):
    """Everything that an answer of /similar is made from."""

    likeness: Likeness
    style: Style


@dataclass(frozen=True)
class SegmentResult(Result):
    """Everything that an answer of /segment is made from."""

    segments: Segments
    options: SegmentOptions


@dataclass(frozen=True)
class TargetResult(Result):
    """The part that the answers about hooks at one target share."""

    target: Prediction


@dataclass(frozen=True)
class EvaluateResult(TargetResult):
    """Everything that an answer of /evaluate is made from.

    Attributes:
        explainers: the methods by name, controls among them.
        values: by method and column, (1,).
        reasons: by method and metric, why there is no value.
        left_out: by column, (1,) bool, whether the values do not count in means.
    """

    explainers: Mapping[str, Explainer]
    columns: tuple[Column, ...]
    values: Mapping[str, Mapping[str, Tensor]]
    reasons: Mapping[str, Mapping[str, str]]
    left_out: Mapping[str, Tensor]


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
class InterveneResult(Result):
    """Everything that an answer of /hooks/intervene is made from."""

    method: Method
    explainer: Explainer
    intervention: Intervention
    style: Style


@dataclass(frozen=True)
class SweepResult(TargetResult):
    """Everything that an answer of /hooks/intervene with each_channel is made from."""

    sweep: Sweep
    top: tuple[Prediction, ...]
    picture: View
    style: Style
