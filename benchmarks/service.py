"""The service compared with a small Flask server around pytorch-grad-cam, under load: `python -m benchmarks.service`.

All run throughout; each case loads them in turn, round after round. A client sends its next picture once it has the
answer to the last one; no two pictures have the same bytes.
"""

import argparse
import asyncio
import io
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles

import aiohttp
import numpy as np
import psutil
from PIL import Image

from benchmarks import page
from benchmarks.machine import description

MAX_SIDE = 1024
SEEWHY, FLASK, FLASK_ONE = "SeeWhy", "Flask", "Flask, one thread a worker"
SERVE = [sys.executable, "-m", "seewhy", "serve", "--port", "{port}"]
_GUNICORN = [sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", "127.0.0.1:{port}"]
_FLASK = [*_GUNICORN, "benchmarks.flask_gradcam:app"]
SERVERS = {
    SEEWHY: (SERVE, {"SEEWHY_MAX_SIDE": str(MAX_SIDE)}),
    FLASK: (_FLASK, {"MAX_SIDE": str(MAX_SIDE)}),
    FLASK_ONE: (_FLASK, {"MAX_SIDE": str(MAX_SIDE), "OMP_NUM_THREADS": "1"}),
}
"""Commands, and their environment variables."""

BOUNDARY = "seewhy-benchmark"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
PACKAGES = ("seewhy", "torch", "openvino", "grad-cam", "flask", "gunicorn", "pillow", "opencv-python-headless")


@dataclass(frozen=True)
class Case:
    """The requests, and the number of concurrent clients."""

    name: str
    size: tuple[int, int]
    clients: int


CASES = (
    Case("512×512", (512, 512), 1),
    Case("512×512", (512, 512), 8),
    Case("512×512", (512, 512), 32),
    Case("12 megapixels", (4000, 3000), 1),
    Case("12 megapixels", (4000, 3000), 8),
    Case("12 megapixels", (4000, 3000), 32),
)


@dataclass
class Load:
    """The results of clients.

    Attributes:
        latencies: seconds of each answered request.
        errors: requests that got no picture.
        seconds: from the first request to the last answer.
        stages: milliseconds of each stage, as the server reports them, by name.
    """

    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.latencies) / self.seconds

    @property
    def figures(self) -> dict[str, float]:
        """Answered requests per second and in all, percentiles of their milliseconds, and errors."""
        p50, p99 = (1000 * percentile(self.latencies, percent) for percent in (50, 99))
        return {"rate": self.rate, "p50": p50, "p99": p99, "requests": len(self.latencies), "errors": self.errors}

    def add(self, part: "Load") -> None:
        """Add the results of other clients."""
        self.latencies += part.latencies
        self.errors += part.errors
        self.seconds += part.seconds
        for name, values in part.stages.items():
            self.stages.setdefault(name, []).extend(values)


@dataclass(frozen=True, eq=False)
class Server:
    """A running server."""

    url: str
    process: "subprocess.Popen[bytes]"

    def memory(self) -> int:
        """Return the resident bytes of all its processes; pages are divided among all that share them."""
        parent = psutil.Process(self.process.pid)
        usages = [member.memory_full_info() for member in (parent, *parent.children(recursive=True))]
        return sum(getattr(usage, "pss", usage.rss) for usage in usages)  # which shares only Linux counts


def pictures(size: tuple[int, int], count: int) -> list[bytes]:
    """Return different photographs as JPEG: crops of the examples with a camera's noise."""
    random, uploads = np.random.default_rng(0), []
    names = itertools.cycle(("cat", "coffee"))
    for name in itertools.islice(names, count):
        with Image.open(page.ROOT / "examples" / f"{name}.png") as example:
            photograph = example.convert("RGB")
        left, top = (int(random.integers(0, length // 8)) for length in photograph.size)
        box = (left, top, left + photograph.width * 7 // 8, top + photograph.height * 7 // 8)
        pixels = np.asarray(photograph.resize(size, Image.Resampling.BICUBIC, box=box), dtype=np.int16)
        noise = random.integers(-6, 7, pixels.shape, dtype=np.int16)
        buffer = io.BytesIO()
        Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        uploads.append(buffer.getvalue())
    return uploads


def bodies(photographs: Sequence[bytes]) -> Iterator[bytes]:
    """Yield forms with the photographs, over and over, each with a number in a comment of the JPEG."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="picture.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode()
    for number, content in enumerate(itertools.cycle(photographs)):
        comment = b"\xff\xfe\x00\x0a" + number.to_bytes(8, "big")
        yield b"".join((head, content[:2], comment, content[2:], f"\r\n--{BOUNDARY}--\r\n".encode()))


@contextmanager
def running(
    command: Sequence[str], extra: Mapping[str, str], cores: int | None = None, folder: Path = page.ROOT
) -> Iterator[Server]:
    """Start a server and wait until it answers; stop it afterwards.

    Args:
        command: with `{port}` for its port.
        extra: additional environment variables.
        cores: number of processors that it may use; None for all.
        folder: working directory.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SEEWHY_", "OMP_"))}
    process = subprocess.Popen(
        [word.format(port=port) for word in command],
        cwd=folder,
        env={**environment, **extra},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=cores and (lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])),
    )
    try:
        url = f"http://127.0.0.1:{port}/explain"
        _wait(url, process)
        yield Server(url, process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _wait(url: str, process: "subprocess.Popen[bytes]", seconds: float = 120) -> None:
    body = next(bodies(pictures((64, 64), 1)))
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, HEADERS), timeout=seconds).close()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.2)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"The server does not answer; its exit code is {process.poll()}.")


async def load(url: str, forms: Iterator[bytes], clients: int, seconds: float) -> Load:
    """Let clients send one request after another for some seconds."""
    result, started = Load(), time.perf_counter()

    async def client(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() - started < seconds:
            body, begun = next(forms), time.perf_counter()
            try:
                async with session.post(url, data=body, headers=HEADERS) as answer:
                    content = await answer.read()
                    is_drawing = answer.status == 200 and content.startswith(b"\x89PNG")
                    timing = answer.headers.get("Server-Timing", "")
            except (aiohttp.ClientError, TimeoutError):
                is_drawing, timing = False, ""
            if not is_drawing:
                result.errors += 1
                continue
            result.latencies.append(time.perf_counter() - begun)
            for name, value in re.findall(r"(\w+);dur=([\d.]+)", timing):
                result.stages.setdefault(name, []).append(float(value))

    limit = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    result.seconds = time.perf_counter() - started
    return result


def measured(case: Case, servers: dict[str, Server], seconds: float, rounds: int) -> dict[str, object]:
    """Return each server's results in a case; ratios are the medians over the rounds of SeeWhy's rate over
    another's."""
    forms = bodies(pictures(case.size, 16 if case.size[0] < 1000 else 4))
    for server in servers.values():
        asyncio.run(load(server.url, forms, case.clients, min(seconds, 2)))
    totals, memory = {name: Load() for name in servers}, dict.fromkeys(servers, 0)
    rates: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            result = asyncio.run(load(server.url, forms, case.clients, seconds))
            totals[name].add(result)
            memory[name] = max(memory[name], server.memory())
            rates[name].append(result.rate)
    return {
        "name": case.name,
        "clients": case.clients,
        "stages": {name: fmean(values) for name, values in totals[SEEWHY].stages.items()},
        "servers": {
            name: {**total.figures, "ratio": _ratio(rates[SEEWHY], rates[name]), "memory": memory[name]}
            for name, total in totals.items()
        },
    }


def _ratio(rates: list[float], peers: list[float]) -> float | None:
    """Return the median over the rounds; None if the other one answered nothing in a round."""
    return median(rate / peer for rate, peer in zip(rates, peers, strict=True)) if all(peers) else None


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile; of a single value, the value itself."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else sum(values)


HEAD = ("upload", "clients", "server", "requests/s", "p50, ms", "p99, ms", "errors", "memory, MB", "SeeWhy / this")
STAGES = ("decode", "queue", "explain", "render", "encode")


def tables(results: Sequence[dict]) -> str:
    """Return the part of the page."""
    rows, stages = [], []
    for case in results:
        for name, got in case["servers"].items():
            numbers = (f"{got['rate']:.1f}", f"{got['p50']:.0f}", f"{got['p99']:.0f}", str(got["errors"]))
            ratio = "" if name == SEEWHY else f"**{page.times(got['ratio'])}**"
            rows.append((case["name"], str(case["clients"]), name, *numbers, f"{got['memory'] / 1e6:.0f}", ratio))
        spent = case["stages"]
        busy = sum(value for name, value in spent.items() if name != "queue")
        share = f"{1 - spent.get('explain', 0) / busy:.0%}" if busy else ""
        stages.append(
            (case["name"], str(case["clients"]), *(f"{spent.get(stage, 0):.1f}" for stage in STAGES), f"**{share}**")
        )
    head = ("upload", "clients", *(f"{stage}, ms" for stage in STAGES), "outside the explainer, queue not counted")
    return f"{description(PACKAGES)}\n\n{page.table(HEAD, rows)}\n{page.table(head, stages)}"


def asked_for(purpose: str | None, seconds: float, rounds: int) -> tuple[bool, float, int]:
    """Return the options of a benchmark of servers: whether it is quick, the seconds of load, and the rounds.

    From then on, a signal to terminate ends the program in an orderly way, so that the servers are stopped too.
    """
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=seconds, help="duration of the load in each round")
    parser.add_argument("--rounds", type=int, default=rounds)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return (True, 1.0, 1) if arguments.quick else (False, arguments.seconds, arguments.rounds)


def main() -> None:
    """Print the tables and write the results; with --quick, one second of each, and nothing is written."""
    quick, seconds, rounds = asked_for(main.__doc__, seconds=10.0, rounds=3)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(*server)) for name, server in SERVERS.items()}
        results = []
        for case in CASES:
            results.append(measured(case, servers, seconds, rounds))
            print(results[-1], file=sys.stderr, flush=True)
    page.publish("service", {"tables": tables(results), "cases": results}, quick)


if __name__ == "__main__":
    main()
