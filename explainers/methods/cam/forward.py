"""What the CAMs share that need no gradients, only many forward passes."""

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.explainer import Attribution, Question, part_of
from seewhy.explainers.execution.chunks import unshown
from seewhy.explainers.methods.cam.base import Evidence, LayerExplainer, collect, fuse


class LayerMap(NamedTuple):
    """What the passes of one layer give.

    Attributes:
        maps: (N, h, w), projected.
        change: (N,), as in an `Attribution`; None for methods that hide nothing.
    """

    maps: Tensor
    change: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ForwardCAM(LayerExplainer):
    """Base of the CAMs that run the model again for each channel or position of a layer.

    The first pass finds the feature maps of all layers; then each layer has passes of its own, and a map of its own.
    Passes of the whole model run in inference mode. Those of what lies after a layer run under ``torch.no_grad()``: a
    replay tells by version counters, which tensors made in inference mode lack, whether a model modified what it noted.
    """

    @abstractmethod
    def layer_map(self, question: Question, evidence: Evidence, path: str) -> LayerMap:
        """Return the maps of one layer."""

    def attribute(self, question: Question) -> Attribution:
        """Run the model once for the feature maps, and then for each layer."""
        evidence = collect(question, self.layers_of(question), None)
        paths = tuple(evidence.activations)
        show = question.show if len(paths) == 1 else unshown
        found = [
            self.layer_map(
                replace(question, report=part_of(question.report, number, len(paths)), show=show), evidence, path
            )
            for number, path in enumerate(paths)
        ]
        answer = self.answer(fuse([one.maps for one in found]), evidence.goal, evidence.logits, paths)
        changes = [one.change for one in found if one.change is not None]
        return replace(answer, change=torch.stack(changes).amax(dim=0)) if changes else answer
