"""Runtimes of ONNX models on the processor, with as many threads as PyTorch has."""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seewhy.explainers.process_wide import exclusive

Run = Callable[..., tuple[Tensor, ...]]
"""From tensors (N, ...) of any N, float32 in main memory, to the model's outputs, without a graph, in new memory."""

BATCH = 8
"""Number of pictures that OpenVINO runs at once; the rest of a batch runs one by one. The graphs for these two numbers
have fixed shapes: one for any number is slower, and each graph keeps the memory of its activations."""

_ROUNDS = 5
"""Runs of each contestant in a comparison of speed."""


def onnxruntime_run(model: bytes) -> Run:
    """Return a `Run` of an ONNX model, on ONNX Runtime."""
    runtime = imported_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Threads that spin until the next run would take processors from PyTorch, which works between two runs. If OpenMP's
    # threads must not spin (OMP_WAIT_POLICY), neither must these within a run.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = session.run(None, dict(zip(names, map(_array, tensors), strict=True)))
        return tuple(map(torch.from_numpy, values))

    return run


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().contiguous().numpy()
    return array


def imported_onnxruntime() -> Any:
    """Import ONNX Runtime without the telemetry of its official builds."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # the call below alone comes after the first report
    import onnxruntime as runtime  # type: ignore[import-untyped]

    runtime.disable_telemetry_events()
    return runtime


def openvino_run(model: bytes, precision: str = "f32") -> Run:
    """Return a `Run` of an ONNX model, on OpenVINO.

    Args:
        model: its batch size is free.
        precision: of the products: ``f32``, or ``bf16``, which processors without bfloat16 emulate slowly.
    """
    networks = _Networks(model, precision)
    requests = _Requests()

    def run_at_once(*tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(tensors[0])
        if count not in requests.by_count:
            requests.by_count[count] = networks.compiled(count).create_infer_request()
        values = requests.by_count[count].infer(list(map(_array, tensors)), share_inputs=True)
        return tuple(map(torch.from_numpy, values.to_tuple()))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        batches, rest = divmod(len(tensors[0]), BATCH)
        parts = (torch.split(tensor, [BATCH] * batches + [1] * rest) for tensor in tensors)
        results = [run_at_once(*part) for part in zip(*parts, strict=True)]
        return tuple(map(torch.cat, zip(*results, strict=True))) if len(results) > 1 else results[0]

    return run


class _Requests(threading.local):
    """OpenVINO's inference requests by the number of pictures. Each serves one thread."""

    def __init__(self) -> None:
        self.by_count: dict[int, Any] = {}


class _Networks:
    """An ONNX model in OpenVINO, compiled for a number of pictures when this is first needed.

    Args:
        model: in ONNX.
        precision: see `openvino_run`.
    """

    def __init__(self, model: bytes, precision: str) -> None:
        self._core = _imported_openvino().Core()
        self._model = self._core.read_model(model, b"")
        self._options = {
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # the threads of several processes would share the first processors
        }
        self._compiled: dict[int, Any] = {}
        self._lock = threading.Lock()

    def compiled(self, count: int) -> Any:
        """Return the network for a number of pictures."""
        with self._lock:
            if count not in self._compiled:
                network = self._model.clone()
                network.reshape({value: [count, *_sides(value)] for value in network.inputs})
                self._compiled[count] = self._core.compile_model(network, "CPU", self._options)
            return self._compiled[count]


def _sides(value: Any) -> list[int]:
    """Return the shape of an input without the number of pictures."""
    return [side.get_length() for side in list(value.partial_shape)[1:]]


@exclusive()
def _imported_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import and write into the home folder."""
    telemetry = "openvino_telemetry"
    blocked: dict[str, Any] = sys.modules
    blocked.setdefault(telemetry, None)  # OpenVINO does without it if it cannot be imported
    try:
        import openvino  # not on machines for which it is not built
    finally:
        if blocked[telemetry] is None:
            del blocked[telemetry]
    return openvino


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
    """Return the fastest of some runs for one picture and for batches, as measured now for `BATCH`.

    Args:
        runs: the contestants.
        image: (1, C, H, W).
    """
    single, batch = (faster(runs, image.repeat(count, 1, 1, 1)) for count in (1, BATCH))
    return single if single is batch else partial(_either, single, batch)


def _either(single: Run, batch: Run, images: Tensor) -> tuple[Tensor, ...]:
    return (single if len(images) == 1 else batch)(images)
