"""Graphs of ATen operations as OpenVINO's models: also of gradients, which its own converter does not know.

There is a rule for each operation; a graph with any other cannot be written. The first axis of every tensor is that of
the pictures, and their number is free. The forms are those that OpenVINO is fast at.
"""

from typing import Any

from torch import fx

from seewhy.explainers.execution import openvino_convolutions, openvino_pooling, openvino_rules
from seewhy.explainers.execution.openvino_writer import Rules, Writer

RULES = Rules(openvino_convolutions.RULES | openvino_pooling.RULES | openvino_rules.RULES)
"""Of all operations that can be written."""


def model_of(graph: fx.GraphModule) -> Any:
    """Return a graph as an `openvino.Model`.

    Args:
        graph: of ATen operations on float32 tensors (N, ...), as `make_fx` traces it for an N other than 1; it returns
            a tuple of tensors.

    Raises:
        UnknownOperationError: there is no rule for one of its operations.
    """
    return Writer(graph, RULES).model()
