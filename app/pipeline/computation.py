"""What model threads do with a batch of pictures: classify, explain, and all that is done for one picture alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution, require_finite
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.cam.base import CAM
from seewhy.explainers.methods.catalogue import passes_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.methods.shared_pass import explain_jointly
from seewhy.explainers.tasks.pose import pose, predict
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class Batch:
    """Pictures that share passes of a model.

    Attributes:
        images: (N, C, H, W) float32, normalised, on the model's device.
        ask: what is asked about each.
        progress: lets other work run meanwhile where it is its turn, and raises when nobody waits any more.
    """

    images: Tensor
    ask: Ask = DEFAULT_ASK
    progress: Progress = SILENT


class Computation(Protocol):
    """What a model is to do with a batch of pictures. Jobs whose computations are equal share a batch."""

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Any]:
        """Return one result per picture, on the CPU; no other thread runs the model until this one reports."""

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return how many passes one picture takes, at most; None where nobody knows before."""

    def most(self, model: LoadedModel) -> int | None:
        """Return how many pictures may share a batch; None for as many as the engine lets."""

    @property
    def runs_whole(self) -> bool:
        """Whether each pass is one through the whole model."""


MOST_WHOLE = 2
"""Most pictures of a batch whose backward passes go through the whole model, on a processor: more of them gain nothing
there, and other work would wait for all."""


@dataclass(frozen=True)
class Predict:
    """Classify; the maps of the attributions are empty."""

    runs_whole: ClassVar[bool] = True

    def passes(self, model: LoadedModel) -> Passes:
        """Return that it is one forward pass."""
        return Passes(1)

    def most(self, model: LoadedModel) -> None:
        """Return that any number of pictures may share a batch."""

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Attribution]:
        """Return one attribution (N = 1) per picture."""
        outputs = predict(model, batch.images)
        maps, targets = outputs.new_empty((len(batch.images), 0, 0)), model.task.objective(outputs, batch.ask).targets
        return Attribution(maps, targets, outputs, layers=(), signed=False).rows()


@dataclass(frozen=True)
class Explain:
    """Explain by one method or several; equal explainers share a batch."""

    explainers: tuple[Explainer, ...]

    @property
    def runs_whole(self) -> bool:
        """Whether all passes are through the whole model."""
        return all(explainer.runs_whole for explainer in self.explainers)

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return the passes of all methods together, also those that they share."""
        counts = [passes_of(explainer, model, model.spec.image_shape) for explainer in self.explainers]
        known = [passes for passes in counts if passes is not None]
        return sum(known, Passes()) if len(known) == len(counts) else None

    def most(self, model: LoadedModel) -> int | None:
        """Return how many pictures may share a batch."""
        others = [explainer for explainer in self.explainers if not isinstance(explainer, CAM)]
        counts = [passes_of(explainer, model, model.spec.image_shape) for explainer in others]
        is_heavy = any(passes is not None and passes.backwards for passes in counts)
        return MOST_WHOLE if is_heavy and model.device.type == "cpu" else None

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Sequence[Attribution]]:
        """Return for each picture one attribution (N = 1) per method."""
        attributions = explain_jointly(self.explainers, model, batch.images, batch.ask, batch.progress)
        return list(zip(*(attribution.rows() for attribution in attributions), strict=True))


@dataclass(frozen=True)
class ChannelGradients:
    """Integrated gradients of the model's input, its channels not summed."""

    explainer: IntegratedGradients

    runs_whole: ClassVar[bool] = True

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return the passes of the method."""
        return passes_of(self.explainer, model, model.spec.image_shape)

    def most(self, model: LoadedModel) -> int | None:
        """Return how many pictures may share a batch."""
        return Explain((self.explainer,)).most(model)

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Tensor]:
        """Return (C, H, W) float32 per picture."""
        with pose(model, batch.images, batch.ask, batch.progress.unseen) as question:
            contributions, _, _ = self.explainer.contributions(question, lambda sums: sums)
            require_finite(contributions)
        return list(contributions.cpu())


@dataclass(frozen=True, eq=False)
class Alone:
    """Do something with one picture that shares no batch with any other.

    Attributes:
        do: takes the model, the picture (1, C, H, W), what is asked about it, and the progress to report between
            passes, never within one.
        cost: the passes that it takes; None where nobody knows.
    """

    do: Callable[[LoadedModel, Tensor, Ask, Progress], Any]
    cost: Passes | None

    runs_whole: ClassVar[bool] = False

    def passes(self, model: LoadedModel) -> Passes | None:
        """Return what `cost` says."""
        return self.cost

    def most(self, model: LoadedModel) -> int:
        """Return that there is one picture."""
        return 1

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Any]:
        """Return its only result."""
        return [self.do(model, batch.images, batch.ask, batch.progress)]
