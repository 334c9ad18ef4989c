"""ODAM: what speaks for one box of a detector, over all levels of its feature pyramid."""

import torch
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.methods.cam.gradient_weighted import HiResCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors
from seewhy.explainers.methods.catalogue import Paper, method


@method(
    "odam",
    family="cam",
    summary="Feature times gradient at each position, summed over a detector's pyramid; distinguishes boxes.",
    paper=Paper(
        "Zhao, Chan",
        "ODAM: Gradient-based Instance-Specific Visual Explanations for Object Detection",
        2023,
        "https://arxiv.org/abs/2304.06354",
    ),
)
class ODAM(HiResCAM):
    r"""ODAM: the map of a single box, with gradients at each position instead of their average.

    .. math:: H^p = \sum_l U\Big( \mathrm{ReLU}\Big(
              \sum_k \frac{\partial Y^p}{\partial A^{l,k}} \odot A^{l,k}\Big) \Big)

    where :math:`Y^p` is the explained property of the box p, its raw logit or an edge, :math:`A^{l,k}` a feature map of
    level l, and U resizes bilinearly to the finest of the levels. The averages of Grad-CAM would mark all objects of
    the class. Unlike in other CAMs, the maps of the levels are added without scaling, because the gradient is zero at
    all levels that the box is not read from. The gradients are not smoothed. On a single layer this is HiResCAM.
    """

    def combine(self, tensors: LayerTensors) -> Attribution:
        """Return the attribution: the sum of the levels' maps on the finest grid."""
        maps = [self.map_of(*pair) for pair in tensors.pairs()]
        finest = max(maps, key=lambda values: values.shape[1] * values.shape[2])
        total = torch.zeros_like(finest)
        for values in maps:
            resized = functional.interpolate(values[:, None], size=finest.shape[1:], mode="bilinear")[:, 0]
            total = total + resized.to(total.device)
        return self.answer(total, tensors.objective, tensors.outputs, tensors.paths)
