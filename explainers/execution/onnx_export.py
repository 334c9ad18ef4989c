"""Parts of models as ONNX models, by PyTorch's exporter."""

import io
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, fx

from seewhy.explainers.execution.runtimes import imported_onnxruntime
from seewhy.explainers.hooks.attention import DefinedAttention
from seewhy.explainers.process_wide import exclusive, silenced

_log = logging.getLogger(__name__)

_COUNT = "count"
"""The name of the number of pictures in ONNX models."""


def exported(part: fx.GraphModule, image: Tensor) -> bytes:
    """Return a part of a model as an ONNX model, from ``images`` of any number.

    Args:
        part: in evaluation mode.
        image: (1, C, H, W) of the right size.
    """
    model = _folded(_exported(part, image))
    _log.debug("Exported %d bytes of ONNX.", len(model))
    return model


def _exported(part: fx.GraphModule, image: Tensor) -> bytes:
    """Return the part as an ONNX model whose batch size is free."""
    buffer = io.BytesIO()
    (values,) = part.graph.output_node().args
    outputs = [f"value_{number}" for number, _ in enumerate(values)]  # type: ignore[arg-type]  # a tuple, see `Cut`
    # The exporter traces, which fixes all that depends on values of tensors. The caller compares the results.
    # The exporter knows no fused attention.
    with exclusive(), silenced(), torch.no_grad(), DefinedAttention():
        torch.onnx.export(
            part,
            (image.clone(),),
            buffer,  # type: ignore[arg-type]  # what this exporter takes
            dynamo=False,
            # ONNX Runtime folds constants itself, with the same result; here it only takes time.
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=["images"],
            output_names=outputs,
            dynamic_axes={name: {0: _COUNT} for name in ("images", *outputs)},
        )
    return buffer.getvalue()


def _folded(exported: bytes) -> bytes:
    """Return an ONNX model without the steps that depend on the pictures' height and width alone.

    Padding that is computed from these, as in models from TensorFlow, keeps ONNX Runtime from fusing the steps around
    it. ONNX Runtime folds the constants for one number of pictures. If the model is the same for three and for eight,
    it is taken to hold for any number; the caller compares results for others.
    """
    import onnx  # not on machines for which it is not built

    if not any(step.op_type == "Shape" for step in onnx.load_from_string(exported).graph.node):
        return exported
    try:
        folded = _folded_for(3, exported)
        return folded if folded == _folded_for(8, exported) else exported
    except Exception as error:  # such as a full disk
        _log.info("Padding is computed in each pass: %s", error)
        return exported


def _folded_for(count: int, exported: bytes) -> bytes:
    """Return an ONNX model with the constants for a number of pictures folded, its batch size free again."""
    import onnx

    runtime = imported_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_free_dimension_override_by_name(_COUNT, count)
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "folded.onnx"))
        runtime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = _COUNT
    folded: bytes = model.SerializeToString()
    return folded
