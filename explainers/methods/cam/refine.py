"""RefineCAM: maps of several stages multiplied."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import aligned, stage_ends
from seewhy.explainers.methods.cam.gradcam_plus_plus import GradCAMPlusPlus
from seewhy.explainers.methods.cam.layer_tensors import survey_for
from seewhy.explainers.methods.catalogue import method

STAGES = 4
"""Most layers that are multiplied if none are named."""


@method(
    "refinecam",
    family="cam",
    summary="Product of Grad-CAM++ maps of several stages: as fine as the first, as selective as the last.",
    forwards="2",
)
class RefineCAM(GradCAMPlusPlus):
    r"""RefineCAM: the product of the maps of several layers.

    .. math:: L^c = \prod_l \mathrm{upsample}\Big(\frac{L^c_l}{\max_{i,j} L^c_{l,ij}}\Big)

    where :math:`L^c_l` is the Grad-CAM++ map of the layer l, resized bilinearly to the finest of the grids. By default,
    four layers are used: the model's default layer, and the last of the least nested layers on each of the next finer
    grids. In a ResNet these are ``layer1`` to ``layer4``, as in the authors' example. The authors' code, in
    pytorch-grad-cam, resizes to the picture and subtracts the smallest value of each map before it divides. A product
    of signed maps would be meaningless, so ``sign="signed"`` is not available.
    """

    sign: Annotated[
        Literal["positive", "absolute"], Field(description="Multiply the evidence for the class, or magnitudes.")
    ] = "positive"

    def layers_of(self, question: Question) -> tuple[str, ...]:
        """Return the layers of the option, or else the default layers and the last ones on the next finer grids.

        Raises:
            LayerError: the model has no default layer.
        """
        return self.layers or _stages(question, super().layers_of(question))

    def fused(self, maps: list[Tensor]) -> Tensor:
        """Return the product."""
        return aligned(maps, torch.mul)


def _stages(question: Question, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the default layers, and before them the last of the least nested layers on each finer grid."""
    layers = [layer for layer in survey_for(question).layers if layer.cam]
    cells = {layer.path: layer.cells for layer in layers}
    coarsest = min(cells.get(path, 0) for path in default)
    last = stage_ends((layer for layer in layers if layer.cells > coarsest), lambda layer: layer.cells)
    finer = [last[grid] for grid in sorted(last)[: max(0, STAGES - len(default))]]
    return *reversed(finer), *default
