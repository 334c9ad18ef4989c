"""What the threads that own models are asked to do: classify, explain, and all that is done for one picture alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.explainer import Attribution, Explainer, asked, predict, require_finite
from seewhy.explainers.core.objective import MOST_PROBABLE
from seewhy.explainers.execution.chunks import Report, Show, unshown
from seewhy.explainers.methods.cam.base import CAM
from seewhy.explainers.methods.catalogue import passes_of
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.methods.shared_pass import explain_together
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class Batch:
    """What the jobs of one pass have in common with it.

    Attributes:
        images: (N, C, H, W) float32, normalised, on the model's device.
        targets: (N,) int64, on the CPU; `MOST_PROBABLE` for the most probable class of a picture.
        against: (N,) int64, on the CPU, what these are contrasted with, or `NO_CONTRAST`; or None.
        report: is told how much of how much is done; lets other work run meanwhile where it is its turn, and raises
            when nobody waits any more.
        show: see `seewhy.explainers.execution.chunks.Show`.
    """

    images: Tensor
    targets: Tensor
    against: Tensor | None
    report: Report
    show: Show = unshown


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
        logits = predict(model, batch.images)
        maps = logits.new_empty((len(batch.images), 0, 0))
        return Attribution(maps, logits.argmax(dim=1), logits, layers=(), signed=False).rows()


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
        each = [passes_of(explainer, model, model.spec.image_shape) for explainer in self.explainers]
        known = [passes for passes in each if passes is not None]
        return sum(known, Passes()) if len(known) == len(each) else None

    def most(self, model: LoadedModel) -> int | None:
        """Return how many pictures may share a batch."""
        each = [passes_of(one, model, model.spec.image_shape) for one in self.explainers if not isinstance(one, CAM)]
        is_heavy = any(passes is not None and passes.backwards for passes in each)
        return MOST_WHOLE if is_heavy and model.device.type == "cpu" else None

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Sequence[Attribution]]:
        """Return for each picture one attribution (N = 1) per method."""
        found = explain_together(
            self.explainers, model, batch.images, batch.targets, batch.against, batch.report, batch.show
        )
        return list(zip(*(one.rows() for one in found), strict=True))


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
        with asked(model, batch.images, batch.targets, batch.against, batch.report) as question:
            found, _, _ = self.explainer.contributions(question, lambda sums: sums)
            require_finite(found)
        return list(found.cpu())


@dataclass(frozen=True, eq=False)
class Alone:
    """Do something with one picture that shares no batch with any other.

    Attributes:
        do: is given the model, the picture (1, C, H, W), the target (1,) or None, and what to report to between passes:
            never within one.
        cost: the passes that it takes; None where nobody knows.
    """

    do: Callable[[LoadedModel, Tensor, Tensor | None, Report], Any]
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
        asked = int(batch.targets[0]) != MOST_PROBABLE
        return [self.do(model, batch.images, batch.targets if asked else None, batch.report)]
