"""Batch runs beside `explain_many`, and runs of two lengths: `python -m benchmarks.batch [--engine ray]`.

Pictures are parts of the examples with noise, JPEGs of 512×384. Each run has a process of its own; kinds take turns.
The cost of a picture in a long run is the difference of two runs, over that of their pictures: starts cancel out.
"""

import argparse
import json
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks import page
from benchmarks.machine import description
from seewhy import batch, explain, explain_many, load_model
from seewhy.app.batch.choices import ENGINES, Engine
from seewhy.app.batch.run import SHARD_ROWS
from seewhy.app.batch.shards import Shard, row_of
from seewhy.app.batch.sources import Source, sources
from seewhy.explainers.view import prepare

MODEL, METHOD = "efficientnet_lite0", "gradcam"
PICTURES = 300
SIZE = 512, 384


class Cost(NamedTuple):
    """What a run took after the model was ready: seconds, those of processors, largest memory, size of the shards."""

    seconds: float
    busy: float
    memory: int
    bytes: int


def make(folder: Path, count: int) -> None:
    """Write pictures into a folder."""
    generator = np.random.default_rng(0)
    examples = [
        Image.open(file).convert("RGB").resize((1024, 768)) for file in sorted((page.ROOT / "examples").glob("*.png"))
    ]
    for number in range(count):
        left, top = (int(generator.integers(0, side)) for side in SIZE)
        part = examples[number % len(examples)].crop((left, top, left + SIZE[0], top + SIZE[1]))
        noisy = np.asarray(part, dtype=np.int16) + generator.integers(-8, 9, (SIZE[1], SIZE[0], 3), dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06}.jpg", quality=90)


def work(kind: str, folder: Path, out: Path) -> None:
    """Explain the pictures of a folder in this process, and print the cost."""
    model = load_model(MODEL)
    model.accelerated.warm()
    pictures = sorted(folder.iterdir())
    for _ in explain_many(model, pictures[:64], METHOD):
        pass
    start, busy = perf_counter(), process_time()
    if kind in ENGINES:
        batch(folder, out, model, METHOD, engine=kind, progress=False)
    else:
        for _ in explain_many(model, pictures, METHOD):
            pass
    seconds = perf_counter() - start
    size = sum(file.stat().st_size for file in out.glob("part-*"))
    print(
        json.dumps(
            Cost(seconds, process_time() - busy, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size)
        )
    )


def measured(kind: str, folder: Path) -> Cost:
    """Return the cost of a run in a new process."""
    with TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks.batch", "--run", kind, str(folder), out]
        return Cost(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def stages(folder: Path) -> dict[str, float]:
    """Return milliseconds for a picture on one processor: decoding with preprocessing, making rows, writing them."""
    model = load_model(MODEL)
    found = list(islice(sources(folder), SHARD_ROWS))
    start = perf_counter()
    for source in found:
        prepare(model, source.open())
    decoded = perf_counter()
    explanation = explain(model, found[0].open(), METHOD)
    started = perf_counter()
    with TemporaryDirectory() as out:
        shard = Shard(Path(out), "float16", pictures=False)
        for source in found:
            shard.add(row_of(source, explanation, None, "float16"), None)
        added = perf_counter()
        shard.write()
        written = perf_counter()
    seconds = {"decoding": decoded - start, "rows": added - started, "writing": written - added}
    return {name: 1000 * each / len(found) for name, each in seconds.items()}


def each_of(longer: Cost, shorter: Cost, pictures: int) -> Cost:
    """Return the cost of a picture, from that of so many and of `PICTURES`; the memory is that of the longer run."""
    seconds, busy, _, size = (
        (late - early) / (pictures - PICTURES) for late, early in zip(longer, shorter, strict=True)
    )
    return Cost(seconds, busy, longer.memory, round(size))


def plan(each: Cost, picture_bytes: float) -> list[tuple[str, str, str]]:
    """Return what a million and a billion pictures take, by the cost of one."""
    sizes = (10**6, 10**9)
    hours = [each.busy * size / 3600 for size in sizes]
    days = [value / 24 / 64 for value in hours]
    return [
        ("core-hours", *(f"{value:,.0f}" for value in hours)),
        ("days of a node with 64 such cores", *(f"{value:,.2f}" for value in days)),
        ("pictures to read, GB", *(f"{picture_bytes * size / 1e9:,.0f}" for size in sizes)),
        ("shards to write, GB", *(f"{each.bytes * size / 1e9:,.2f}" for size in sizes)),
        ("list of pictures in memory, GB", *(f"{listed(10**6) * size / 1e15:,.2f}" for size in sizes)),
    ]


def listed(pictures: int) -> int:
    """Return how many bytes the list of so many pictures takes, after it was made in this process."""
    folder = "/data/photographs/train/n01440764"
    before = resident()
    listing = [Source(f"n01440764/{number:09}.jpg", f"{folder}/{number:09}.jpg") for number in range(pictures)]
    return resident() - before if listing else 0


def resident() -> int:
    """Return the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(engines: list[Engine], rounds: int, pictures: int) -> None:
    """Measure, and print tables."""
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
    if sys.argv[1:2] == ["--run"]:
        work(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--engine", choices=ENGINES, default="local", help="ray is measured beside local")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--pictures", type=int, default=3000, help="of the long run")
        arguments = parser.parse_args()
        main(["local"] if arguments.engine == "local" else ["local", "ray"], arguments.rounds, arguments.pictures)
