"""Runtimes of ONNX models on the processor, with as many threads as PyTorch has."""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.process_wide import exclusive

Run = Callable[[Tensor], tuple[Tensor, ...]]
"""From images (N, C, H, W) of any N to the part's output, without a graph, in new memory."""

FIXED_COUNTS = (1, 8)
"""Numbers of pictures with a graph of their own in OpenVINO, where graphs of fixed shapes are up to a sixth faster."""

_ROUNDS = 5
"""Runs of each contestant in a comparison of speed."""


def onnxruntime_run(model: bytes) -> Run:
    """Return a `Run` of a model from ``images``, on ONNX Runtime."""
    session = session_of(model)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        values = session.run(None, {"images": images.detach().contiguous().numpy()})
        return tuple(torch.from_numpy(value) for value in values)

    return run


def session_of(model: bytes) -> Any:
    """Return ONNX Runtime's session for a model."""
    runtime = imported_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Threads that spin until the next run would take processors from PyTorch, which works between two runs. If OpenMP's
    # threads must not spin (OMP_WAIT_POLICY), neither must these within a run.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def imported_onnxruntime() -> Any:
    """Import ONNX Runtime without the telemetry of its official builds."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # the call below alone comes after the first report
    import onnxruntime as runtime  # type: ignore[import-untyped]

    runtime.disable_telemetry_events()
    return runtime


def openvino_run(model: bytes, precision: str = "f32") -> Run:
    """Return a `Run` of a model from ``images``, on OpenVINO.

    Args:
        model: in ONNX.
        precision: of the products: ``f32``, or ``bf16``, which processors without bfloat16 emulate slowly.
    """
    openvino = _imported_openvino()
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # the threads of several processes would share the first processors
    }
    core = openvino.Core()

    def compiled(count: int | None) -> Any:
        network = core.read_model(model, b"")
        if count:
            network.reshape([count, *(side.get_length() for side in list(network.input().partial_shape)[1:])])
        return core.compile_model(network, "CPU", options)

    requests = _Requests({count: compiled(count) for count in (None, *FIXED_COUNTS)})

    def run(images: Tensor) -> tuple[Tensor, ...]:
        request = requests.by_count.get(len(images), requests.by_count[None])
        values = request.infer([images.detach().contiguous().numpy()], share_inputs=True)
        return tuple(map(torch.from_numpy, values.to_tuple()))

    return run


@exclusive()
def _imported_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import and write into the home folder."""
    telemetry = "openvino_telemetry"
    blocked: dict[str, Any] = sys.modules
    blocked.setdefault(telemetry, None)  # OpenVINO does without it if it cannot be imported
    import openvino  # an extra

    if blocked[telemetry] is None:
        del blocked[telemetry]
    return openvino


class _Requests(threading.local):
    """OpenVINO's inference requests by the number of pictures. Each serves one thread."""

    def __init__(self, networks: dict[int | None, Any]) -> None:
        self.by_count = {count: network.create_infer_request() for count, network in networks.items()}


def faster(runs: tuple[Run, ...], images: Tensor) -> Run:
    """Return the fastest of some runs for images (N, C, H, W), as measured now; the first of equals."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for run in runs:
            start = perf_counter()
            run(images)
            best[run] = min(best[run], perf_counter() - start)
    return min(best, key=best.__getitem__)


def fastest(runs: tuple[Run, ...], image: Tensor) -> Run:
    """Return the fastest of some runs for one picture and for batches, as measured now for `FIXED_COUNTS`.

    Args:
        runs: the contestants.
        image: (1, C, H, W).
    """
    single, batch = (faster(runs, image.repeat(count, 1, 1, 1)) for count in FIXED_COUNTS)
    return single if single is batch else partial(_either, single, batch)


def _either(single: Run, batch: Run, images: Tensor) -> tuple[Tensor, ...]:
    return (single if len(images) == 1 else batch)(images)
