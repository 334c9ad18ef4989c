"""The stretches of a model between layers with hooks: on OpenVINO, forwards and backwards.

Hooks need the outputs of the layers and their gradients, and nothing in between.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from seewhy.explainers.execution.accelerators import openvino
from seewhy.explainers.execution.cut import Cut, LayerView, cut_before, targets_of
from seewhy.explainers.execution.runtime import Run
from seewhy.explainers.execution.vjp import Vjp, vjp_of


class _Stretch(torch.autograd.Function):
    """A stretch as one operation; its backward pass runs the stretch again."""

    @staticmethod
    def forward(ctx: Any, segment: "Segment", values: Tensor) -> Tensor:
        ctx.segment = segment
        ctx.save_for_backward(values)
        (result,) = segment.run(values)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (values,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives, which the graph does not have
            (result,) = ctx.segment.plain(values.clone())
            return None, *torch.autograd.grad(result, values, gradient, create_graph=True)
        return None, ctx.segment.vjp(values.contiguous(), gradient.contiguous())[1]


class Segment(nn.Module):
    """From the output of a layer to that of a later one.

    Args:
        run: the forward pass.
        vjp: its vector-Jacobian product.
        plain: the forward pass in PyTorch, which may modify its input in place.
    """

    def __init__(self, run: Run, vjp: Vjp, plain: Run) -> None:
        super().__init__()
        self.run, self.vjp, self.plain = run, vjp, plain

    def forward(self, values: Tensor) -> Tensor:
        """Return the later layer's output."""
        result: Tensor = _Stretch.apply(self, values)
        return result


def segmented(cut: Cut, layers: Sequence[str], values: Tensor) -> fx.GraphModule:
    """Return a model's second part with a `Segment` between consecutive layers.

    Args:
        cut: before the first of the layers.
        layers: paths of the layers, each of which runs once, none inside another.
        values: (3, ...) float32, what the first layer returns for three pictures.

    Raises:
        UncuttableError: the part cannot be cut at the other layers, or passes on more than the layers' outputs.
        Exception: a segment cannot be compiled.
    """
    graph = fx.Graph()
    members: dict[str, Any] = {}
    value = graph.placeholder("value_0")
    rest = set(layers) - {cut.layer}
    for number in range(len(rest)):
        following = cut_before(cut.suffix, sorted(rest), values)
        segment = f"segment_{number}"
        vjp = vjp_of(following.prefix, _only, values)
        run = openvino(following.prefix, values[:1])
        # Not the module itself: hooks have no place within a segment.
        members[cut.layer], members[segment] = LayerView(), Segment(run, vjp, following.prefix.forward)
        value = graph.call_module(segment, (graph.call_module(cut.layer, (value,)),))
        with torch.no_grad():
            (values,) = following.prefix(values.clone())
        cut = following
        rest.remove(cut.layer)
    (start,) = [step for step in cut.suffix.graph.nodes if step.op == "placeholder"]
    copies = {start: value}
    for step in cut.suffix.graph.nodes:
        if step is not start:
            copies[step] = graph.node_copy(step, copies.__getitem__)
    suffix = fx.GraphModule(members | targets_of(cut.suffix), graph)
    suffix.training = False
    return suffix


def _only(values: tuple[Tensor, ...]) -> Tensor:
    (value,) = values
    return value
