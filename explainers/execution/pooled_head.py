"""Linear heads behind global average pooling: outputs and gradients in closed form."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from seewhy.explainers.execution.cut import targets_of

_SCALES = (0.01, 1.0, 1e4)
"""Scales of the features that a head is tried with: a clamp or another nonlinear step shows at one of them."""

_TOLERANCE = 1e-5
"""Largest difference that counts as rounding, as a share of the sum of the magnitudes of an output's terms."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PooledHead:
    """A linear layer that reads the averages of feature maps, and nothing else, and returns the model's output.

    The gradient of output k with respect to feature map c is :math:`W_{kc}` divided by the number of positions, at each
    position. This takes one small product; a backward pass through modules takes as long as some of the model's layers.

    Attributes:
        linear: the layer.
        path: path of the layer.
    """

    linear: nn.Linear
    path: str

    def outputs(self, features: Tensor) -> Tensor:
        """Return the model's output (N, K) for feature maps (N, C, h, w)."""
        return functional.linear(features.mean(dim=(2, 3)), self.linear.weight, self.linear.bias)

    def joined(self, prefix: fx.GraphModule) -> fx.GraphModule:
        """Return the part of a model before the feature maps, extended so that it also returns the model's output.

        An accelerator that runs both finds the feature maps in the processor's cache, and has packed the weights.
        """
        graph = fx.Graph()
        values: Any = graph.graph_copy(prefix.graph, {})
        (features,) = values
        means = graph.call_method("mean", (features, (2, 3)))
        graph.output((features, graph.call_module(self.path, (means,))))
        joint = fx.GraphModule({**targets_of(prefix), self.path: self.linear}, graph)
        joint.training = False
        return joint

    def gradients(self, output_gradients: Tensor, features: Tensor) -> Tensor:
        """Return the gradients (N, C, h, w) of feature maps, the same at all positions, given those of outputs (N, K).

        The positions share their memory; copy it to change it.
        """
        height, width = features.shape[2:]
        shares = self._average_gradients(output_gradients) / (height * width)
        return shares[:, :, None, None].expand(-1, -1, height, width)

    def _average_gradients(self, output_gradients: Tensor) -> Tensor:
        """Return the gradients (N, C) of the averages of feature maps, given those of outputs (N, K)."""
        if output_gradients.is_cuda:  # where the next line would wait for the device
            return output_gradients @ self.linear.weight
        # Most are for single classes, with a thousandth of the weights; reading all weights takes as long as a layer.
        classes = output_gradients.any(dim=0).nonzero()[:, 0]
        return output_gradients[:, classes] @ self.linear.weight[classes]


def pooled_head(suffix: fx.GraphModule, features: tuple[Tensor, ...]) -> PooledHead | None:
    """Return a suffix as a pooled head; None if it computes anything else.

    The suffix is run, with features of both signs and of several magnitudes, and each output must be that of the head
    up to its own rounding.

    Args:
        suffix: the part of a model after a layer; see `Cut`.
        features: the tensors that cross the cut, for some images.
    """
    layers = [(path, part) for path, part in suffix.named_modules() if type(part) is nn.Linear]
    path, linear = layers[-1] if layers else ("", None)
    has_state = any(True for _ in suffix.buffers())
    if linear is None or has_state or len(features) != 1 or features[0].shape[1:2] != (linear.in_features,):
        return None
    head = PooledHead(linear, path)
    noise = torch.randn(features[0].shape, generator=torch.Generator().manual_seed(0)).to(features[0])
    try:
        agrees = all(_agrees(suffix, head, probe) for probe in (features[0], *(scale * noise for scale in _SCALES)))
    except Exception as error:  # the model's code gets features that no picture has
        _log.debug("No closed form: %s", error)
        return None
    return head if agrees else None


def _agrees(suffix: fx.GraphModule, head: PooledHead, features: Tensor) -> bool:
    """Whether a suffix and a head give the same outputs for features (N, C, h, w)."""
    if features.ndim != 4:
        return False
    linear = head.linear
    expected, outputs = suffix(features.clone()), head.outputs(features)
    if not isinstance(expected, Tensor) or expected.shape != outputs.shape or expected.dtype != outputs.dtype:
        return False
    bias = None if linear.bias is None else linear.bias.abs()
    terms = functional.linear(features.abs().mean(dim=(2, 3)), linear.weight.abs(), bias)  # whose sums are rounded
    return bool(((expected - outputs).abs() <= _TOLERANCE * terms).all())
