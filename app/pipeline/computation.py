"""Computations of model threads: classify, explain, and tasks for one picture alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from seewhy.app.pipeline.null_scores import NullScores
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.attribution import Attribution, require_finite
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.cam.base import CAM, LayerExplainer
from seewhy.explainers.methods.cam.shared_pass import explain_jointly
from seewhy.explainers.methods.catalogue import passes_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.tasks.pose import pose, predict
from seewhy.explainers.trust.calibration import is_comparable
from seewhy.explainers.trust.faithfulness import STRANGER, prove
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial
from seewhy.models import LoadedModel


class Computation(ABC):
    """A computation on a batch of pictures. Jobs with equal computations share a batch."""

    @abstractmethod
    def run(self, model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Sequence[Any]:
        """Return one result per picture, on the CPU; no other thread runs the model until this one reports progress.

        Args:
            images: (N, C, H, W) float32, normalised, on the model's device.
            progress: called between passes; lets other work run in its turn, and raises once no client waits.
        """

    @abstractmethod
    def outputs(self, result: Any) -> Sequence[Tensor]:
        """Return the model's outputs in the result for one picture; those of segmenters and detectors are large."""

    @abstractmethod
    def passes(self, model: LoadedModel) -> Passes | None:
        """Return the maximum number of passes for one picture; None if unknown."""

    def most(self, model: LoadedModel) -> int | None:
        """Return the maximum number of pictures in a batch; None for the engine's limit."""
        return None

    @property
    @abstractmethod
    def runs_whole(self) -> bool:
        """Whether each pass goes through the whole model."""

    @property
    def part(self) -> type[Explainer] | None:
        """The method whose passes go through the model behind its default layers; None for other passes."""
        return None


MOST_WHOLE = 2
"""Maximum batch on a CPU where backward passes go through the whole model: larger ones gain nothing there, and other
work would wait for all of it."""


@dataclass(frozen=True)
class PredictComputation(Computation):
    """Classify pictures; the maps of the attributions are empty."""

    runs_whole: ClassVar[bool] = True

    def outputs(self, result: Attribution) -> Sequence[Tensor]:
        """Return the outputs of an attribution."""
        return (result.outputs,)

    def passes(self, model: LoadedModel) -> Passes:
        """Return one forward pass."""
        return Passes(1)

    def run(self, model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Sequence[Attribution]:
        """Return one attribution (N = 1) per picture."""
        outputs = predict(model, images)
        targets = model.task.objective(outputs, ask).ask_targets
        no_maps = outputs.new_empty((len(images), 0, 0))
        return Attribution(no_maps, targets, outputs, layers=(), signed=False).rows()


@dataclass(frozen=True)
class ExplainComputation(Computation):
    """Explain pictures by one or several methods; equal explainers and proofs share a batch.

    Attributes:
        trial: parameters of the proof of each map; None without proofs.
        null: collects scores that proofs are compared with; None to collect nothing.
    """

    explainers: tuple[Explainer, ...]
    trial: Trial | None = None
    null: NullScores | None = field(default=None, compare=False)

    def outputs(self, result: Sequence[Attribution]) -> Sequence[Tensor]:
        """Return the outputs of each method's attribution."""
        return [attribution.outputs for attribution in result]

    @property
    def runs_whole(self) -> bool:
        """Whether all passes go through the whole model."""
        return all(explainer.runs_whole for explainer in self.explainers)

    @property
    def part(self) -> type[Explainer] | None:
        """The only method, if it has default layers; the few passes of its proof count as if they were its own."""
        if len(self.explainers) > 1:
            return None
        (explainer,) = self.explainers
        has_default = isinstance(explainer, LayerExplainer) and not explainer.layers
        return type(explainer) if has_default and not explainer.runs_whole else None

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return the passes of all methods and proofs together; shared passes count for each."""
        counts = [passes_of(explainer, model, model.spec.image_shape) for explainer in self.explainers]
        if self.trial is not None:
            counts += [self.trial.passes * len(self.explainers), STRANGER * (self._strangers(model) is not None)]
            counts += [Passes(explainer.is_complete) for explainer in self.explainers]
        numbers = [passes for passes in counts if passes is not None]
        return sum(numbers, Passes()) if len(numbers) == len(counts) else None

    def most(self, model: LoadedModel) -> int | None:
        """Return how many pictures may share a batch."""
        non_cams = [explainer for explainer in self.explainers if not isinstance(explainer, CAM)]
        counts = [passes_of(explainer, model, model.spec.image_shape) for explainer in non_cams]
        is_heavy = any(passes is not None and passes.backwards for passes in counts)
        return MOST_WHOLE if is_heavy and model.device.type == "cpu" else None

    def run(self, model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Sequence[Any]:
        """Return for each picture a sequence of one attribution (N = 1) per method."""
        attributions = explain_jointly(self.explainers, model, images, ask, progress)
        strangers = self._strangers(model)
        attributions = prove(
            model,
            images,
            attributions,
            self.trial,
            progress=progress.unseen,
            strangers=strangers,
            explainers=self.explainers,
        )
        if self.null is not None and strangers is not None:
            rows = [row for row in attributions[0].rows() if is_comparable(model.task, row)]
            self.null.add(model, [row.faithfulness for row in rows if row.faithfulness])
        return list(zip(*(attribution.rows() for attribution in attributions), strict=True))

    def _strangers(self, model: LoadedModel) -> Strangers | None:
        return None if self.trial is None or self.null is None else self.null.strangers(model, self.trial)


@dataclass(frozen=True)
class ChannelGradients(ExplainComputation):
    """Integrated gradients of the model's input, its channels not summed."""

    explainers: tuple[IntegratedGradients]

    def outputs(self, result: Any) -> Sequence[Tensor]:
        """Return no outputs; the result consists of gradients alone."""
        return ()

    def run(self, model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Sequence[Tensor]:
        """Return (C, H, W) float32 per picture."""
        with pose(model, images, ask, progress.unseen) as question:
            contributions, _, _ = self.explainers[0].contributions(question, lambda sums: sums)
            require_finite(contributions)
        return list(contributions.cpu())


@dataclass(frozen=True, eq=False)
class SoloComputation(Computation):
    """A task for one picture that shares no batch.

    Attributes:
        do: takes the model, the picture (1, C, H, W), the question, and a progress function to call between passes,
            never within one.
        cost: number of its passes; None if unknown.
        runs_whole: whether each pass goes through the whole model.
    """

    do: Callable[[LoadedModel, Tensor, Ask, Progress], Any]
    cost: Passes | None
    outputs_of: Callable[[Any], Sequence[Tensor]] = lambda _: ()
    runs_whole: bool = False

    def outputs(self, result: Any) -> Sequence[Tensor]:
        """Return the result of `outputs_of`."""
        return self.outputs_of(result)

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return `cost`."""
        return self.cost

    def most(self, model: LoadedModel) -> int:
        """Return 1."""
        return 1

    def run(self, model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Sequence[Any]:
        """Return the single result."""
        return [self.do(model, images, ask, progress)]
