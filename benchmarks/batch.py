"""Batch runs compared with `explain_many`, and runs of two lengths: `python -m benchmarks.batch [--engine ray]`.

Pictures are parts of the examples with noise, JPEGs of 512×384. Each run has its own process; kinds take turns. The
cost of a picture in a long run is the difference between two runs, divided by the difference in pictures, so start-up
cancels out.

`--nodes` only compares two nodes of Ray, of one processor each, with one. Processes without Ray that share nothing, one
alone and two at once, show the most that the second processor can add.

`--memory` only compares the memory of the command's process after a tenth of the pictures, which are then of 96×72, and
after the last one.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, ClassVar, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from benchmarks import page
from benchmarks.machine import description
from benchmarks.ray_nodes import nodes
from seewhy import batch, explain, explain_many, load_model
from seewhy.app.batch import run
from seewhy.app.batch.choices import ENGINES, Engine
from seewhy.app.batch.processes import SHARD_ROWS
from seewhy.app.batch.shards import Shard, row_of
from seewhy.app.batch.sources import sources
from seewhy.explainers.view import prepare

MODEL, METHOD = "efficientnet_lite0", "gradcam"
PICTURES = 1500
"""Pictures of the short run: enough that its report, whose pictures are limited, costs as much as that of a longer
run."""

SIZE, SMALL = (512, 384), (96, 72)
"""Width and height of pictures, and of those whose content does not matter."""


class Cost(NamedTuple):
    """The cost of a run after the model was ready, without Ray's processes.

    Attributes:
        seconds: duration of the run.
        busy: processor time, in seconds.
        memory: largest memory of a process, in bytes.
        bytes: size of the shards.
    """

    seconds: float
    busy: float
    memory: int
    bytes: int


class Gauge(tqdm):
    """A progress bar that notes the memory of its process after a tenth of the pictures, and after the last one."""

    memory: ClassVar[list[int]] = []
    explained = 0

    def update(self, n: float | None = 1) -> None:
        """Count pictures."""
        self.explained += n
        if len(self.memory) < 2 and self.explained >= (self.total / 10, self.total)[len(self.memory)]:
            self.memory.append(resident())


def make(folder: Path, count: int, size: tuple[int, int] = SIZE) -> None:
    """Write pictures of a width and height into a folder."""
    generator = np.random.default_rng(0)
    examples = [
        Image.open(file).convert("RGB").resize((1024, 768)) for file in sorted((page.ROOT / "examples").glob("*.png"))
    ]
    for number in range(count):
        left, top = (int(generator.integers(0, side)) for side in size)
        part = examples[number % len(examples)].crop((left, top, left + size[0], top + size[1]))
        noisy = np.asarray(part, dtype=np.int16) + generator.integers(-8, 9, (size[1], size[0], 3), dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06}.jpg", quality=90)


def work(kind: str, folder: Path, out: Path) -> None:
    """Explain the pictures of a folder in this process, and print the cost."""
    model = load_model(MODEL)
    model.accelerated.warm()
    pictures = sorted(folder.iterdir())
    for _ in explain_many(model, pictures[:64], METHOD):
        pass
    engine, _, place = kind.partition("@")
    where: dict[str, Any] = {} if not place else {"workers": int(place)} if engine == "local" else {"address": place}
    start, busy = perf_counter(), process_time()
    if engine in ENGINES:
        batch(folder, out, model, METHOD, engine=engine, progress=False, **where)
    else:
        for _ in explain_many(model, pictures, METHOD):
            pass
    seconds = perf_counter() - start
    size = sum(file.stat().st_size for file in out.glob("part-*"))
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    busy = process_time() - busy + others.ru_utime + others.ru_stime
    print(json.dumps(Cost(seconds, busy, max(own.ru_maxrss, others.ru_maxrss) * 1024, size)))


def gauge(engine: Engine, folder: Path, out: Path) -> None:
    """Explain the pictures of a folder, and print the memory that `Gauge` notes and the largest, with the report's."""
    run.tqdm = Gauge
    run.batch(folder, out, MODEL, METHOD, engine=engine, progress=False)
    print(json.dumps([*Gauge.memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def memory(engines: list[Engine], pictures: int) -> None:
    """Measure the memory of the command's process in a run by each engine, and print a table."""
    rows = []
    with TemporaryDirectory() as folder:
        make(Path(folder), pictures, SMALL)
        for engine in engines:
            first, last, most = output_of("--gauge", engine, folder)
            sizes = (f"{size / 1e6:,.0f}" for size in (first, last, most))
            rows.append((f"`{engine}`", f"{pictures:,}", *sizes, f"{last / first - 1:+.1%}"))
    columns = (
        "engine",
        "pictures",
        "after a tenth, MB",
        "after the last, MB",
        "largest, with the report, MB",
        "growth",
    )
    print(f"{description()}\n\n{page.table(columns, rows)}")
    print(f"A picture in the list of a folder takes {listing_bytes():,.0f} bytes.")


def nodes_compared(rounds: int, pictures: int) -> None:
    """Measure two nodes beside one, and two processes beside one, and print a table."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    rates: dict[str, list[float]] = {"one node": [], "two nodes": [], "one process": [], "two processes": []}
    with TemporaryDirectory() as short, TemporaryDirectory() as long, ThreadPoolExecutor(2) as pool:
        make(Path(short), PICTURES)
        make(Path(long), pictures)

        def rate(kind: str, processor: int | None = None) -> float:
            early, late = (measured(kind, Path(folder), processor).seconds for folder in (short, long))
            return (pictures - PICTURES) / (late - early)

        for _ in range(rounds):
            for count, name in ((1, "one node"), (2, "two nodes")):
                with nodes(count) as cluster:
                    rates[name].append(rate(f"ray@{cluster.address}"))
            rates["one process"].append(rate("local", processors[0]))
            rates["two processes"].append(sum(pool.map(partial(rate, "local"), processors)))
    rows = [(name, f"{np.median(each):.1f}") for name, each in rates.items()]
    for one, two in (("one node", "two nodes"), ("one process", "two processes")):
        ratios = np.divide(rates[two], rates[one])
        rows.append((f"{two} over {one}", f"{np.median(ratios):.2f}"))
    print(f"{description()}\n\n{page.table(('pictures per second', ''), rows)}")


def output_of(task: str, kind: str, folder: str, processor: int | None = None) -> list[Any]:
    """Return the output of a task of this module in a new process, which may be restricted to one processor."""
    kept = [] if processor is None else ["taskset", "--cpu-list", str(processor)]
    with TemporaryDirectory() as out:
        command = [*kept, sys.executable, "-m", "benchmarks.batch", task, kind, folder, out]
        result: list[Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return result


def measured(kind: str, folder: Path, processor: int | None = None) -> Cost:
    """Return the cost of a run in a new process, which may be restricted to one processor."""
    return Cost(*output_of("--run", kind, str(folder), processor))


def stages(folder: Path) -> dict[str, float]:
    """Return milliseconds of a processor for a picture: decoding with preprocessing, making rows, writing them."""
    model = load_model(MODEL)
    listing = list(islice(sources(folder), SHARD_ROWS))
    prepare(model, listing[0].open())  # loads what is loaded only once
    start = process_time()
    for source in listing:
        prepare(model, source.open())
    decoded = process_time()
    explanation = explain(model, listing[0].open(), METHOD)
    started = process_time()
    with TemporaryDirectory() as out:
        shard = Shard(Path(out), "float16", pictures=False)
        for source in listing:
            shard.add(row_of(source, explanation, None, "float16"), None)
        added = process_time()
        shard.write()
        written = process_time()
    seconds = {"decoding": decoded - start, "rows": added - started, "writing": written - added}
    return {name: 1000 * each / len(listing) for name, each in seconds.items()}


def each_of(longer: Cost, shorter: Cost, pictures: int) -> Cost:
    """Return the cost of a picture, from runs of `pictures` and of `PICTURES`; the memory is that of the longer run."""
    seconds, busy, _, size = (
        (late - early) / (pictures - PICTURES) for late, early in zip(longer, shorter, strict=True)
    )
    return Cost(seconds, busy, longer.memory, round(size))


def plan(each: Cost, picture_bytes: float) -> list[tuple[str, str, str]]:
    """Return the costs of a million and of a billion pictures, by the cost of one."""
    sizes, listing = (10**6, 10**9), listing_bytes()
    hours = [each.busy * size / 3600 for size in sizes]
    days = [value / 24 / 64 for value in hours]
    return [
        ("core-hours", *(f"{value:,.0f}" for value in hours)),
        ("days of a node with 64 such cores", *(f"{value:,.2f}" for value in days)),
        ("pictures to read, GB", *(f"{picture_bytes * size / 1e9:,.0f}" for size in sizes)),
        ("shards to write, GB", *(f"{each.bytes * size / 1e9:,.2f}" for size in sizes)),
        ("list of pictures in memory, GB", *(f"{listing * size / 1e9:,.2f}" for size in sizes)),
    ]


def listing_bytes(pictures: int = 10**5) -> float:
    """Return the bytes that a picture takes in the list of a folder, measured by making one in this process."""
    with TemporaryDirectory() as folder:
        place = Path(folder, "photographs", "train", "n01440764")
        place.mkdir(parents=True)
        for number in range(pictures):
            (place / f"{number:09}.jpg").touch()
        before = resident()
        listing = list(sources(folder))
        return (resident() - before) / len(listing)


def resident() -> int:
    """Return the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(engines: list[str], rounds: int, pictures: int) -> None:
    """Measure, and print tables; an engine may have its number of workers after an @."""
    kinds = ["explain_many", *engines]
    with TemporaryDirectory() as short, TemporaryDirectory() as long:
        make(Path(short), PICTURES)
        make(Path(long), pictures)
        runs = [
            {kind: (measured(kind, Path(short)), measured(kind, Path(long))) for kind in kinds} for _ in range(rounds)
        ]
        parts = stages(Path(long))
        picture_bytes = sum(file.stat().st_size for file in Path(long).iterdir()) / pictures
    costs = {
        kind: [each_of(long_run, short_run, pictures) for short_run, long_run in (run[kind] for run in runs)]
        for kind in kinds
    }
    rows = []
    for engine in engines:
        ratios = sorted(
            many.seconds / own.seconds for many, own in zip(costs["explain_many"], costs[engine], strict=True)
        )
        each = min(costs[engine], key=lambda cost: cost.seconds)
        rows += [
            (f"`{engine}`: rate over that of `explain_many`", f"{ratios[len(ratios) // 2]:.2f}"),
            (f"`{engine}`: milliseconds for a picture", f"{1000 * each.seconds:.1f}"),
            *(
                (
                    f"`{engine}`: memory, {len_of:,} pictures, MB",
                    f"{max(run[engine][place].memory for run in runs) / 1e6:,.0f}",
                )
                for place, len_of in enumerate((PICTURES, pictures))
            ),
            (f"`{engine}`: bytes of the shards for a picture", f"{each.bytes:,}"),
        ]
    local = min(costs["local"], key=lambda cost: cost.busy)
    times = [("all, in a run", f"{1000 * local.busy:.1f}"), *((name, f"{time:.2f}") for name, time in parts.items())]
    print(f"{description()}\n\n{page.table((f'{METHOD} of {MODEL}', ''), rows)}")
    print(page.table(("milliseconds of a core for a picture", ""), times))
    print(page.table(("", "a million", "a billion"), plan(local, picture_bytes)))


if __name__ == "__main__":
    tasks = {"--run": work, "--gauge": gauge}
    if sys.argv[1:2] and sys.argv[1] in tasks:
        tasks[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--engine", choices=ENGINES, default="local", help="with ray, both engines are measured")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--pictures", type=int, default=4500, help="number of pictures of the long run")
        parser.add_argument("--stages", action="store_true", help="measure only the parts of a run")
        parser.add_argument("--nodes", action="store_true", help="measure only two nodes of Ray, compared with one")
        parser.add_argument("--memory", action="store_true", help="measure only the memory of the command's process")
        parser.add_argument("--workers", type=int, help="also measure this number of processes of the engine local")
        arguments = parser.parse_args()
        engines = ["local"] if arguments.engine == "local" else ["local", "ray"]
        if arguments.memory:
            memory(engines, arguments.pictures)
            sys.exit()
        if arguments.nodes:
            nodes_compared(arguments.rounds, arguments.pictures)
            sys.exit()
        if arguments.stages:
            with TemporaryDirectory() as pictures:
                make(Path(pictures), PICTURES)
                times = [(name, f"{time:.2f}") for name, time in stages(Path(pictures)).items()]
            print(page.table(("milliseconds of a core for a picture", ""), times))
            sys.exit()
        several = [f"local@{arguments.workers}"] if arguments.workers else []
        main([*engines, *several], arguments.rounds, arguments.pictures)
