"""Saliency: the plain gradient."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign, keep_sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.base import input_gradients


@method(
    "saliency",
    family="gradient",
    summary="Largest gradient of the class score over the colour channels of each pixel.",
    paper=Paper(
        "Simonyan, Vedaldi, Zisserman",
        "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
        2013,
        "https://arxiv.org/abs/1312.6034",
    ),
    fine=True,
)
class Saliency(Explainer):
    r"""Saliency: the largest gradient of the target's logit over a pixel's channels.

    .. math:: M_{ij} = \max_c \left| \frac{\partial y^t}{\partial x_{cij}} \right|

    Section 3.1; the gradient is that of the normalised input. ``sign="signed"`` keeps the sign of the channel with the
    largest magnitude (of two equal ones, the positive one), so the absolute value of that map is the paper's.
    ``"positive"`` keeps only the places where that sign is positive. ``smooth="eigen"`` uses the first principal
    component over the channels instead of the largest channel.
    """

    sign: Annotated[
        Sign,
        Field(description="Magnitude of the gradient (as in the paper), the signed gradient, or its positive part."),
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        gradients, objective, outputs = input_gradients(question, question.images)
        return self.answer(self.project(gradients), objective, outputs)

    def project(self, values: Tensor) -> Tensor:
        """Return the value of the largest magnitude over the channels, instead of their sum."""
        if self.smooth == "eigen":
            return super().project(values)
        # On a processor an argmax over so few channels takes many times as long as a maximum and a minimum.
        highest, lowest = values.amax(dim=1), values.amin(dim=1)
        return keep_sign(torch.where(highest >= -lowest, highest, lowest), self.sign)
