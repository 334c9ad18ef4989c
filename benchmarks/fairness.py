"""Clients of Grad-CAM with and without a client of RISE: `python -m benchmarks.fairness`.

The service runs throughout; rounds without and with RISE take turns. RISE is requested as a stream of events, which
report its progress, and is abandoned at the end of a round. At the end, a smaller one is waited for, under the same
load.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import aiohttp

from benchmarks import page
from benchmarks.machine import description
from benchmarks.service import HEADERS, SERVE, Load, asked_for, bodies, load, percentile, pictures, running

CLIENTS = 30
SAMPLES, FINISHED = 20_000, 500
"""Samples of the RISE that is abandoned, and of the one that is waited for."""

MOST_SECONDS = 300
"""Time limit for the latter, in seconds."""

ALONE, BESIDE = "30 × Grad-CAM", "30 × Grad-CAM beside RISE"
SERVICE = {"SEEWHY_DEADLINE": "3600", "SEEWHY_MAX_SIDE": "512"}


@dataclass
class Rise:
    """The progress of a RISE: the share of its work that is done, 0 to 1, and whether it has been answered."""

    share: float = 0.0
    answered: bool = False


async def rise(url: str, form: bytes, samples: int, progress: Rise) -> None:
    """Request RISE as a stream of events, and note its progress; closing the connection cancels it."""
    limit = aiohttp.ClientTimeout(total=MOST_SECONDS)
    address = f"{url}?method=rise&samples={samples}"
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.post(address, data=form, headers={**HEADERS, "Accept": "text/event-stream"}) as answer,
    ):
        if answer.status != 200:
            raise RuntimeError(f"RISE was refused: {await answer.text()}")
        kind = ""
        async for line in answer.content:
            name, _, value = line.decode().strip().partition(": ")
            kind = value if name == "event" else kind
            if name == "data" and kind == "progress":
                report = json.loads(value)
                progress.share = report["done"] / report["total"] if report["total"] else 0.0
            elif name == "data":
                progress.answered = kind == "answer"
                return


async def beside(url: str, forms: Iterator[bytes], clients: int, seconds: float) -> tuple[Load, float]:
    """Return the results of clients of Grad-CAM beside RISE, and the samples per second by which RISE advanced."""
    progress = Rise()
    running_rise = asyncio.create_task(rise(url, next(forms), SAMPLES, progress))
    while not progress.share and not running_rise.done():
        await asyncio.sleep(0.05)
    before = progress.share
    got = await load(url, forms, clients, seconds)
    rate = (progress.share - before) * SAMPLES / got.seconds
    running_rise.cancel()
    await asyncio.gather(running_rise, return_exceptions=True)
    return got, rate


async def finished(url: str, forms: Iterator[bytes], clients: int) -> float | None:
    """Return the seconds that a smaller RISE takes while clients ask for Grad-CAM all the time; None if it fails."""
    progress, started = Rise(), time.perf_counter()
    task = asyncio.create_task(rise(url, next(forms), FINISHED, progress))
    while not task.done() and time.perf_counter() - started < MOST_SECONDS:
        await load(url, forms, clients, 1.0)
    await asyncio.gather(task, return_exceptions=True)
    return time.perf_counter() - started if progress.answered else None


def measured(url: str, seconds: float, rounds: int, clients: int = CLIENTS) -> dict[str, object]:
    """Return the results of clients without and with RISE beside them, and the progress of RISE."""
    forms = bodies(pictures((512, 512), 16))
    asyncio.run(load(url, forms, clients, min(seconds, 2)))
    totals, ratios, rates = {ALONE: Load(), BESIDE: Load()}, [], []
    for _ in range(rounds):
        without = asyncio.run(load(url, forms, clients, seconds))
        with_rise, rate = asyncio.run(beside(url, forms, clients, seconds))
        totals[ALONE].add(without)
        totals[BESIDE].add(with_rise)
        ratios.append(percentile(with_rise.latencies, 99) / percentile(without.latencies, 99))
        rates.append(rate)
        print(f"p99 {ratios[-1]:.2f} times as long, {rate:.0f} samples/s", file=sys.stderr, flush=True)
    return {
        "rows": {name: total.figures for name, total in totals.items()},
        "ratio": median(ratios),
        "samples": median(rates),
        "finished": asyncio.run(finished(url, itertools.chain(forms), clients)),
    }


def table(facts: dict) -> str:
    """Return the part of the page."""
    rows = [
        (name, f"{row['rate']:.1f}", f"{row['p50']:.0f}", f"{row['p99']:.0f}", str(row["errors"]))
        for name, row in facts["rows"].items()
    ]
    ended = f"took {facts['finished']:.0f} s" if facts["finished"] else "got no answer"
    sentence = (
        f"Beside RISE with {SAMPLES:,} samples, the p99 of Grad-CAM is **{facts['ratio']:.2f}** times as long (median "
        f"of the rounds). RISE advances by {facts['samples']:.0f} samples per second. Under the same load, a request "
        f"with {FINISHED} samples {ended}."
    )
    head = ("clients", "requests/s", "p50, ms", "p99, ms", "errors")
    return f"{description(('seewhy', 'torch', 'openvino'))}\n\n{page.table(head, rows)}\n{sentence}\n"


def main() -> None:
    """Print the table and write the results; with --quick, one second of each, and nothing is written."""
    quick, seconds, rounds = asked_for(main.__doc__, seconds=5.0, rounds=3)
    with running(SERVE, SERVICE) as server:
        results = measured(server.url, seconds, rounds)
    page.publish("fairness", {"tables": table(results), **results}, quick)


if __name__ == "__main__":
    main()
