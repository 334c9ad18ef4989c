"""The library compared with others and with plain forward passes, on a processor: `python -m benchmarks.library`."""

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import page
from benchmarks.contestants import (
    LIBRARIES,
    OPTIONS,
    SEEWHY,
    SEEWHY_BFLOAT16,
    compile_gradients,
    contestants,
    load,
    load_rounded,
    workload,
)
from benchmarks.forwards import EAGER, ONNXRUNTIME, OPENVINO, on_processor
from benchmarks.machine import description
from benchmarks.rounds import QUICK, Effort, Run, Times, interleaved, ratio

MODELS = {
    "efficientnet_lite0": tuple(OPTIONS),
    "resnet50": ("gradcam", "saliency"),
    "mobilenet_v2": ("gradcam", "saliency"),
    "vgg16": ("gradcam", "saliency"),
    "resnet18": ("smoothgrad", "integrated-gradients", "scorecam", "ablationcam"),
}
"""The models, and the methods that are timed on each."""

BATCHES = (1, 8)
SLOW = ("scorecam", "ablationcam")
"""Methods of a pass per channel: one picture only."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    method: str
    model: str
    batch: int


def cases(models: Sequence[str], methods: Sequence[str], batches: Sequence[int] = BATCHES) -> Iterator[Case]:
    """Yield the cases to time, model by model; all named methods on a model without a list."""
    for model in models:
        for method in methods:
            if method in MODELS.get(model, methods):
                yield from (Case(method, model, batch) for batch in batches if batch == 1 or method not in SLOW)


def kept_bytes(run: Run, module: torch.nn.Module) -> int:
    """Return the bytes of the tensors that a run keeps for its backward pass, without the weights of a module."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    tensors: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        tensors.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for place, tensor in tensors.items() if place not in weights)


def timed(case: Case, model: Any, effort: Effort, side: int | None = None, rounded: Any = None) -> Times:
    """Return the times of all contestants of a case."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from other libraries
        work = workload(model, case.batch, stack, side, rounded)
        return interleaved({**on_processor(work), **contestants(case.method, work)}, effort)


def memory(model: Any, side: int | None = None) -> dict[str, int]:
    """Return the bytes that Grad-CAM of one picture keeps for backward, with SeeWhy and with pytorch-grad-cam."""
    with ExitStack() as stack:
        work = workload(model, 1, stack, side)
        runs = contestants("gradcam", work)
        return {name: kept_bytes(runs[name], model.module) for name in (SEEWHY, "pytorch-grad-cam")}


def beside(case: Case, times: Times) -> list[str]:
    """Return the first cells of a case on any device: its names, and SeeWhy beside other libraries."""
    peers = [name for name in LIBRARIES if name in times]
    lead = min((ratio(times, name, SEEWHY) or 0.0 for name in peers), default=None)
    return [
        f"`{case.method}`",
        case.model,
        str(case.batch),
        *(page.times(ratio(times, name, EAGER)) for name in (SEEWHY, *LIBRARIES)),
        f"**{page.times(lead)}**",
    ]


def row(case: Case, times: Times) -> list[str]:
    """Return the row of a case."""
    rounded = [ratio(times, SEEWHY_BFLOAT16, name) for name in (EAGER, ONNXRUNTIME, OPENVINO)]
    return [
        *beside(case, times),
        *(page.times(ratio(times, SEEWHY, name)) for name in (ONNXRUNTIME, OPENVINO)),
        page.times(max((value for value in rounded if value is not None), default=None)),
    ]


HEAD = (
    *("method", "model", "batch", SEEWHY, *LIBRARIES),
    *("fastest other / SeeWhy", "SeeWhy / ONNX Runtime's forward", "SeeWhy / OpenVINO's forward"),
    "SeeWhy in bfloat16 / fastest forward",
)


def tables(rows: Iterable[Sequence[str]], sizes: Mapping[str, dict[str, int]]) -> str:
    """Return the part of the page."""
    kilobytes = [(model, *(f"{value / 1e3:,.0f}" for value in figures.values())) for model, figures in sizes.items()]
    head = ("model", "SeeWhy, kB", "pytorch-grad-cam, kB")
    return f"{description()}\n\n{page.table(HEAD, rows)}\n{page.table(head, kilobytes)}"


def together(earlier: Mapping[str, Any], results: Sequence[dict[str, Any]], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of this run, and those of an earlier run for cases that this one did not time.

    Each row is a separate run, in which the contestants take turns, so rows of several runs stand together.
    """
    order = list(cases(MODELS, OPTIONS))
    by_case = {
        Case(entry["method"], entry["model"], entry["batch"]): entry for entry in (*earlier.get("cases", ()), *results)
    }
    listed = [case for case in order if case in by_case]
    sizes = {**earlier.get("kept_bytes", {}), **sizes}
    text = tables((by_case[case]["row"] for case in listed), sizes)
    return {"machine": description(), "tables": text, "cases": [by_case[case] for case in listed], "kept_bytes": sizes}


def asked_for(purpose: str | None, seconds: float) -> argparse.Namespace:
    """Return the options of the command line: models, methods, the seconds for each case, and whether to be quick."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--seconds", type=float, default=seconds, help="time for each case, at least three rounds")
    return parser.parse_args()


def measurement(case: Case, times: Times) -> dict[str, Any]:
    """Return the stored results of a case: the number of rounds, and the median milliseconds of each contestant."""
    milliseconds = {contestant: round(median(seconds) * 1000, 3) for contestant, seconds in times.items()}
    return {**vars(case), "rounds": len(times[SEEWHY]), "milliseconds": milliseconds}


def main() -> None:
    """Print the tables and write the results, with those of earlier runs for cases that this one does not time.

    With --quick, one round of small pictures, and nothing is written.
    """
    arguments = asked_for(main.__doc__, Effort.seconds)
    effort, side = (QUICK, 96) if arguments.quick else (Effort(arguments.seconds), None)
    results: list[dict[str, Any]] = []
    sizes: dict[str, Any] = {}
    for name in arguments.models:
        model, rounded = load(name), load_rounded(name) if "gradcam" in arguments.methods else None
        if not arguments.quick:
            compile_gradients(model)
        for case in cases([name], arguments.methods, BATCHES[:1] if arguments.quick else BATCHES):
            times = timed(case, model, effort, side, rounded if case.method == "gradcam" else None)
            cells = row(case, times)
            results.append({**measurement(case, times), "row": cells})
            print(" | ".join(cells), file=sys.stderr, flush=True)
        if "gradcam" in arguments.methods:
            sizes[name] = memory(model, side)
    earlier = {} if arguments.quick else page.saved("library", description())
    page.publish("library", together(earlier, results, sizes), arguments.quick)


if __name__ == "__main__":
    main()
