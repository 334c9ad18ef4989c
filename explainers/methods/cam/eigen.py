"""CAMs from the principal components of a layer's feature maps."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.projection import first_component, gap_of, keep_sign
from seewhy.explainers.errors import LayerError
from seewhy.explainers.methods.cam.base import CAM, fuse
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors
from seewhy.explainers.methods.catalogue import method

MAX_POSITIONS = 1024
"""Maximum number of positions of a layer whose kernel matrix is decomposed: 32 by 32."""

LEAST_GAP = 1e-2
"""Smallest gap of a component that is not ambiguous. Rounding turns a component by about 10^-6 over its gap."""

LEAST_CERTAINTY = 1e-3
"""Smallest certainty of a sign that is not ambiguous."""

TINY = 1e-300

Kernel = Literal["linear", "rbf", "sigmoid"]


class Components(NamedTuple):
    """First principal components of a layer.

    Attributes:
        maps: (N, h, w) float32, the projections.
        gaps: (N,), the gap between the two largest eigenvalues, as a share of the largest.
        certainties: (N,), from 0 to 1: the sum of the votes for the sign, as a share of the sum of their magnitudes.
    """

    maps: Tensor
    gaps: Tensor
    certainties: Tensor


def oriented(projections: Tensor, votes: Tensor, gaps: Tensor) -> Components:
    """Return components with the sign of the sum of votes; the sign of a singular vector is arbitrary.

    Args:
        projections: (N, h, w), of any sign.
        votes: (N, h, w): positive where a position speaks for the sign of its projection, negative where it speaks
            against it.
        gaps: (N,), see `Components`.
    """
    balance, total = votes.sum(dim=(1, 2)), votes.abs().sum(dim=(1, 2))
    sign = torch.where(balance < 0, -1.0, 1.0)[:, None, None]
    # A layer of zeros has no votes: its sign means nothing, and needs no diagnostic.
    certainties = torch.where(total > 0, balance.abs() / total.clamp_min(TINY), 1.0)
    return Components((projections * sign).float(), gaps, certainties)


@dataclass(frozen=True, kw_only=True)
class ComponentCAM(CAM):
    """Base of CAMs that are a principal component; diagnostics tell if rounding may choose it or its sign."""

    @abstractmethod
    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the components of a layer; arguments as for `contributions`."""

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the components as a single channel."""
        return self.components(activations, gradients).maps[:, None]

    def combine(self, tensors: LayerTensors) -> Attribution:
        """Return the attribution, with diagnostics."""
        layers = [self.components(*pair) for pair in tensors.pairs()]
        maps = fuse([keep_sign(components.maps, self.sign) for components in layers])
        answer = self.answer(maps, tensors.objective, tensors.outputs, tensors.paths)
        gaps = torch.stack([components.gaps.cpu() for components in layers]).amin(dim=0).tolist()
        certainties = torch.stack([components.certainties.cpu() for components in layers]).amin(dim=0).tolist()
        pairs = zip(gaps, certainties, strict=True)
        return replace(answer, diagnostics=tuple(self._diagnostics(*pair) for pair in pairs))

    def _diagnostics(self, gap: float, certainty: float) -> tuple[Diagnostic, ...]:
        diagnostics = []
        if gap < LEAST_GAP:
            diagnostics.append(
                Diagnostic(
                    "ambiguous-component",
                    f"The strengths of the two strongest principal components differ by only {gap:.1e}, so rounding "
                    "can decide which of them is shown. Choose another layer or method.",
                )
            )
        if certainty < LEAST_CERTAINTY and self.sign != "absolute":
            diagnostics.append(
                Diagnostic(
                    "ambiguous-sign",
                    "The evidence for and against the sign of this principal component is equal, so what is drawn and "
                    "what is left out could be swapped. Try sign=absolute.",
                )
            )
        return tuple(diagnostics)


@method("eigencam", family="cam", backwards="0", discriminates=False)
class EigenCAM(ComponentCAM):
    r"""Eigen-CAM: first principal component of a layer's features; the same for every class.

    .. math:: L = A V_1, \qquad A = U \Sigma V^\top, \quad A \in \mathbb{R}^{hw \times C}

    As in the paper, the features are not centred. The sign of a singular vector is arbitrary; it is chosen so that the
    squares of the map's positive part sum to more than those of its negative part. After a rectifier this is the sign
    of the features. If features are mostly negative, the map still shows their strength and is not blank.
    ``smooth="eigen"`` changes nothing.
    """

    uses_gradients: ClassVar[bool] = False

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first principal component of the features, mostly positive."""
        projections, gaps = first_component(activations)
        return oriented(projections, projections * projections.abs(), gaps)


@method("eigengradcam", family="cam")
class EigenGradCAM(ComponentCAM):
    r"""Eigen-Grad-CAM: first principal component of feature times gradient.

    .. math:: L^c = B V_1, \qquad B = \frac{\partial y^c}{\partial A} \odot A = U \Sigma V^\top,
              \quad B \in \mathbb{R}^{hw \times C}

    Unlike Eigen-CAM, it depends on the class. It is pytorch-grad-cam's, not the paper's. There B is centred; here it is
    not, as in Eigen-CAM. The map equals that of HiResCAM with ``smooth="eigen"``, with the sign that agrees with
    HiResCAM's own map.
    """

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first principal component of the features times their gradients."""
        values = activations * gradients
        projections, gaps = first_component(values)
        return oriented(projections, projections * values.double().sum(dim=1), gaps)


@method("kpcacam", family="cam", backwards="0", discriminates=False)
class KPCACAM(ComponentCAM):
    r"""KPCA-CAM: first kernel principal component of a layer's features; the same for every class.

    .. math:: L = \sqrt{\lambda_1}\, v_1, \qquad H K H v_1 = \lambda_1 v_1, \quad K_{pq} = k(a_p, a_q)

    with the centring matrix :math:`H = I - 1/hw`, the features :math:`a_p` of a position p minus their mean over the
    positions, and the kernel :math:`k(a, b)`: :math:`a^\top b` (linear), :math:`\exp(-\gamma |a - b|^2)` (rbf) or
    :math:`\tanh(\gamma\, a^\top b + 1)` (sigmoid). The kernels are those of pytorch-grad-cam, which the authors name as
    their code; γ is the option ``gamma`` divided by the number of channels. The map has the sign that agrees with the
    sum over the channels. ``smooth="eigen"`` has no effect.
    """

    kernel: Annotated[Kernel, Field(description="Similarity of the features of two positions.")] = "sigmoid"
    gamma: Annotated[
        float, Field(gt=0, le=1000, description="Scale of the kernel, in units of one over the number of channels.")
    ] = 1.0

    uses_gradients: ClassVar[bool] = False

    def components(self, activations: Tensor, gradients: Tensor) -> Components:
        """Return the first kernel principal component."""
        count, _, rows, columns = activations.shape
        if rows * columns > MAX_POSITIONS:
            raise LayerError(
                f"A layer of {rows} by {columns} positions is too large for kernel PCA, which takes {MAX_POSITIONS}; "
                "choose a later layer."
            )
        features = activations.double().flatten(2).mT
        features = features - features.mean(dim=1, keepdim=True)
        # One picture at a time: the kernels of a batch would take N (hw)² float64 numbers at once.
        vectors, gaps = zip(*map(self._component, features), strict=True)
        projections = torch.stack(vectors).reshape(count, rows, columns)
        sums = features.sum(dim=2).reshape(count, rows, columns)
        return oriented(projections, projections * sums, torch.stack(gaps))

    def _component(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the component (P,) of features (P, C) of one picture, of any sign, and its gap."""
        gamma = self.gamma / features.shape[1]
        if self.kernel == "rbf":
            kernel = torch.exp(-gamma * torch.cdist(features, features) ** 2)
        else:
            kernel = features @ features.T
            kernel = torch.tanh(gamma * kernel + 1) if self.kernel == "sigmoid" else kernel
        centred = kernel - kernel.mean(dim=0) - kernel.mean(dim=1, keepdim=True) + kernel.mean()
        strengths, vectors = torch.linalg.eigh(centred)
        return vectors[:, -1] * strengths[-1].clamp_min(0).sqrt(), gap_of(strengths)
