"""Accelerators: they run the part of a model before a cut, without hooks or gradients, faster than plain PyTorch."""

import io
import logging
import os
import threading
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse

from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution.choices import ACCELERATOR_NAMES
from seewhy.explainers.hooks.attention import DefinedAttention
from seewhy.explainers.process_wide import exclusive, silenced

Run = Callable[[Tensor], tuple[Tensor, ...]]
"""From images (N, C, H, W) of any N to the part's output, without a graph, in new memory."""

Compile = Callable[[fx.GraphModule, Tensor], Run]
"""From a part of a model in evaluation mode, and an image (1, C, H, W) of the right size, to its `Run`."""

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Numbers of pictures for which `compile` records a part."""

PACKAGES = ("onnxruntime", "onnx")
"""Packages that `onnxruntime` needs."""

_log = logging.getLogger(__name__)

_COUNT = "count"
"""The name of the number of pictures in ONNX models."""


def eager(part: fx.GraphModule, image: Tensor) -> Run:
    """PyTorch itself, with batch normalisation folded into convolutions, channels last."""
    try:
        folded: nn.Module = fuse(part, no_trace=True)
    except Exception:  # of a graph that `fuse` does not expect
        folded = deepcopy(part)
    folded = folded.to(memory_format=torch.channels_last)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            values: tuple[Tensor, ...] = folded(images.clone(memory_format=torch.channels_last))
            return values

    return run


def _onnxruntime() -> Any:
    """Import ONNX Runtime without the telemetry of its official builds."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # the call below alone comes after the first report
    import onnxruntime as runtime  # type: ignore[import-untyped]

    runtime.disable_telemetry_events()
    return runtime


def onnxruntime(part: fx.GraphModule, image: Tensor) -> Run:
    """ONNX Runtime on the processor, in float32, with as many threads as PyTorch has."""
    exported = _folded(_exported(part, image))
    _log.debug("Exported %d bytes of ONNX.", len(exported))
    session = session_of(exported)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        values = session.run(None, {"images": images.detach().contiguous().numpy()})
        return tuple(torch.from_numpy(value) for value in values)

    return run


def session_of(model: bytes) -> Any:
    """Return ONNX Runtime's session for a model, on the processor, with as many threads as PyTorch has."""
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Threads that spin until the next run would take processors from PyTorch, which works between two runs. If OpenMP's
    # threads must not spin (OMP_WAIT_POLICY), neither must these within a run.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


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

    runtime = _onnxruntime()
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


@exclusive()
def compiled(part: fx.GraphModule, image: Tensor) -> Run:
    """`torch.compile`, on CUDA with CUDA graphs: compiled for any number of pictures, recorded for those in `BUCKETS`.

    Batches are filled up to the next bucket. CUDA graphs belong to the thread that records them; other threads run the
    part uncompiled.
    """
    from torch._dynamo import mark_dynamic  # takes seconds to import

    compiled_part = torch.compile(part.forward, mode="reduce-overhead" if image.is_cuda else "default")
    thread = threading.local()
    thread.records = True

    def run_bucket(images: Tensor) -> tuple[Tensor, ...]:
        size = next(size for size in BUCKETS if size >= len(images))
        repeated = images[:1].expand(size - len(images), -1, -1, -1)
        filled = torch.cat((images, repeated)).contiguous(memory_format=torch.channels_last)
        if size > 1:
            mark_dynamic(filled, 0)
        # Copies: the next run of a CUDA graph overwrites its outputs.
        return tuple(values[: len(images)].clone() for values in compiled_part(filled))

    def run(images: Tensor) -> tuple[Tensor, ...]:
        with torch.inference_mode(False), torch.no_grad():  # another mode would compile the part again
            if image.is_cuda and not hasattr(thread, "records"):
                values: tuple[Tensor, ...] = part(images.clone())
                return values
            chunks = [run_bucket(chunk) for chunk in torch.split(images.detach(), BUCKETS[-1])]
            return tuple(torch.cat(values) for values in zip(*chunks, strict=True)) if len(chunks) > 1 else chunks[0]

    for size in BUCKETS * 2:  # a CUDA graph is recorded the second time
        run(image.expand(size, -1, -1, -1))
    return run


ACCELERATORS: dict[str, Compile] = dict(zip(ACCELERATOR_NAMES[1:], (eager, onnxruntime, compiled), strict=True))


def choose(name: str, device: torch.device) -> str:
    """Return the accelerator for a name and a device; ``auto`` is onnxruntime on a processor, else eager.

    Raises:
        OptionError: there is no such accelerator, it does not run on the device, or is not installed.
    """
    installed = all(find_spec(package) for package in PACKAGES)
    if name == "auto":
        if device.type == "cpu" and not installed:
            _log.warning("%s are not all installed; models run on PyTorch, several times slower.", ", ".join(PACKAGES))
        return "onnxruntime" if device.type == "cpu" and installed else "eager"
    if name not in ACCELERATORS:
        raise OptionError(f"No accelerator {name!r}; choose from {', '.join(ACCELERATOR_NAMES)}.", "accelerator")
    if name == "onnxruntime" and device.type != "cpu":
        raise OptionError("onnxruntime only runs on the CPU here; choose eager or auto.", "accelerator")
    if name == "onnxruntime" and not installed:
        raise OptionError(f"onnxruntime needs the packages {', '.join(PACKAGES)}; install them.", "accelerator")
    return name
