"""Batch runs that are killed again and again: `python -m tools.batch_kills --pictures 20000 --engine ray`.

One picture in a hundred is hostile. With `ray`, two nodes of one processor each run on this machine, and a worker, the
driver and a node are killed in turn; with `local`, one of two workers and the driver. In the end each picture must have
exactly one row, each hostile one an error, and the maps must be those of `explain`.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import page
from benchmarks.batch import METHOD, MODEL, make
from benchmarks.machine import description
from benchmarks.ray_nodes import nodes
from seewhy import batch, explain, load_model, open_batch

HOSTILE = 100
"""One in this many pictures is hostile."""

COMPARED = 50
"""Number of pictures whose maps are compared."""

VICTIMS = {"local": ("worker", "driver"), "ray": ("worker", "driver", "node")}

WORKERS = ("ray::MapWorker", "popen_loky")
"""Parts of the names of processes that explain pictures."""


def hostile(place: Path, number: int) -> None:
    """Write a file that is not, or no longer, a picture."""
    picture = next(place.glob("*.jpg")).read_bytes()
    contents = (b"", picture[: len(picture) // 3], b"\x89PNG\r\n\x1a\n" + os.urandom(2000), b"<svg/>", picture[:200])
    (place / f"hostile-{number:05}.jpg").write_bytes(contents[number % len(contents)])


def parents() -> dict[int, tuple[int, str]]:
    """Return the parent and the name of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(entry.name)] = parent, (entry / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError):  # it has ended, or is not a process
            continue
    return found


def workers(roots: list[int]) -> list[int]:
    """Return the descendants of some processes that explain pictures."""
    tree = parents()

    def is_below(number: int) -> bool:
        return number in roots or (number in tree and is_below(tree[number][0]))

    named = [number for number, (_, name) in tree.items() if any(part in name for part in WORKERS)]
    return [number for number in named if is_below(number)]


def peak(process: "subprocess.Popen[bytes]") -> int:
    """Return the largest memory of a process so far, in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def run(place: Path, out: Path, engine: str, kills: int) -> tuple[Counter[str], int]:
    """Run until everything is done, and kill now and then; return the kills, and the driver's largest memory."""
    killed, memory = Counter[str](), 0
    with nodes(2) if engine == "ray" else nullcontext() as cluster:
        command = [sys.executable, "-m", "tools.batch_kills", "--run", str(place), str(out), engine]
        command += [cluster.address] if cluster else []
        process = subprocess.Popen(command)
        seen = 0
        while process.poll() is None or process.returncode < 0:
            if process.poll() is not None:
                process = subprocess.Popen(command)
            time.sleep(0.5)
            memory = max(memory, peak(process))
            shards = len(list(out.glob("part-*.parquet")))
            if shards <= seen or killed.total() >= kills:
                continue
            seen = shards
            victim = VICTIMS[engine][killed.total() % len(VICTIMS[engine])]
            if victim == "driver":
                process.kill()
                process.wait()
            elif victim == "node" and cluster:
                cluster.kill_last()
            else:
                roots = [node.pid for node in cluster.nodes] if cluster else [process.pid]
                os.kill(random.choice(workers(roots)), signal.SIGKILL)
            killed[victim] += 1
    if process.returncode:
        sys.exit("The run failed.")
    return killed, memory


def check(place: Path, out: Path, pictures: int, bad: int) -> float:
    """Check the rows; return the largest difference of a map from that of `explain`, relative to its largest value."""
    results = open_batch(out)
    table = results.table.to_pandas()
    assert Counter(table.path) == Counter(file.name for file in place.iterdir()), (
        "a picture is missing, or is there twice"
    )
    assert (results.manifest.pictures, results.manifest.errors) == (pictures, bad)
    assert set(table.path[table.error.notna()]) == {file.name for file in place.glob("hostile-*")}
    model, worst = load_model(MODEL), 0.0
    for row in random.Random(0).sample(list(np.flatnonzero(table.error.isna())), COMPARED):
        expected = explain(model, place / table.path[row], METHOD).map
        worst = max(worst, float(np.abs(results[int(row)].map - expected).max() / np.abs(expected).max()))
    return worst


def main() -> None:
    """Run, kill, check, and print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--engine", choices=list(VICTIMS), default="local")
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    pictures, bad = arguments.pictures, arguments.pictures // HOSTILE
    with TemporaryDirectory() as folder:
        place, out = Path(folder, "pictures"), Path(folder, "out")
        place.mkdir()
        make(place, pictures)
        for number in range(bad):
            hostile(place, number)
        start = time.monotonic()
        killed, memory = run(place, out, arguments.engine, arguments.kills)
        seconds = time.monotonic() - start
        worst = check(place, out, pictures, bad)
        size = sum(file.stat().st_size for file in out.glob("part-*.parquet"))
    rows = [
        ("pictures, hostile files", f"{pictures:,}, {bad:,}"),
        ("killed", ", ".join(f"{name} {number} ×" for name, number in killed.items()) or "nothing"),
        ("seconds, with restarts", f"{seconds:,.0f}"),
        ("rows for each picture", "1"),
        ("rows with errors", f"{bad:,}, all hostile"),
        (f"largest difference of {COMPARED} maps from `explain`", f"{worst:.1e}"),
        ("largest memory of the driver, MB", f"{memory / 1e6:,.0f}"),
        ("shards, bytes for a picture", f"{size / pictures:,.0f}"),
    ]
    print(f"{description()}\n\n{page.table((f'engine {arguments.engine}', ''), rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        source, target, kind, *address = sys.argv[2:]
        where = {"address": address[0]} if address else {"workers": 2}
        batch(source, target, MODEL, METHOD, engine=kind, map_type="float32", progress=False, **where)
    else:
        main()
