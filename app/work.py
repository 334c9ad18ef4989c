"""What the threads that own models are asked to do: classify, explain, and all that is done for one picture alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from explainers.base import Attribution, Explainer, asked, predict, require_finite
from explainers.goals import MOST_PROBABLE
from explainers.methods.integrated import IntegratedGradients
from explainers.passes import Report, Show, unshown
from explainers.together import explain_together
from models import LoadedModel


@dataclass(frozen=True)
class Batch:
    """What the jobs of one pass have in common with it.

    Attributes:
        images: (N, C, H, W) float32, normalised, on the model's device.
        targets: (N,) int64, on the CPU; `MOST_PROBABLE` for the most probable class of a picture.
        against: (N,) int64, on the CPU, what these are contrasted with, or `NO_CONTRAST`; or None.
        report: is told how much of how much is done; raises when nobody waits any more.
        show: see `explainers.passes.Show`.
    """

    images: Tensor
    targets: Tensor
    against: Tensor | None
    report: Report
    show: Show = unshown


@dataclass(frozen=True)
class Predict:
    """Classify; the maps of the attributions are empty."""

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Attribution]:
        """Return one attribution (N = 1) per picture."""
        logits = predict(model, batch.images)
        maps = logits.new_empty((len(batch.images), 0, 0))
        return Attribution(maps, logits.argmax(dim=1), logits, layers=(), signed=False).rows()


@dataclass(frozen=True)
class Explain:
    """Explain by one method or several; equal explainers share a batch."""

    explainers: tuple[Explainer, ...]

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
        do: is given the model, the picture (1, C, H, W) and the target (1,) or None.
    """

    do: Callable[[LoadedModel, Tensor, Tensor | None], Any]

    def run(self, model: LoadedModel, batch: Batch) -> Sequence[Any]:
        """Return its only result."""
        asked = int(batch.targets[0]) != MOST_PROBABLE
        return [self.do(model, batch.images, batch.targets if asked else None)]
