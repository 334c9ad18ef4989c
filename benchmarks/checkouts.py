"""This checkout compared with another one: `python -m benchmarks.checkouts PATH`.

Each has its own processes, which take turns: methods in Python, requests over HTTP, start-up and memory of the
service. A ratio over 1 says that this checkout is faster, or takes less.
"""

import argparse
import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import page
from benchmarks.rounds import Effort, Run, Times, interleaved, ratio
from benchmarks.service import Server, bodies, load, pictures, running

THIS, OTHER = "this", "other"
WORKER = Path(__file__).with_name("checkout_worker.py")
CASES = tuple(
    f"{method} {model} {batch}"
    for model, methods in {
        "efficientnet_lite0": ("gradcam", "layercam", "saliency", "integrated-gradients"),
        "resnet50": ("gradcam", "saliency"),
    }.items()
    for method in methods
    for batch in (1, 8)
)
"""Method, model and number of pictures."""

CLIENTS = (1, 32)


def command(checkout: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a checkout's service, and its environment."""
    package = "seewhy.app" if (checkout / "seewhy").is_dir() else "app"
    return [sys.executable, "-m", f"{package}.cli", "serve", "--port", "{port}"], {"PYTHONPATH": str(checkout)}


@contextmanager
def worker(checkout: Path) -> Iterator[Callable[[str], None]]:
    """Start a process of a checkout, and yield a function that runs a case there once."""
    process = subprocess.Popen(
        [sys.executable, "-P", WORKER, checkout],
        env={"PATH": "", "PYTHONPATH": str(checkout)},
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(case: str) -> None:
        print(case, file=process.stdin, flush=True)
        if not process.stdout.readline():
            raise RuntimeError(f"{checkout} cannot run {case}.")

    try:
        yield run
    finally:
        process.terminate()
        process.wait(30)


def methods(checkouts: Mapping[str, Path], effort: Effort) -> Iterator[tuple[str, Times]]:
    """Yield the times of each case."""
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(path)) for name, path in checkouts.items()}
        for case in CASES:
            runs: dict[str, Run] = {name: partial(run, case) for name, run in workers.items()}
            yield case, interleaved(runs, effort)


def requests(servers: Mapping[str, Server], seconds: float, rounds: int) -> Iterator[tuple[str, Times]]:
    """Yield the seconds for each answer, of clients that send one picture after the other."""
    forms = bodies(pictures((512, 512), 16))
    for clients in CLIENTS:
        times: Times = {name: [] for name in servers}
        for number, (name, server) in itertools.product(range(-1, rounds), servers.items()):
            answers = asyncio.run(load(server.url, forms, clients, seconds))
            if number >= 0:
                times[name].append(1 / answers.rate)
        yield f"/explain, {clients} clients", times


def starts(checkouts: Mapping[str, Path], rounds: int) -> Iterator[tuple[str, Times]]:
    """Yield the seconds from the start of the service to its first answer, and its memory then, in bytes."""
    seconds: Times = {name: [] for name in checkouts}
    memory: Times = {name: [] for name in checkouts}
    for _, (name, path) in itertools.product(range(rounds), checkouts.items()):
        started = time.perf_counter()
        with running(*command(path), folder=path) as server:
            seconds[name].append(time.perf_counter() - started)
            memory[name].append(server.memory())
    yield "first answer", seconds
    yield "memory after it", memory


def main() -> None:
    """Print the ratios; with --quick, one round of each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each case")
    options = parser.parse_args()
    checkouts = {THIS: page.ROOT, OTHER: options.checkout.resolve()}
    effort = Effort(0, 1, 1, 1) if options.quick else Effort(options.seconds, least=9, most=200)
    rounds = 1 if options.quick else 5

    def print_row(case: str, times: Times) -> None:
        print(f"{case}: {ratio(times, OTHER, THIS):.3f} ({median(times[THIS]):.4g})", flush=True)

    for case, times in methods(checkouts, effort):
        print_row(case, times)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(*command(path), folder=path)) for name, path in checkouts.items()}
        for case, times in requests(servers, 1.0 if options.quick else 5.0, rounds):
            print_row(case, times)
    for case, times in starts(checkouts, rounds):
        print_row(case, times)


if __name__ == "__main__":
    main()
