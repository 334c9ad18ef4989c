"""The service with other numbers of processes and threads, under load: `python -m benchmarks.deployment`."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks import page
from benchmarks.machine import description
from benchmarks.service import SERVE, Load, asked_for, bodies, load, pictures, running
from seewhy.app.system.processors import processors

CLIENTS = 32


@dataclass(frozen=True)
class Choice:
    """The resources of the service.

    Attributes:
        cores: processors that it may use.
        workers: processes.
        threads: threads of each process that read requests and draw answers.
        each: threads that a pass of the model uses; None for what the service chooses.
    """

    cores: int
    workers: int
    threads: int
    each: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the service."""
        variables = {"SEEWHY_WORKERS": str(self.workers), "SEEWHY_THREADS": str(self.threads)}
        return variables if self.each is None else {**variables, "OMP_NUM_THREADS": str(self.each)}

    @property
    def row(self) -> list[str]:
        """The first cells of its row in the table."""
        return [
            str(self.cores),
            str(self.workers),
            str(self.threads),
            str(self.each or max(1, self.cores // self.workers)),
        ]


def choices(cores: int) -> list[Choice]:
    """Return the choices to try on a machine with this many cores, the usual one first."""
    combinations = [Choice(cores, 1, threads) for threads in (8, 4, 16, 32)]
    if cores > 1:
        combinations += [Choice(cores, 1, 8, 1), Choice(cores, 1, 16, 1)]
        combinations += [Choice(cores, cores, 8), Choice(cores, cores, 8, cores), Choice(cores, 2 * cores, 8)]
    return combinations


def measured(choice: Choice, seconds: float) -> tuple[Load, int]:
    """Return the results of clients of a service that is started for them, and its memory in bytes."""
    forms = bodies(pictures((512, 512), 16))
    with running(SERVE, choice.environment, choice.cores) as server:
        asyncio.run(load(server.url, forms, CLIENTS, min(seconds, 3)))
        result = asyncio.run(load(server.url, forms, CLIENTS, seconds))
        return result, server.memory()


HEAD = ("cores", "processes", "threads", "threads of a pass", "requests/s", "of the first", "p99, ms", "memory, MB")


def tables(results: Sequence[tuple[Choice, list[float], Load, int]]) -> str:
    """Return the part of the page."""
    usual = {choice.cores: median(rates) for choice, rates, *_ in reversed(results)}  # the first of each
    rows = [
        [
            *choice.row,
            f"{median(rates):.1f}",
            f"**{median(rates) / usual[choice.cores]:.2f}**",
            f"{1000 * quantiles(total.latencies, n=100)[98]:.0f}",
            f"{memory / 1e6:.0f}",
        ]
        for choice, rates, total, memory in results
    ]
    return f"{description(('seewhy', 'torch', 'openvino', 'gunicorn'))}\n\n{page.table(HEAD, rows)}"


def main() -> None:
    """Print the table and write the results; with --quick, one second of the first choice, and nothing is written."""
    quick, seconds, rounds = asked_for(main.__doc__, seconds=8.0, rounds=2)
    tried = [choice for count in dict.fromkeys((1, processors())) for choice in choices(count)][: 1 if quick else None]
    runs: dict[Choice, list[tuple[Load, int]]] = {choice: [] for choice in tried}
    for number in range(rounds):
        for choice in tried if number % 2 == 0 else reversed(tried):
            runs[choice].append(measured(choice, seconds))
            print(choice, f"{runs[choice][-1][0].rate:.1f}", file=sys.stderr, flush=True)
    results = []
    for choice, got in runs.items():
        total = Load()
        for result, _ in got:
            total.add(result)
        results.append((choice, [result.rate for result, _ in got], total, max(memory for _, memory in got)))
    cases = [
        {**vars(choice), "rates": rates, "errors": total.errors, "memory": memory}
        for choice, rates, total, memory in results
    ]
    page.publish("deployment", {"tables": tables(results), "cases": cases}, quick)


if __name__ == "__main__":
    main()
