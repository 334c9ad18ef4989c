"""Graphs of ATen operations as OpenVINO models, including gradients, which OpenVINO's own converter does not support.

Operations are written by rules; a graph with an operation without a rule cannot be written. The first axis of every
tensor is that of the pictures, and their number is free. Operations are written in the forms in which OpenVINO is fast.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from seewhy.explainers.execution.runtime import imported_openvino


class UnknownOperationError(Exception):
    """A graph holds an operation for which there is no rule."""


Rule = Callable[..., Any]
"""Writes a node, given the writer, the node's arguments, and `node` itself, and returns its first result; None where
`Writer.same` gives it the value of another node, or where it has none."""


class Rules(dict[Any, Rule]):
    """Rules by the operations that they write."""

    def of(self, *operations: Any) -> Callable[[Rule], Rule]:
        """Return a decorator that adds a rule for some operations."""

        def add(rule: Rule) -> Rule:
            self.update(dict.fromkeys(operations, rule))
            return rule

        return add


class Writer:
    """Writes a graph, node by node.

    Args:
        graph: graph of ATen operations on float32 tensors (N, ...), as `make_fx` traces it for an N other than 1; it
            returns a tuple of tensors.
        rules: rules of all of its operations.

    Attributes:
        ops: OpenVINO's operations, as functions of values and constants.
        values: the written values, by node; of several results the first one.
        constants: the tensors that depend on no argument, by node.
        factors: (C,) by node: factors of the channels that the written value lacks; convolutions absorb them.
        clipped: clipped values, by the node that is clipped and the bounds.
    """

    def __init__(self, graph: fx.GraphModule, rules: Rules) -> None:
        self._openvino = imported_openvino()
        self.ops = self._openvino.opset15
        self._graph, self._rules = graph.graph, rules
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[fx.Node, Tensor] = {
            node: getattr(graph, str(node.target)).detach() for node in self._graph.nodes if node.op == "get_attr"
        }
        self.factors: dict[fx.Node, Tensor] = {}
        self.clipped: dict[tuple[fx.Node, float, float], Any] = {}

    def model(self) -> Any:
        """Return the graph as an `openvino.Model`.

        Raises:
            UnknownOperationError: there is no rule for one of its operations.
        """
        arguments = [node for node in self._graph.nodes if node.op == "placeholder"]
        for node in arguments:
            self.values[node] = self.ops.parameter(self._openvino.PartialShape([-1, *shape_of(node)[1:]]))
        inputs = [self.values[node] for node in arguments]
        for node in self._graph.nodes:
            if node.op == "call_function" and node not in self.values:
                self._write(node)
        results: Any = self._graph.output_node().args[0]
        return self._openvino.Model([self.ops.result(self.value(result)) for result in results], inputs)

    def _write(self, node: fx.Node) -> None:
        rule = self._rules.get(node.target)
        if rule is None:
            raise UnknownOperationError(f"There is no rule for {node.target}.")
        value = rule(self, *node.args, node=node, **node.kwargs)
        if value is not None:
            self.values[node] = value

    def same(self, node: fx.Node, source: fx.Node) -> None:
        """Let a node have the value of another."""
        if source in self.values:
            self.values[node] = self.values[source]
        if source in self.constants:
            self.constants[node] = self.constants[source]
        if source in self.factors:
            self.factors[node] = self.factors[source]

    def value(self, node: fx.Node | float) -> Any:
        """Return a value, complete with its factors.

        Raises:
            UnknownOperationError: it is not written, like the second results of most operations.
        """
        if not isinstance(node, fx.Node):
            return self.constant(float(node))
        factor = self.factors.pop(node, None)
        if factor is not None:
            self.values[node] = self.ops.multiply(self.values[node], self.constant(of_channels(factor, node)))
        elif node in self.constants and node not in self.values:
            self.values[node] = self.constant(self.constants[node])
        elif node not in self.values:
            raise UnknownOperationError(f"There is no rule for {node}.")
        return self.values[node]

    def tensor(self, node: fx.Node) -> Tensor:
        """Return a constant.

        Raises:
            UnknownOperationError: it depends on an argument.
        """
        if node not in self.constants:
            raise UnknownOperationError(f"{node} is not constant.")
        return self.constants[node]

    def constant(self, value: Tensor | Sequence[int] | float) -> Any:
        """Return a new constant: a tensor, integers, or a float."""
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else torch.int64)
        return self.ops.constant(value.contiguous().cpu().numpy())

    def reshaped(self, value: Any, shape: Sequence[int]) -> Any:
        """Return a value in a shape (N, ...)."""
        return self.ops.reshape(value, self.constant([-1, *shape[1:]]), special_zero=False)

    def padded(self, value: Any, before: Sequence[int], after: Sequence[int], filling: float = 0.0) -> Any:
        """Return a value with more, or for negative numbers fewer, entries on each axis."""
        ends = self.constant(before), self.constant(after)
        return self.ops.pad(value, *ends, "constant", self.constant(filling))

    def masked(self, gradient: Any, mask: Any) -> Any:
        """Return a gradient that is zero where a mask is false."""
        return self.ops.select(mask, gradient, self.constant(0.0))


def of_channels(values: Tensor, node: fx.Node) -> Tensor:
    """Return values (C,) in a shape in which they multiply those of a node (N, C, ...)."""
    return values.reshape(-1, *[1] * (len(shape_of(node)) - 2))


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value; of several results the first one's."""
    value = node.meta["val"]
    return tuple(value.shape if isinstance(value, Tensor) else value[0].shape)
