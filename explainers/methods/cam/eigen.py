"""CAMs from the principal components of a layer's feature maps."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.explainer import Attribution, Diagnostic, first_component, gap_of, keep_sign
from seewhy.explainers.errors import LayerError
from seewhy.explainers.methods.cam.base import CAM, Evidence, fuse
from seewhy.explainers.methods.catalogue import Paper, method

MAX_POSITIONS = 1024
"""Most positions of a layer whose kernel matrix is decomposed; 32 by 32."""

LEAST_GAP = 1e-2
"""Of a component, as a share of its eigenvalue: rounding turns it by about 10^-6 of the inverse."""

LEAST_SURE = 1e-3
"""Of a sign, as a share of what speaks for or against it."""

TINY = 1e-300

Kernel = Literal["linear", "rbf", "sigmoid"]

_EIGEN = Paper(
    "Muhammad, Yeasin",
    "Eigen-CAM: Class Activation Map using Principal Components",
    2020,
    "https://arxiv.org/abs/2008.00299",
)


class Components(NamedTuple):
    """First principal components of a layer.

    Attributes:
        maps: (N, h, w) float32, the projections.
        gaps: (N,), between the largest and the second eigenvalue, as a share of the largest.
        sure: (N,), how much speaks for the sign, as a share of all that speaks for or against it.
    """

    maps: Tensor
    gaps: Tensor
    sure: Tensor


def agreeing(projected: Tensor, summed: Tensor, gaps: Tensor) -> Components:
    """Return components with the sign that makes projections (N, h, w) agree with sums over channels, likewise."""
    products = projected * summed
    agreement = products.sum(dim=(1, 2))
    sign = torch.where(agreement < 0, -1.0, 1.0)[:, None, None]
    sure = _share(agreement.abs(), products.abs().sum(dim=(1, 2)))
    return Components((projected * sign).float(), gaps, sure)


def _share(values: Tensor, totals: Tensor) -> Tensor:
    """Return how much values (N,) are of totals; all of it where these are zero, as of a layer that is zero."""
    return torch.where(totals > 0, values / totals.clamp_min(TINY), 1.0)


@dataclass(frozen=True, kw_only=True)
class ComponentCAM(CAM):
    """Base of the CAMs that are a principal component, which says where rounding may choose it or its sign."""

    @abstractmethod
    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the components of a layer (N, C, h, w), float32; without a backward pass, gradients are empty."""

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the components as a single channel."""
        return self.components(activations, gradients).maps[:, None]

    def combine(self, evidence: Evidence) -> Attribution:
        """Return the attribution, with diagnostics."""
        empty = evidence.logits.new_empty(0)
        found = [
            self.components(activation, evidence.gradients.get(path, empty))
            for path, activation in evidence.activations.items()
        ]
        maps = fuse([keep_sign(one.maps, self.sign) for one in found])
        answer = self.answer(maps, evidence.goal, evidence.logits, tuple(evidence.activations))
        gaps = torch.stack([one.gaps.cpu() for one in found]).amin(dim=0).tolist()
        sure = torch.stack([one.sure.cpu() for one in found]).amin(dim=0).tolist()
        pairs = zip(gaps, sure, strict=True)
        return replace(answer, diagnostics=tuple(self._diagnostics(*pair) for pair in pairs))

    def _diagnostics(self, gap: float, sure: float) -> tuple[Diagnostic, ...]:
        found = []
        if gap < LEAST_GAP:
            found.append(
                Diagnostic(
                    "ambiguous-component",
                    f"The two strongest principal components are equally strong but for {gap:.1e}: which of them is "
                    "shown, rounding can decide. Choose another layer or method.",
                )
            )
        if sure < LEAST_SURE and self.sign != "absolute":
            found.append(
                Diagnostic(
                    "ambiguous-sign",
                    "As much speaks for the sign of this principal component as against it, so what is drawn and what "
                    "is left out could be exchanged. Try sign=absolute.",
                )
            )
        return tuple(found)


@method(
    "eigencam",
    family="cam",
    summary="First principal component of a layer's features; the same for every class.",
    paper=_EIGEN,
    forwards="1",
    backwards="0",
    discriminates=False,
)
@dataclass(frozen=True, kw_only=True)
class EigenCAM(ComponentCAM):
    r"""Eigen-CAM: the features of each position, projected onto their first principal component.

    .. math:: L = A V_1, \qquad A = U \Sigma V^\top, \quad A \in \mathbb{R}^{hw \times C}

    The features are not centred, as in the paper. The sign of a singular vector is arbitrary: it is chosen so that the
    positive part of the map is the stronger one, by its squares. After a rectifier that is the sign of the features;
    elsewhere features may be mostly negative, and the map, which tells how strong they are, is not blank for it.
    ``smooth="eigen"`` changes nothing.
    """

    uses_gradients: ClassVar[bool] = False

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first principal component of the features, mostly positive."""
        projected, gaps = first_component(activations)
        balance = (projected * projected.abs()).sum(dim=(1, 2))
        sure = _share(balance.abs(), projected.square().sum(dim=(1, 2)))
        sign = torch.where(balance < 0, -1.0, 1.0)[:, None, None]
        return Components((projected * sign).to(activations.dtype), gaps, sure)


@method(
    "eigengradcam",
    family="cam",
    summary="First principal component of feature times gradient.",
    paper=_EIGEN,
    forwards="1",
    backwards="1",
)
@dataclass(frozen=True, kw_only=True)
class EigenGradCAM(ComponentCAM):
    r"""Eigen-Grad-CAM: Eigen-CAM of the features times their gradients, and so for a class.

    .. math:: L^c = B V_1, \qquad B = \frac{\partial y^c}{\partial A} \odot A = U \Sigma V^\top,
              \quad B \in \mathbb{R}^{hw \times C}

    It is no method of the paper but of pytorch-grad-cam, which also centres B; here it is not centred, as for
    Eigen-CAM, and it is the same as HiResCAM with ``smooth="eigen"``: its sign makes the map agree with HiResCAM's, for
    evidence has a sign of its own.
    """

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first principal component of the features times their gradients."""
        values = activations * gradients
        projected, gaps = first_component(values)
        return agreeing(projected, values.double().sum(dim=1), gaps)


@method(
    "kpcacam",
    family="cam",
    summary="First kernel principal component of a layer's features; the same for every class.",
    paper=Paper(
        "Karmani, Sivakaran, Prasad, Ali, Yang, Tang",
        "KPCA-CAM: Visual Explainability of Deep Computer Vision Models using Kernel PCA",
        2024,
        "https://arxiv.org/abs/2410.00267",
    ),
    forwards="1",
    backwards="0",
    discriminates=False,
)
@dataclass(frozen=True, kw_only=True)
class KPCACAM(ComponentCAM):
    r"""KPCA-CAM: Eigen-CAM with a kernel between positions, for components that are not linear.

    .. math:: L = \sqrt{\lambda_1}\, v_1, \qquad H K H v_1 = \lambda_1 v_1, \quad K_{pq} = k(a_p, a_q)

    with the centring matrix :math:`H = I - 1/hw`, the features :math:`a_p` of a position p less their mean over the
    positions, and the kernel :math:`k(a, b)`: :math:`a^\top b` (linear), :math:`\exp(-\gamma |a - b|^2)` (rbf) or
    :math:`\tanh(\gamma\, a^\top b + 1)` (sigmoid), as pytorch-grad-cam has it, which the authors name as their code.
    The sign is chosen so that the map agrees with the sum over the channels. ``smooth="eigen"`` changes nothing.

    Attributes:
        kernel: k.
        gamma: times the number of channels; 1 makes the kernel's gamma one over the number of channels.
    """

    kernel: Annotated[Kernel, Field(description="Similarity of the features of two positions.")] = "sigmoid"
    gamma: Annotated[
        float, Field(gt=0, le=1000, description="Scale of the kernel, in units of one over the number of channels.")
    ] = 1.0

    uses_gradients: ClassVar[bool] = False

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first kernel principal component.

        Raises:
            LayerError: a layer of too many positions.
        """
        count, _, rows, columns = activations.shape
        if rows * columns > MAX_POSITIONS:
            raise LayerError(
                f"A layer of {rows} by {columns} positions is too large for kernel PCA, which takes {MAX_POSITIONS}; "
                "choose a later layer."
            )
        features = activations.double().flatten(2).mT
        features = features - features.mean(dim=1, keepdim=True)
        found = [self._component(one) for one in features]
        projected = torch.stack([vector for vector, _ in found]).reshape(count, rows, columns)
        summed = features.sum(dim=2).reshape(count, rows, columns)
        return agreeing(projected, summed, torch.stack([gap for _, gap in found]))

    def _component(self, features: Tensor) -> tuple[Tensor, Tensor]:
        gamma = self.gamma / features.shape[1]
        if self.kernel == "rbf":
            kernel = torch.exp(-gamma * torch.cdist(features, features) ** 2)
        else:
            kernel = features @ features.T
            kernel = torch.tanh(gamma * kernel + 1) if self.kernel == "sigmoid" else kernel
        centred = kernel - kernel.mean(dim=0) - kernel.mean(dim=1, keepdim=True) + kernel.mean()
        strengths, vectors = torch.linalg.eigh(centred)
        return vectors[:, -1] * strengths[-1].clamp_min(0).sqrt(), gap_of(strengths)
