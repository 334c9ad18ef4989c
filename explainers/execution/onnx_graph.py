"""Graphs of ATen operations as ONNX models: also of gradients, which PyTorch's own exporter does not know.

There is a rule for each operation; a graph with any other cannot be written. The first axis of every tensor is that of
the pictures, and their number is free. The forms are those that OpenVINO is fast at.
"""

from collections.abc import Sequence

from torch import fx

from seewhy.explainers.execution import onnx_convolutions, onnx_pooling, onnx_rules
from seewhy.explainers.execution.onnx_writer import Rules, Writer

RULES = Rules(onnx_convolutions.RULES | onnx_pooling.RULES | onnx_rules.RULES)
"""Of all operations that can be written."""


def onnx_model(graph: fx.GraphModule, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """Return a graph as an ONNX model.

    Args:
        graph: of ATen operations on float32 tensors (N, ...), as `make_fx` traces it for an N other than 1; it returns
            a tuple of tensors.
        inputs, outputs: names for its arguments and results.

    Raises:
        UnknownOperationError: there is no rule for one of its operations.
    """
    return Writer(graph, RULES).model(inputs, outputs)
