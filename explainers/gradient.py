"""Methods computed from the gradient of the target's logit with respect to the input."""

from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from explainers.base import (
    Attribution,
    Explainer,
    Sign,
    checked_logits,
    chosen_targets,
    keep_sign,
    target_score,
)
from explainers.errors import ModelOutputError


@dataclass(frozen=True)
class Saliency(Explainer):
    r"""Saliency: the largest gradient of the target's logit over a pixel's channels.

    .. math:: M_{ij} = \max_c \left| \frac{\partial y^t}{\partial x_{cij}} \right|

    Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, 2013, arXiv:1312.6034, section 3.1;
    the gradient is that of the normalised input. ``sign="signed"`` keeps the sign of the channel with the
    largest magnitude, so its absolute value is the paper's map; ``"positive"`` keeps only where that sign is
    positive.
    """

    sign: Annotated[
        Sign,
        Field(description="Magnitude of the gradient (the paper's), its sign too, or only where it is positive."),
    ] = "absolute"

    def attribute(self, model: Any, module: nn.Module, images: Tensor, targets: Tensor | None) -> Attribution:
        """One forward and one backward pass to the input; parameters get no gradient."""
        with torch.enable_grad():
            # The clone may be modified in place by the model's first layer; the leaf may not.
            leaf = images.detach().requires_grad_()
            logits = checked_logits(module(leaf.clone()))
            targets = chosen_targets(logits, targets)
            if not logits.requires_grad:
                raise ModelOutputError("No gradient flows from the logits to the input: the model switches them off.")
            (gradients,) = torch.autograd.grad(target_score(logits, targets), leaf, allow_unused=True)
        if gradients is None:
            raise ModelOutputError("No gradient flows from the logits to the input: the model detaches it.")
        strongest = gradients.float().abs().argmax(dim=1, keepdim=True)
        values = gradients.float().gather(1, strongest)[:, 0]
        return Attribution(
            maps=keep_sign(values, self.sign),
            targets=targets,
            logits=logits.detach().float(),
            layers=(),
            signed=self.sign == "signed",
        )
