"""Batch runs beside `explain_many`, and the memory of runs of two lengths: `python -m benchmarks.batch`.

Pictures are parts of the examples with noise, JPEGs of 512×384. Each run has a process of its own; both kinds take
turns.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks import page
from benchmarks.machine import description
from seewhy import batch, explain_many, load_model

MODEL, METHOD = "efficientnet_lite0", "gradcam"
ROUNDS, PICTURES, LONG = 3, 300, 3000
SIZE = 512, 384


class Cost(NamedTuple):
    """What a run took: seconds for its pictures after the first 64, and the process's largest memory in bytes."""

    seconds: float
    memory: int


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
    start = perf_counter()
    if kind == "batch":
        batch(folder, out, model, METHOD, progress=False)
    else:
        for _ in explain_many(model, pictures, METHOD):
            pass
    seconds = perf_counter() - start
    print(json.dumps(Cost(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))


def measured(kind: str, folder: Path) -> Cost:
    """Return the cost of a run in a new process."""
    with TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks.batch", kind, str(folder), out]
        return Cost(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Measure, and print a table."""
    with TemporaryDirectory() as short, TemporaryDirectory() as long:
        make(Path(short), PICTURES)
        make(Path(long), LONG)
        costs = [(measured("explain_many", Path(short)), measured("batch", Path(short))) for _ in range(ROUNDS)]
        longer = measured("batch", Path(long))
    ratios = sorted(many.seconds / run.seconds for many, run in costs)
    run = min((run for _, run in costs), key=lambda cost: cost.seconds)
    rows = [
        ("rate of `batch` over that of `explain_many`", f"{ratios[len(ratios) // 2]:.2f}"),
        ("milliseconds for a picture", f"{1000 * run.seconds / PICTURES:.1f}"),
        (f"memory, {PICTURES:,} pictures, MB", f"{run.memory / 1e6:,.0f}"),
        (f"memory, {LONG:,} pictures, MB", f"{longer.memory / 1e6:,.0f}"),
    ]
    print(f"{description()}\n\n{page.table((f'{METHOD} of {MODEL}', ''), rows)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
