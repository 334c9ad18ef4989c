"""Controls: maps that know nothing of the network. A method that proves no better than these proves nothing.

A third one, random weights of feature maps, is in `cam/plain.py`.
"""

from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.baselines import blurred
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer


@dataclass(frozen=True, kw_only=True)
class Control(Explainer):
    """Base of controls, which take their maps from the pictures alone."""

    @abstractmethod
    def draw(self, images: Tensor) -> Tensor:
        """Return the maps (N, H, W) of pictures (N, C, H, W) in float32 or wider, not negative."""

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, for the targets and the outputs alone."""
        objective, outputs = question.plain()
        return self.answer(self.draw(widened(question.images)), objective, outputs)


@method("edges", family="control", backwards="0", discriminates=False, fine=True)
class Edges(Control):
    r"""Edges: edges of the picture, blurred: a control that any method should beat.

    .. math:: M = G_\sigma * \sqrt{(S_x * \bar{x})^2 + (S_y * \bar{x})^2}

    where :math:`\bar{x}` is the mean of the channels, S are Sobel's kernels and G a Gaussian. The paper (section 5.1)
    shows that such edges look like an explanation.
    """

    blur: Annotated[
        float,
        Field(ge=0, le=1, description="Standard deviation of the blur, as a share of the picture's shorter side."),
    ] = 0.05

    def draw(self, images: Tensor) -> Tensor:
        """Return the blurred magnitudes of Sobel's gradients."""
        grey = functional.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        across = images.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        gradients = functional.conv2d(grey, torch.stack([across, across.T])[:, None])
        return blurred(gradients.norm(dim=1), self.blur * min(images.shape[2:]))


@method("centre", family="control", backwards="0", discriminates=False, fine=True)
class Centre(Control):
    r"""Centre: a Gaussian in the middle of the picture: a control that any method should beat.

    .. math:: M_{ij} = \exp\left(-\frac{u_i^2 + v_j^2}{2 \sigma^2}\right)

    where u and v are distances from the middle, as shares of the picture's height and width. Photographers usually
    place the subject there. The paper explains why controls are needed; this one is our own.
    """

    spread: Annotated[
        float, Field(gt=0, le=10, description="Standard deviation of the Gaussian, as a share of each side.")
    ] = 0.25

    def draw(self, images: Tensor) -> Tensor:
        """Return the same Gaussian for each picture."""
        places = [(torch.arange(side, device=images.device) + 0.5) / side - 0.5 for side in images.shape[2:]]
        down, across = (torch.exp(-(part**2) / (2 * self.spread**2)).to(images) for part in places)
        return (down[:, None] * across).expand(len(images), -1, -1)
