"""Grad-CAM++; its smooth form, with gradients of the first to the third order; RefineCAM, its product over stages."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import WeightedCAM, aligned, stage_ends
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect, survey_for
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Noise, Seed
from seewhy.explainers.methods.quotients import quotient


@method("gradcam++", family="cam")
class GradCAMPlusPlus(WeightedCAM):
    r"""Grad-CAM++: feature maps weighted by their positive gradients, with equal weight for each instance of the class.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k w_k^c A^k\Big), \quad
              w_k^c = \sum_{i,j} \alpha^{kc}_{ij}\, \mathrm{ReLU}(g^{kc}_{ij}), \quad
              \alpha^{kc}_{ij} = \frac{(g^{kc}_{ij})^2}{2 (g^{kc}_{ij})^2 + \sum_{a,b} A^k_{ab}\, (g^{kc}_{ij})^3},
              \quad g^{kc}_{ij} = \frac{\partial y^c}{\partial A^k_{ij}}

    The paper's score is :math:`Y^c = e^{y^c}`. Because the network is piecewise linear, its derivatives of order n are
    :math:`e^{y^c} g^n`. The exponential cancels in the share :math:`\alpha` (equation 19). In the weights it remains as
    a factor of the whole map, which is omitted here because it overflows. Where a gradient is zero, so is its share.

    The shares are between 0 and 1/2 if the features are not negative, so choose a rectified layer. With negative
    features, a denominator may be zero except for rounding. If it is less than 2^-6 of the magnitudes of its terms, the
    share decreases to zero with it instead of growing without bound.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights (N, C)."""
        # Both sides of the fraction divided by the square of the gradient, which may underflow.
        sums, magnitudes = activations.sum(dim=(2, 3), keepdim=True), activations.abs().sum(dim=(2, 3), keepdim=True)
        positive = gradients.clamp_min(0)
        return quotient(positive, 2 + sums * positive, 2 + magnitudes * positive).sum(dim=(2, 3))


@method("smoothgradcam++", family="cam", forwards="1 + samples", backwards="samples")
class SmoothGradCAMPlusPlus(WeightedCAM):
    r"""Smooth Grad-CAM++: Grad-CAM++ with derivatives averaged over noisy copies of the picture.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k w_k^c A^k\Big), \quad
              w_k^c = \sum_{i,j} \frac{D_2}{2 D_2 + \sum_{a,b} A^k_{ab} D_3} \mathrm{ReLU}(D_1), \quad
              D_m = \frac{1}{n} \sum_{s=1}^n \Big(\frac{\partial y^c}{\partial A^k_{ij}} (x + \epsilon_s)\Big)^m,
              \quad \epsilon_s \sim \mathcal{N}(0, \sigma^2)

    The feature maps A are those of the picture itself, n is the option ``samples``, and σ is ``noise`` times the
    picture's range of values; all pictures of a batch get the same noise. As in Grad-CAM++, the exponential of the
    score is omitted, so all samples have the same weight. Without noise the method is Grad-CAM++.
    """

    samples: Annotated[int, Field(ge=1, le=1000, description="Number of noisy copies.")] = 16
    noise: Annotated[Noise, Field(ge=0)] = 0.15
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass of the pictures, then forward and backward passes of noisy copies."""
        plain = collect(question, self.layers_of(question), None)
        layers = self.layers or plain.paths
        count, shape = len(question.images), question.images.shape[1:]
        flat = question.images.float().flatten(1)
        spread = self.noise * (flat.amax(dim=1) - flat.amin(dim=1))[:, None, None, None]
        seeds = torch.randint(2**63 - 1, (self.samples,), generator=torch.Generator().manual_seed(self.seed))
        sums: dict[str, list[Tensor]] = {}
        # The rows are all pictures with the first sample's noise, then with the second's, and so on.
        for rows in question.chunks(self.samples * count, backward=True):
            row = torch.arange(rows.start, rows.stop)
            generators = (torch.Generator().manual_seed(int(seeds[sample])) for sample in row // count)
            noise = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
            pictures = (row % count).to(question.images.device)
            images = question.images[pictures] + (noise.to(flat) * spread[pictures]).to(question.images)
            objective = plain.objective.rows(pictures)
            copies = replace(question, images=images, ask=objective.ask)
            for path, gradients in collect(copies, layers, self.scores).gradients.items():
                zeros = torch.zeros_like(plain.activations[path], dtype=torch.float64)
                powers = sums.setdefault(path, [zeros, zeros.clone(), zeros.clone()])
                for order, total in enumerate(powers, start=1):
                    total.index_add_(0, pictures.to(total.device), gradients.double() ** order)
            question.progress.show(lambda: self._combined(plain, sums, rows.stop / count).maps)  # noqa: B023  called at once
        return self._combined(plain, sums, self.samples)

    def _combined(self, plain: LayerTensors, sums: dict[str, list[Tensor]], samples: float) -> Attribution:
        """Return the attribution of the picture's feature maps and the sums, over samples, of powers of gradients.

        Args:
            plain: the feature maps of the picture itself.
            sums: per path those of the gradients, of their squares and of their cubes, (N, C, h, w) float64.
            samples: number of samples in the sums.
        """
        activations = {path: plain.activations[path] for path in sums}
        weights = {
            path: _weights(activations[path], *(total / samples for total in powers)) for path, powers in sums.items()
        }
        return self.combine(replace(plain, activations=activations, gradients=weights))

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights (N, C), which `_combined` has put in the place of gradients."""
        return gradients


def _weights(activations: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Return the weights (N, C) of feature maps (N, C, h, w), given derivatives of the first to the third order."""
    sums, magnitudes = activations.sum(dim=(2, 3), keepdim=True), activations.abs().sum(dim=(2, 3), keepdim=True)
    shares = quotient(second, 2 * second + sums * third, 2 * second + magnitudes * third.abs())
    return (shares * first.clamp_min(0)).sum(dim=(2, 3)).float()


STAGES = 4
"""Maximum number of layers that are multiplied if none are named."""


@method("refinecam", family="cam", forwards="2")
class RefineCAM(GradCAMPlusPlus):
    r"""RefineCAM: product of Grad-CAM++ maps of several stages: as fine as the first, as selective as the last.

    .. math:: L^c = \prod_l \mathrm{upsample}\Big(\frac{L^c_l}{\max_{i,j} L^c_{l,ij}}\Big)

    where :math:`L^c_l` is the Grad-CAM++ map of the layer l, resized bilinearly to the finest of the grids. By default,
    four layers are used: the model's default layer, and the last of the least nested layers on each of the next finer
    grids. In a ResNet these are ``layer1`` to ``layer4``, as in the authors' example. The authors' code, in
    pytorch-grad-cam, resizes to the picture and subtracts the smallest value of each map before it divides. A product
    of signed maps would be meaningless, so ``sign="signed"`` is not available.
    """

    sign: Annotated[
        Literal["positive", "absolute"],
        Field(description="What is multiplied: `positive`, evidence for the class; `absolute`, magnitudes."),
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
