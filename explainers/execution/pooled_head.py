"""Linear heads behind global average pooling: outputs and gradients in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

_SCALES = (0.01, 1.0, 1e4)
"""Of the features that a head is tried with: a clamp or another nonlinear step shows at one of them."""

_TOLERANCE = 1e-5
"""Largest difference that counts as rounding, as a share of the largest output."""


@dataclass(frozen=True, eq=False)
class PooledHead:
    """A linear layer that reads the averages of feature maps, and nothing else, and returns the model's output.

    The gradient of output k with respect to feature map c is :math:`W_{kc}` divided by the number of positions, at each
    position. This takes one small product; a backward pass through modules takes as long as some of the model's layers.

    Attributes:
        linear: the layer.
    """

    linear: nn.Linear

    def outputs(self, features: Tensor) -> Tensor:
        """Return the model's output (N, K) for feature maps (N, C, h, w)."""
        return functional.linear(features.mean(dim=(2, 3)), self.linear.weight, self.linear.bias)

    def gradients(self, of_outputs: Tensor, features: Tensor) -> Tensor:
        """Return the gradients (N, C, h, w) with respect to feature maps, given those of outputs (N, K)."""
        height, width = features.shape[2:]
        of_averages = of_outputs @ self.linear.weight
        return (of_averages / (height * width))[:, :, None, None].expand(-1, -1, height, width)


def pooled_head(suffix: fx.GraphModule, features: tuple[Tensor, ...]) -> PooledHead | None:
    """Return the head that a suffix is; None if it is anything else.

    The suffix is not read but tried, with features of both signs and of several magnitudes.

    Args:
        suffix: the part of a model after a layer; see `Cut`.
        features: what crosses the cut, for some images.
    """
    linear = next((part for part in reversed(list(suffix.modules())) if type(part) is nn.Linear), None)
    if linear is None or len(features) != 1 or features[0].ndim != 4 or features[0].shape[1] != linear.in_features:
        return None
    head, generator = PooledHead(linear), torch.Generator().manual_seed(0)
    noise = torch.randn(features[0].shape, generator=generator).to(features[0])
    for probe in (features[0], *(scale * noise for scale in _SCALES)):
        expected, outputs = suffix(probe.clone()), head.outputs(probe)
        if not isinstance(expected, Tensor) or expected.shape != outputs.shape or expected.dtype != outputs.dtype:
            return None
        if not (expected - outputs).abs().max() <= _TOLERANCE * expected.abs().max():
            return None
    return head
