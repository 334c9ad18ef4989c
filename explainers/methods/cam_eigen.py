"""CAMs from the principal components of a layer's feature maps."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from explainers.base import keep_sign, principal_component
from explainers.cam import CAM
from explainers.errors import LayerError
from explainers.registry import Paper, method

MAX_POSITIONS = 1024
"""Most positions of a layer whose kernel matrix is decomposed; 32 by 32."""

Kernel = Literal["linear", "rbf", "sigmoid"]

_EIGEN = Paper(
    "Muhammad, Yeasin",
    "Eigen-CAM: Class Activation Map using Principal Components",
    2020,
    "https://arxiv.org/abs/2008.00299",
)


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
class EigenCAM(CAM):
    r"""Eigen-CAM: the features of each position, projected onto their first principal component.

    .. math:: L = A V_1, \qquad A = U \Sigma V^\top, \quad A \in \mathbb{R}^{hw \times C}

    The features are not centred, as in the paper. The sign of a singular vector is arbitrary: it is chosen so that the
    map agrees with the sum over the channels. ``smooth="eigen"`` changes nothing.
    """

    uses_gradients: ClassVar[bool] = False

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the features."""
        return activations

    def project(self, values: Tensor) -> Tensor:
        """Return the first principal component."""
        return keep_sign(principal_component(values), self.sign)


@method(
    "eigengradcam",
    family="cam",
    summary="First principal component of feature times gradient.",
    paper=_EIGEN,
    forwards="1",
    backwards="1",
)
@dataclass(frozen=True, kw_only=True)
class EigenGradCAM(CAM):
    r"""Eigen-Grad-CAM: Eigen-CAM of the features times their gradients, and so for a class.

    .. math:: L^c = B V_1, \qquad B = \frac{\partial y^c}{\partial A} \odot A = U \Sigma V^\top,
              \quad B \in \mathbb{R}^{hw \times C}

    It is no method of the paper but of pytorch-grad-cam, which also centres B; here it is not centred, as for
    Eigen-CAM, and it is the same as HiResCAM with ``smooth="eigen"``.
    """

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the features times their gradients."""
        return activations * gradients

    def project(self, values: Tensor) -> Tensor:
        """Return the first principal component."""
        return keep_sign(principal_component(values), self.sign)


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
class KPCACAM(CAM):
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

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the features."""
        return activations

    def project(self, values: Tensor) -> Tensor:
        """Return the first kernel principal component.

        Raises:
            LayerError: a layer of too many positions.
        """
        count, _, rows, columns = values.shape
        if rows * columns > MAX_POSITIONS:
            raise LayerError(
                f"A layer of {rows} by {columns} positions is too large for kernel PCA, which takes {MAX_POSITIONS}; "
                "choose a later layer."
            )
        features = values.double().flatten(2).mT
        features = features - features.mean(dim=1, keepdim=True)
        maps = [self._component(one) for one in features]
        return keep_sign(torch.stack(maps).reshape(count, rows, columns).to(values.dtype), self.sign)

    def _component(self, features: Tensor) -> Tensor:
        gamma = self.gamma / features.shape[1]
        if self.kernel == "rbf":
            kernel = torch.exp(-gamma * torch.cdist(features, features) ** 2)
        else:
            kernel = features @ features.T
            kernel = torch.tanh(gamma * kernel + 1) if self.kernel == "sigmoid" else kernel
        centred = kernel - kernel.mean(dim=0) - kernel.mean(dim=1, keepdim=True) + kernel.mean()
        strengths, vectors = torch.linalg.eigh(centred)
        found: Tensor = vectors[:, -1] * strengths[-1].clamp_min(0).sqrt()
        return torch.where((found * features.sum(dim=1)).sum() < 0, -found, found)
