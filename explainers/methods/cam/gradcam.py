"""Grad-CAM."""

from torch import Tensor

from seewhy.explainers.methods.cam.base import WeightedCAM
from seewhy.explainers.methods.catalogue import Paper, method

PAPER = Paper(
    "Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra",
    "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
    2017,
    "https://arxiv.org/abs/1610.02391",
)


@method(
    "gradcam",
    family="cam",
    summary="Feature maps of a layer, weighted by their averaged gradients.",
    paper=PAPER,
)
class GradCAM(WeightedCAM):
    r"""Grad-CAM: feature maps weighted by their spatially averaged gradients.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big), \qquad
              \alpha_k^c = \frac{1}{hw} \sum_{i,j} \frac{\partial y^c}{\partial A^k_{ij}}

    where :math:`y^c` is the logit of class c (equations 1 and 2). ``sign="signed"`` omits the ReLU, ``"absolute"``
    takes the magnitude instead.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the averaged gradients (N, C) of equation 1."""
        return gradients.mean(dim=(2, 3))
