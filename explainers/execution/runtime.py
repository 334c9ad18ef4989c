"""OpenVINO, the runtime of models on the processor, with as many threads as PyTorch has."""

import sys
import threading
from collections.abc import Callable
from functools import cache
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
"""Number of pictures that run at once; the rest of a batch runs one by one. The graphs for these two numbers have fixed
shapes: one for any number is slower, and each graph keeps the memory of its activations."""

_ROUNDS = 5
"""Runs of each contestant in a comparison of speed."""


def openvino_run(model: Any, precision: str = "f32") -> Run:
    """Return the `Run` of an `openvino.Model`.

    Args:
        model: its first axes are the pictures, whose number is free.
        precision: precision of the products: ``f32``, or ``bf16``, which processors without bfloat16 emulate slowly.
    """
    networks = _Networks(model, precision)
    requests = _Requests()

    def run_at_once(*tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(tensors[0])
        if count not in requests.by_count:
            requests.by_count[count] = networks.compiled(count, tensors).create_infer_request()
        values = requests.by_count[count].infer(list(map(_array, tensors)), share_inputs=True)
        return tuple(map(torch.from_numpy, values.to_tuple()))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        batches, rest = divmod(len(tensors[0]), BATCH)
        parts = (torch.split(tensor, [BATCH] * batches + [1] * rest) for tensor in tensors)
        results = [run_at_once(*part) for part in zip(*parts, strict=True)]
        return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))

    return run


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().contiguous().numpy()
    return array


class _Requests(threading.local):
    """OpenVINO's inference requests by the number of pictures. Each serves one thread."""

    def __init__(self) -> None:
        self.by_count: dict[int, Any] = {}


class _Networks:
    """An `openvino.Model`, compiled for a number of pictures when this is first needed.

    Args:
        model: see `openvino_run`.
        precision: likewise.
    """

    def __init__(self, model: Any, precision: str) -> None:
        self._core = _core(imported_openvino())
        self._model = model
        self._options = {
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # the threads of several processes would share the first processors
        }
        self._compiled: dict[int, Any] = {}
        self._lock = threading.Lock()

    def compiled(self, count: int, tensors: tuple[Tensor, ...]) -> Any:
        """Return the network for a number of pictures, of the shapes of some tensors."""
        with self._lock:
            if count not in self._compiled:
                network = self._model.clone()
                network.reshape(
                    {value: list(tensor.shape) for value, tensor in zip(network.inputs, tensors, strict=True)}
                )
                self._compiled[count] = self._core.compile_model(network, "CPU", self._options)
            return self._compiled[count]


@cache
def _core(openvino: Any) -> Any:
    """Return the process's `openvino.Core`, which is never freed.

    Each core gives its thread a stack for signals, and puts back the last one when it is freed. That may be the stack
    of a core that was freed earlier: the next signal, such as Ctrl-C, would end the process by a segmentation fault.
    """
    return openvino.Core()


@exclusive()
def imported_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import and write into the home folder."""
    telemetry = "openvino_telemetry"
    blocked: dict[str, Any] = sys.modules
    blocked.setdefault(telemetry, None)  # OpenVINO does without it if it cannot be imported
    try:
        import openvino  # missing on machines for which it is not built
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
