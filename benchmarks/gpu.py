"""The library compared with others and with plain forward passes, on one CUDA device: `python -m benchmarks.gpu`."""

import sys
import time
import warnings
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch

from benchmarks import page
from benchmarks.contestants import LIBRARIES, SEEWHY, contestants, load, workload
from benchmarks.forwards import COMPILED, EAGER, on_gpu
from benchmarks.library import Case, asked_for, beside, cases, measurement
from benchmarks.machine import description
from benchmarks.rounds import QUICK, Effort, Run, Times, interleaved, ratio

BATCHES = (1, 8, 32)
PACKAGES = ("seewhy", "torch", "torchvision", "grad-cam", "captum", "torchcam")
HEAD = (
    *("method", "model", "batch", SEEWHY, *LIBRARIES, "fastest other / SeeWhy", "SeeWhy / compiled forward"),
    *("SeeWhy, pictures/s", "SeeWhy, GPU busy", "forward, GPU busy"),
)


def utilisation(run: Run, seconds: float = 2.0) -> int | None:
    """Return the percentage of time that the GPU is busy while a contestant runs; None if it is unknown."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        run()
    try:
        return torch.cuda.utilization()
    except (ModuleNotFoundError, RuntimeError):  # no pynvml, or a driver that does not report it
        return None
    finally:
        torch.cuda.synchronize()


def timed(case: Case, model: Any, effort: Effort) -> tuple[Times, dict[str, int | None]]:
    """Return the times of all contestants of a case, and the load of the GPU by SeeWhy and by the plain forward
    pass."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from other libraries
        work = workload(model, case.batch, stack)
        runs = {**on_gpu(work), **contestants(case.method, work)}
        times = interleaved(runs, effort, torch.cuda.synchronize)
        busy = {name: utilisation(runs[name]) if effort.seconds else None for name in (SEEWHY, EAGER)}
        return times, busy


def row(case: Case, times: Times, busy: dict[str, int | None]) -> list[str]:
    """Return the row of a case."""
    return [
        *beside(case, times),
        page.times(ratio(times, SEEWHY, COMPILED)),
        f"{case.batch / median(times[SEEWHY]):.0f}",
        *("" if busy[name] is None else f"{busy[name]} %" for name in (SEEWHY, EAGER)),
    ]


def main() -> None:
    """Print the table and write the results; with --quick, one round of each, and nothing is written."""
    arguments = asked_for(main.__doc__, 5.0)
    if not torch.cuda.is_available():
        print("no CUDA device")
        return
    effort = QUICK if arguments.quick else Effort(arguments.seconds)
    rows, results = [], []
    for name in arguments.models:
        model = load(name, "cuda")
        for case in cases([name], arguments.methods, BATCHES[:1] if arguments.quick else BATCHES):
            times, busy = timed(case, model, effort)
            rows.append(row(case, times, busy))
            results.append({**measurement(case, times), "busy": busy})
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    text = f"{torch.cuda.get_device_name()} in {description(PACKAGES)}\n\n{page.table(HEAD, rows)}"
    page.publish("gpu", {"tables": text, "cases": results}, arguments.quick)


if __name__ == "__main__":
    main()
