"""Load and faults, for longer than in the tests: `python -m tools.reliability`, `make soak`.

It prints the tables of docs/reliability.md, and ends with an error if anything is wrong; with ``--write``, it writes
the tables without errors there.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator

from tests.app.serving import recovery
from tools.faults import faults
from tools.faults import table as table_of_faults
from tools.load import MAX_MODELS, MODELS, questions
from tools.overload import DEADLINE, FACTOR, overload
from tools.service import service
from tools.soak import THREADS, soak
from tools.tables import print_tables, write_tables

MOST_SECONDS = 3.0
"""Maximum seconds until pictures are answered again after the only process was killed."""

LEAST_ANSWERED = 0.99
"""Minimum share of requests that are answered; the others may be refused with a reason."""

MOST_GROWTH = 0.02
"""Maximum growth of resident memory between the second and the last quarter of a run, as a share."""

MORE_THREADS, MORE_FILES = 8, THREADS
"""Maximum increase from a quarter of a run to its end: these come and go with the clients' connections."""


def load(wrong: list[str], count: int) -> Iterator[str]:
    """Yield the rows about many requests at once."""
    tally = soak(count, THREADS)
    first, last = tally.states[len(tally.states) // 4], tally.states[-1]
    hooks = max(state.hooks for state in tally.states)
    yield "| load | |"
    yield "| --- | --- |"
    kinds = len(questions())
    yield f"| requests, of {kinds} kinds, from {THREADS} threads | {tally.count:,} in {tally.seconds:.0f} s |"
    yield f"| models, of which {MAX_MODELS} fit in memory | {len(MODELS)}, loaded {tally.loads:,} times |"
    yield f"| responses by status | {_counts(tally.codes)} |"
    yield f"| refused with 503 because no model could be unloaded, and later retried | {tally.refused:,} |"
    yield f"| responses unlike those without load | {len(tally.wrong)}; largest difference {tally.worst:.1g} |"
    yield (
        "| responses with the diagnostic `rounding-decides` or `faint-map` that differ because of rounding | "
        f"{_of(tally.rounded)} |"
    )
    yield f"| responses that differ until the part of the model is compiled | {_of(tally.compiled)} |"
    yield f"| errors without a reason | {len(tally.failed)} |"
    early, late = first.resident / 1e6, last.resident / 1e6
    yield f"| resident memory, idle, after a quarter of the run | {early:,.0f} MB, at the end {late:,.0f} MB |"
    yield f"| growth of its minimum from the second quarter of the run to the last | {tally.growth:+.1%} |"
    yield f"| open files | {first.files}, at the end {last.files} |"
    yield f"| threads | {first.threads}, at the end {last.threads} |"
    yield f"| hooks left on models | {hooks} |"
    wrong += tally.wrong + tally.failed
    if tally.codes[200] < LEAST_ANSWERED * tally.count or not tally.loads or hooks or tally.growth > MOST_GROWTH:
        wrong.append(f"soak: {dict(tally.codes)}, {hooks} hooks, growth {tally.growth:.1%}")
    if last.files > first.files + MORE_FILES or last.threads > first.threads + MORE_THREADS:
        wrong.append(f"soak: files {first.files} to {last.files}, threads {first.threads} to {last.threads}")


def crowd(wrong: list[str], seconds: float) -> Iterator[str]:
    """Yield the rows about more requests than the service can answer."""
    report = overload(seconds)
    yield f"| {FACTOR} times the capacity | |"
    yield "| --- | --- |"
    yield f"| requests per second | {report.offered:.0f}, with a capacity of {report.capacity:.0f} |"
    yield f"| responses by status | {_counts(report.codes)} |"
    yield f"| response time | {report.late(report.answered)}, of {DEADLINE:.0f} s allowed |"
    if report.refused:
        yield f"| time of refusals | {report.late(report.refused)}; without `Retry-After`: {report.bare} |"
    if not report.is_right:
        wrong.append(f"overload: {dict(report.codes)}, {report.bare} without Retry-After")


def killed(wrong: list[str], times: int = 5) -> float:
    """Kill the only process that answers, several times; return the median seconds until pictures are answered
    again."""
    with service() as running:
        seconds = statistics.median(recovery(running.process, running.port) for _ in range(times))
    if seconds > MOST_SECONDS:
        wrong.append(f"after kill -9 the service took {seconds:.1f} s")
    return seconds


def broken(wrong: list[str]) -> Iterator[str]:
    """Yield the rows about what breaks."""
    yield f"After `kill -9` of the only process, pictures are handled again in {killed(wrong):.1f} s (median of five)."
    yield ""
    results = faults()
    yield from table_of_faults(results)
    wrong += [test for fault in results for test in fault.failed] or ([] if results else ["no test of faults ran"])


def _of(methods: list[str]) -> str:
    """Return the number of answers, and their methods."""
    names = ", ".join(f"`{method}`" for method in sorted(set(methods)))
    return f"{len(methods)}{f' (of {names})' if names else ''}"


def _counts(codes: dict[int, int]) -> str:
    return ", ".join(f"{count:,} × {code or 'connection broken'}" for code, count in sorted(codes.items()))


def main() -> int:
    """Run the requested parts, or everything; return whether anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.reliability", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="load, crowd or faults; by default all")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60, help="duration of the overload")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reliability.md")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[list[str]], Iterator[str]]] = {
        "load": lambda wrong: load(wrong, arguments.requests),
        "crowd": lambda wrong: crowd(wrong, arguments.seconds),
        "faults": broken,
    }
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    heading = f"Python {platform.python_version()}, {os.cpu_count()} processors; clients and service share them."
    everything: list[str] = []
    for name in arguments.parts or parts:
        wrong: list[str] = []
        lines = print_tables(heading, [parts[name](wrong)])
        if arguments.write and not wrong:
            write_tables(name, lines)
        everything += wrong
    print(*everything, sep="\n", file=sys.stderr)
    return bool(everything)


if __name__ == "__main__":
    sys.exit(main())
