"""The base of CAMs of many forward passes, without gradients."""

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import LayerExplainer, fuse
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect


class LayerMap(NamedTuple):
    """The maps of one layer.

    Attributes:
        maps: (N, h, w), projected.
        change: (N,), as of an `Attribution`; None for methods that hide nothing.
    """

    maps: Tensor
    change: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ForwardCAM(LayerExplainer):
    """Base of CAMs that run the model again for each channel or position of a layer.

    The first pass gives the feature maps of all layers. Each layer then has its own passes and map.
    """

    @abstractmethod
    def layer_map(self, question: Question, tensors: LayerTensors, path: str) -> LayerMap:
        """Return the maps of one layer.

        Run the whole model in inference mode, but replays under ``torch.no_grad()``: a replay reads version counters to
        notice in-place changes, and tensors of inference mode have none.
        """

    def attribute(self, question: Question) -> Attribution:
        """Run the model once for the feature maps, and then for each layer."""
        tensors = collect(question, self.layers_of(question), None)
        paths = tensors.paths
        # The map of one of several layers does not look like the fused one.
        progress = question.progress if len(paths) == 1 else question.progress.unseen
        layers = []
        for number, path in enumerate(paths):
            part = replace(question, progress=progress.part(number, len(paths)))
            layers.append(self.layer_map(part, tensors, path))
        answer = self.answer(fuse([layer.maps for layer in layers]), tensors.objective, tensors.outputs, paths)
        changes = [layer.change for layer in layers if layer.change is not None]
        return replace(answer, change=torch.stack(changes).amax(dim=0)) if changes else answer
