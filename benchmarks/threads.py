"""A pass of the model in the main thread and in another one: `python -m benchmarks.threads`.

Each row has its own process. PyTorch's operations share their work among the threads of an OpenMP team, and each
thread that runs them has a team. If the teams of a process have more threads than there are cores, they spin for a
shorter time between two operations before they sleep, and waking takes time.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch

from benchmarks import page
from benchmarks.machine import description

WHERE = ("in the main thread", "in another thread", "in another thread, after some in the main one")
POLICIES = ("", "PASSIVE")


def timed(rounds: int) -> float:
    """Return the milliseconds of Grad-CAM of eight pictures, on PyTorch alone."""
    from seewhy.explainers import GradCAM
    from seewhy.models import load_model

    module, images = load_model("efficientnet_lite0", accelerator="eager").module, torch.zeros(8, 3, 224, 224)
    times = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        GradCAM().explain(module, images)
        times.append(time.perf_counter() - started)
    return 1000 * median(times[3:])


def elsewhere(work: Callable[[], float]) -> float:
    """Run work in another thread, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def in_process(where: str, policy: str, rounds: int) -> float:
    """Run `timed` in a separate process, and return its result."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    command = [sys.executable, "-m", "benchmarks.threads", "--where", where, "--rounds", str(rounds)]
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    process = subprocess.run(command, cwd=page.ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(process.stdout)


def main() -> None:
    """Print the table and write the results; with --quick, one pass in each, and nothing is written."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=15, help="number of passes in each process")
    parser.add_argument("--where", choices=WHERE, help="measure only this and print its milliseconds")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    if arguments.where:
        if arguments.where == WHERE[2]:
            timed(1)
        print(timed(rounds) if arguments.where == WHERE[0] else elsewhere(lambda: timed(rounds)))
        return
    cases = [(where, policy) for where in WHERE for policy in POLICIES[: 1 if arguments.quick else None]]
    times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    for _ in range(1 if arguments.quick else 3):
        for case in cases:
            times[case].append(in_process(*case, rounds))
            print(*case, times[case][-1], file=sys.stderr, flush=True)
    first = median(times[cases[0]])
    rows = [(where, policy or "not set", f"{median(times[where, policy]) / first:.2f}") for where, policy in cases]
    text = f"{description()}\n\n{page.table(('a pass', 'OMP_WAIT_POLICY', 'time'), rows)}"
    cells = [{"where": where, "policy": policy, "milliseconds": times[where, policy]} for where, policy in cases]
    page.publish("threads", {"tables": text, "cases": cells}, arguments.quick)


if __name__ == "__main__":
    main()
