"""What the threads that own models are asked to do: classify, explain, and all that is done for one picture alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from explainers.base import Attribution, Explainer, predict
from models import LoadedModel


@dataclass(frozen=True)
class Predict:
    """Classify; the maps of the attributions are empty."""

    def run(self, model: LoadedModel, images: Tensor, targets: Tensor | None) -> Sequence[Attribution]:
        """Return one attribution (N = 1) per picture."""
        logits = predict(model, images)
        maps = logits.new_empty((len(images), 0, 0))
        return _split(Attribution(maps, logits.argmax(dim=1), logits, layers=(), signed=False))


@dataclass(frozen=True)
class Explain:
    """Explain; equal explainers share a batch."""

    explainer: Explainer

    def run(self, model: LoadedModel, images: Tensor, targets: Tensor | None) -> Sequence[Attribution]:
        """Return one attribution (N = 1) per picture."""
        return _split(self.explainer.explain(model, images, targets))


@dataclass(frozen=True, eq=False)
class Alone:
    """Do something with one picture that shares no batch with any other.

    Attributes:
        do: is given the model, the picture (1, C, H, W) and the target (1,) or None.
    """

    do: Callable[[LoadedModel, Tensor, Tensor | None], Any]

    def run(self, model: LoadedModel, images: Tensor, targets: Tensor | None) -> Sequence[Any]:
        """Return its only result."""
        return [self.do(model, images, targets)]


def _split(whole: Attribution) -> list[Attribution]:
    maps, chosen, logits = whole.maps.cpu(), whole.targets.cpu(), whole.logits.cpu()
    return [
        Attribution(maps[i : i + 1], chosen[i : i + 1], logits[i : i + 1], whole.layers, whole.signed)
        for i in range(len(maps))
    ]
