"""A frozen model and its vector-Jacobian product as one feed-forward graph on OpenVINO.

The gradient with respect to the pictures needs no autograd: the backward pass of a model whose weights are fixed is a
graph like the forward pass. The graph takes the gradient of a score with respect to the outputs, so that one graph
serves all scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functionalize, vjp
from torch.fx.experimental.proxy_tensor import make_fx

from seewhy.explainers.execution import openvino_convolutions, openvino_rules
from seewhy.explainers.execution.openvino_writer import Rules, Writer
from seewhy.explainers.execution.runtime import BATCH, Run, openvino_run
from seewhy.explainers.process_wide import exclusive

RULES = Rules(openvino_convolutions.RULES | openvino_rules.RULES)
"""Rules of all operations that can be written for OpenVINO."""

Outputs = Callable[[Any], Tensor]
"""Reads the outputs (N, ...) from a model's result."""

_MOST_DISTANT = 0.02
"""Largest distance of gradients, and of outputs, from PyTorch's, as a share of these. Rounding opens or closes
rectifiers whose inputs are near zero. PyTorch's own convolutions differ by 0.004 in this way (ResNet-50)."""


class DifferentResultsError(Exception):
    """The graph's outputs or gradients are not those of PyTorch."""


@dataclass(frozen=True, eq=False)
class Vjp:
    """A model and its vector-Jacobian product.

    Attributes:
        run: the graph, from images and seeds to outputs and gradients.
        outputs_shape: the outputs' shape without N.
    """

    run: Run
    outputs_shape: tuple[int, ...]

    def __call__(self, images: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs (N, ...), and the gradients (N, C, H, W) of the sum of outputs times seeds.

        Args:
            images: (N, C, H, W) float32 in main memory.
            seeds: (N, ...), likewise: the gradients of the scores with respect to the outputs.
        """
        outputs, gradients = self.run(images, seeds)
        return outputs, gradients


def vjp_of(module: nn.Module, outputs: Outputs, probe: Tensor, most: int = BATCH) -> Vjp:
    """Return a model's vector-Jacobian product, compared with PyTorch's.

    Args:
        module: frozen, in evaluation mode and float32, in main memory.
        outputs: see `Outputs`.
        probe: (3, C, H, W) float32, likely images: a trace of a single one would not hold for others.
        most: pictures that memory allows in one pass.

    Raises:
        ImportError: OpenVINO is not installed.
        UnknownOperationError: the graph holds an operation without a rule.
        DifferentResultsError: the outputs or gradients differ from PyTorch's by more than rounding.
        Exception: whatever the model raises when it is traced.
    """

    def read(images: Tensor) -> Tensor:
        return outputs(module(images.clone()))  # a copy, because a model may modify its input in place

    def outputs_and_gradients(images: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        values, pull = vjp(read, images)[:2]
        return values, pull(seeds)[0]

    with exclusive(), torch.no_grad():  # a trace patches `nn.Module`
        seeds = torch.randn(read(probe).shape, generator=torch.Generator().manual_seed(0))
        graph = make_fx(functionalize(outputs_and_gradients))(probe, seeds)
    graph.graph.eliminate_dead_code()
    product = Vjp(openvino_run(Writer(graph, RULES).model()), tuple(seeds.shape[1:]))
    for count in (1, len(probe)):
        with torch.enable_grad():
            leaf = probe[:count].clone().requires_grad_()
            values = read(leaf)
            expected = values.detach(), *torch.autograd.grad(values, leaf, seeds[:count])
        _must_agree(product(probe[:count], seeds[:count]), expected)
    # OpenVINO has another graph for this number.
    rows = torch.arange(min(most, BATCH)) % len(probe)
    _must_agree(product(probe[rows], seeds[rows]), [results[rows] for results in expected])
    return product


def _must_agree(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise `DifferentResultsError` unless outputs and gradients differ from the expected ones by rounding alone."""
    for name, result, exact in zip(("outputs", "gradients"), results, expected, strict=True):
        if result.shape != exact.shape:
            raise DifferentResultsError(f"The {name} are {tuple(result.shape)}, not {tuple(exact.shape)}.")
        distance = float((result - exact).norm() / exact.norm())
        if not distance <= _MOST_DISTANT:  # NaN is not agreement
            raise DifferentResultsError(f"The {name} differ from PyTorch's by {distance:.1%}.")
