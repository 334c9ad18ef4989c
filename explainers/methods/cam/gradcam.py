"""Grad-CAM, and relatives that combine feature maps and gradients in other ways."""

import torch
from torch import Tensor

from seewhy.explainers.methods.cam.base import CAM, WeightedCAM, aligned
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.quotients import quotient


@method("gradcam", family="cam")
class GradCAM(WeightedCAM):
    r"""Grad-CAM: feature maps of a layer, weighted by their averaged gradients.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big), \qquad
              \alpha_k^c = \frac{1}{hw} \sum_{i,j} \frac{\partial y^c}{\partial A^k_{ij}}

    where :math:`y^c` is the logit of class c (equations 1 and 2). ``sign="signed"`` omits the ReLU, ``"absolute"``
    takes the magnitude instead.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the averaged gradients (N, C) of equation 1."""
        return gradients.mean(dim=(2, 3))


@method("xgradcam", family="cam")
class XGradCAM(WeightedCAM):
    r"""XGrad-CAM: feature maps weighted by their gradients, averaged in proportion to the features.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big), \qquad
              \alpha_k^c = \sum_{i,j} \frac{A^k_{ij}}{\sum_{a,b} A^k_{ab}} \frac{\partial y^c}{\partial A^k_{ij}}

    With these weights the signed map sums to :math:`\sum_{k,i,j} A^k_{ij}\, \partial y^c / \partial A^k_{ij}` (the
    paper's axiom of conservation). A feature map whose sum is zero gets the weight 0. If the sum is less than 2^-6 of
    its magnitudes, rounding decides it, so the weight decreases to 0 with the sum.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the averaged gradients (N, C)."""
        totals = activations.sum(dim=(2, 3))
        products = (activations * gradients).sum(dim=(2, 3))
        return quotient(products, totals, activations.abs().sum(dim=(2, 3)))


@method("hirescam", family="cam")
class HiResCAM(WeightedCAM):
    r"""HiResCAM: feature times gradient at each position, summed over the channels.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \frac{\partial y^c}{\partial A^k} \odot A^k\Big)

    This is Grad-CAM without averaging the gradients. If only linear layers follow, the signed map sums to the logit
    without its bias. The paper applies the ReLU when drawing; ``sign="signed"`` omits it.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the gradients (N, C, h, w)."""
        return gradients


@method("gradcam-elementwise", family="cam")
class GradCAMElementWise(CAM):
    r"""Element-wise Grad-CAM: positive part of feature times gradient at each position, summed over the channels.

    .. math:: L^c = \sum_k \mathrm{ReLU}\Big(\frac{\partial y^c}{\partial A^k} \odot A^k\Big)

    This is pytorch-grad-cam's GradCAMElementWise. The paper calls its method element-wise Grad-CAM, but its code
    applies the ReLU after the sum, which is HiResCAM. No map has negative values, so ``sign`` has no effect.
    """

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the positive products."""
        return (activations * gradients).clamp_min(0)


@method("layercam", family="cam")
class LayerCAM(WeightedCAM):
    r"""LayerCAM: feature maps weighted at each position by their positive gradients; also works in early layers.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \mathrm{ReLU}\Big(\frac{\partial y^c}{\partial A^k}\Big) \odot A^k\Big)

    Maps of several layers are fused as for all CAMs, without the paper's scaling of shallow layers.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the positive gradients (N, C, h, w)."""
        return gradients.clamp_min(0)


@method("odam", family="cam")
class ODAM(HiResCAM):
    r"""ODAM: feature times gradient at each position, summed over a detector's pyramid; distinguishes boxes.

    .. math:: H^p = \sum_l U\Big( \mathrm{ReLU}\Big(
              \sum_k \frac{\partial Y^p}{\partial A^{l,k}} \odot A^{l,k}\Big) \Big)

    where :math:`Y^p` is the explained property of the box p, its raw logit or an edge, :math:`A^{l,k}` a feature map of
    level l, and U resizes bilinearly to the finest of the levels. The averages of Grad-CAM would mark all objects of
    the class. Unlike in other CAMs, the maps of the levels are added without scaling, because the gradient is zero at
    all levels that the box is not read from. The gradients are not smoothed. On a single layer this is HiResCAM.
    """

    def fused(self, maps: list[Tensor]) -> Tensor:
        """Return the sum of the levels' maps on the finest grid."""
        return aligned(maps, torch.add, scaled=False)
