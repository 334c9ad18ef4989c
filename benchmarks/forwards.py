"""Plain forward passes of a whole model, the yardsticks: they explain nothing."""

import io
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch

from benchmarks.contestants import Workload
from benchmarks.rounds import Run

EAGER, COMPILED, ONNXRUNTIME, OPENVINO = "PyTorch", "torch.compile", "ONNX Runtime", "OpenVINO"


def eager(workload: Workload) -> Run:
    """PyTorch, channels last, in inference mode."""
    return _forward(workload, workload.network().to(memory_format=torch.channels_last))


def compiled(workload: Workload) -> Run:
    """PyTorch compiled for this batch, channels last, in inference mode."""
    return _forward(workload, torch.compile(workload.network().to(memory_format=torch.channels_last), dynamic=False))


def _forward(workload: Workload, network: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    images = workload.images.to(memory_format=torch.channels_last)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return network(images)

    return run


def on_processor(workload: Workload) -> dict[str, Run]:
    """Return the installed yardsticks on a processor, all in float32 and with the same number of threads."""
    runs = {EAGER: eager(workload)}
    exported = _exported(workload)
    if find_spec("onnxruntime"):
        runs[ONNXRUNTIME] = _onnxruntime(workload, exported)
    if find_spec("openvino"):
        runs[OPENVINO] = _openvino(workload, exported)
    return runs


def on_gpu(workload: Workload) -> dict[str, Run]:
    """Return the yardsticks on a GPU, without the compiled one if it cannot be compiled."""
    runs, again = {EAGER: eager(workload)}, compiled(workload)
    try:
        again()
    except Exception as error:  # whatever the compiler lacks on this machine
        print(f"torch.compile is left out: {error}", file=sys.stderr)
        return runs
    return runs | {COMPILED: again}


def _exported(workload: Workload) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            workload.network(),
            (workload.images,),
            buffer,
            dynamo=False,
            input_names=["images"],
            output_names=["logits"],
        )
    return buffer.getvalue()


def _onnxruntime(workload: Workload, exported: bytes) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Its threads would continue to spin while the next contestant runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
    inputs = {"images": workload.images.numpy()}
    return lambda: torch.from_numpy(session.run(None, inputs)[0])


def _openvino(workload: Workload, exported: bytes) -> Run:
    import openvino

    core = openvino.Core()
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # processors with bfloat16 would use it
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    network, images = core.compile_model(core.read_model(exported, b""), "CPU", options), workload.images.numpy()
    return lambda: torch.from_numpy(network(images)[0])
