"""The writer of ONNX models from graphs of ATen operations: names, constants and steps, but no operation's rule."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

_OPSET = 17
_IR_VERSION = 8


class UnknownOperationError(Exception):
    """A graph holds an operation for which there is no rule."""


Rule = Callable[..., str | None]
"""Writes a node, given the writer, the node's arguments, and `node` itself, and returns the name of its first result;
None where `Writer.same` gives it the value of another node, or where it has none."""


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

    Attributes:
        names: of the written values, by node; of several results the first one's.
        constants: the tensors that depend on no argument, by node.
        factors: (C,) by node: factors of the channels that the written value lacks; convolutions absorb them.
        clipped: names of clipped values, by the name of the value and the bounds.
    """

    def __init__(self, graph: fx.GraphModule, rules: Rules) -> None:
        from onnx import TensorProto, helper, numpy_helper  # not on machines for which it is not built

        self._helper, self._float, self._array = helper, TensorProto.FLOAT, numpy_helper.from_array
        self._graph, self._rules = graph.graph, rules
        self.names: dict[fx.Node, str] = {}
        self.constants: dict[fx.Node, Tensor] = {
            node: getattr(graph, str(node.target)).detach() for node in self._graph.nodes if node.op == "get_attr"
        }
        self.factors: dict[fx.Node, Tensor] = {}
        self.clipped: dict[tuple[str, float, float], str] = {}
        self._steps: list[Any] = []
        self._initializers: list[Any] = []

    def model(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Return the ONNX model; see `onnx_model`."""
        arguments = [node for node in self._graph.nodes if node.op == "placeholder"]
        self.names.update(zip(arguments, inputs, strict=True))
        for node in self._graph.nodes:
            if node.op == "call_function" and node not in self.names:
                self._write(node)
        for result, name in zip(self._graph.output_node().args[0], outputs, strict=True):  # type: ignore[arg-type]
            self._steps.append(self._helper.make_node("Identity", [self.value(result)], [name]))
        typed = self._helper.make_tensor_value_info
        shapes: list[list[str | int | None]] = [["count", *shape_of(node)[1:]] for node in arguments]
        graph = self._helper.make_graph(
            self._steps,
            "graph",
            [typed(name, self._float, shape) for name, shape in zip(inputs, shapes, strict=True)],
            [typed(name, self._float, None) for name in outputs],
            self._initializers,
        )
        opset = self._helper.make_opsetid("", _OPSET)
        model: bytes = self._helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION).SerializeToString()
        return model

    def _write(self, node: fx.Node) -> None:
        rule = self._rules.get(node.target)
        if rule is None:
            raise UnknownOperationError(f"There is no rule for {node.target}.")
        name = rule(self, *node.args, node=node, **node.kwargs)
        if name:
            self.names[node] = name

    def same(self, node: fx.Node, source: fx.Node) -> None:
        """Let a node have the value of another."""
        if source in self.names:
            self.names[node] = self.names[source]
        if source in self.constants:
            self.constants[node] = self.constants[source]
        if source in self.factors:
            self.factors[node] = self.factors[source]

    def value(self, node: fx.Node) -> str:
        """Return the name of a value, complete with its factors.

        Raises:
            UnknownOperationError: it is not written, like the second results of most operations.
        """
        factor = self.factors.pop(node, None)
        if factor is not None:
            self.names[node] = self.step("Mul", self.names[node], self.constant(of_channels(factor, node)))
        elif node in self.constants and node not in self.names:
            self.names[node] = self.constant(self.constants[node])
        elif node not in self.names:
            raise UnknownOperationError(f"There is no rule for {node}.")
        return self.names[node]

    def tensor(self, node: fx.Node) -> Tensor:
        """Return a constant.

        Raises:
            UnknownOperationError: it depends on an argument.
        """
        if node not in self.constants:
            raise UnknownOperationError(f"{node} is not constant.")
        return self.constants[node]

    def constant(self, value: Tensor | Sequence[int] | float) -> str:
        """Return the name of a new constant: a tensor, integers, or a float."""
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else torch.int64)
        name = f"constant_{len(self._initializers)}"
        self._initializers.append(self._array(value.contiguous().cpu().numpy(), name))
        return name

    def step(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """Append an ONNX operation, and return the name of its result.

        Args:
            operation: its name.
            inputs: names of values.
            attributes: of the operation.
        """
        name = f"value_{len(self._steps)}"
        self._steps.append(self._helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """Return the name of a value in a shape (N, ...)."""
        return self.step("Reshape", name, self.constant([-1, *shape[1:]]))

    def masked(self, gradient: str, value: str, bound: float, above: bool = True) -> str:
        """Return the name of a gradient that is zero unless a value is above, or below, a bound."""
        mask = self.step("Greater" if above else "Less", value, self.constant(float(bound)))
        return self.step("Where", mask, gradient, self.constant(0.0))


def of_channels(values: Tensor, node: fx.Node) -> Tensor:
    """Return values (C,) in a shape in which they multiply those of a node (N, C, ...)."""
    return values.reshape(-1, *[1] * (len(shape_of(node)) - 2))


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value; of several results the first one's."""
    value = node.meta["val"]
    return tuple(value.shape if isinstance(value, Tensor) else value[0].shape)
