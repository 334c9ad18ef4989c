"""Many different requests at once, for long, against the service as it is run.

Each request is answered alone first. Then threads send all of them again and again in random order, and each answer is
compared with the one given alone: a batch that mixes up its pictures, a hook that is left behind or a model that is
changed shows as a difference. Meanwhile the memory, open files and threads of the server are watched.
"""

import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import local

import numpy as np
import requests

from app.heaps import REST_SECONDS
from tests.app.conftest import EXAMPLES
from tests.app.serving import children, free_port, start

MODELS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
PICTURES = ("cat.png", "coffee.png", "rocket.png")
METHODS = {
    "gradcam": {},
    "layercam": {},
    "gradcam,hirescam": {},
    "xgradcam": {"sign": "signed"},
    "recipro-cam": {},
    "saliency": {},
    "smoothgrad": {"samples": "3"},
    "integrated-gradients": {"steps": "3"},
    "guided-backprop": {},
    "lrp": {},
    "rise": {"samples": "24", "probability": "0.8"},
}
THREADS = 64

REST = 2 * REST_SECONDS
"""Until the server has given back what it does not need."""

TOLERANCE = 1e-4
"""Of a heatmap or a logit, over the largest."""


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        path: of the route.
        picture: name of an example.
        fields: of the form.
    """

    path: str
    picture: str
    fields: tuple[tuple[str, str], ...]


def questions(models: tuple[str, ...] = MODELS) -> list[Question]:
    """Return the requests: all routes that run a model, over models, methods, layers, targets and contrasts."""
    found = []
    for number, (method, options) in enumerate(METHODS.items()):
        for place, model in enumerate(models):
            picture = PICTURES[(number + place) % len(PICTURES)]
            fields = {"model": model, "method": method, "format": "npz", **options}
            found.append(Question("/explain", picture, tuple(fields.items())))
            found.append(Question("/explain", picture, tuple({**fields, "target": "282"}.items())))
            if method == "gradcam":
                found.append(
                    Question("/explain", picture, tuple({**fields, "target": "281", "against": "282"}.items()))
                )
                found.append(Question("/explain", picture, tuple({**fields, "layer": "blocks.4"}.items())))
                found.append(Question("/explain", picture, tuple({**fields, "top": "3"}.items())))
    edits = json.dumps([{"layer": "blocks.2", "op": "zero", "channels": [0, 1, 2]}])
    for place, model in enumerate(models):
        picture = PICTURES[place % len(PICTURES)]
        found.append(Question("/predict", picture, (("model", model),)))
        found.append(Question("/hooks/intervene", picture, (("model", model), ("edits", edits), ("format", "json"))))
        found.append(Question("/hooks/capture", picture, (("model", model), ("layer", "blocks.3"), ("format", "npz"))))
    return found


Answer = dict[str, np.ndarray]


def ask(session: requests.Session, base: str, question: Question) -> tuple[int, Answer]:
    """Return the status and the numbers of the answer."""
    files = {"image": (EXAMPLES / question.picture).read_bytes()}
    response = session.post(base + question.path, files=files, data=dict(question.fields), timeout=120)
    if response.status_code != 200:
        return response.status_code, {}
    if response.headers["Content-Type"] == "application/json":
        return 200, {"numbers": np.array(_numbers(response.json()))}
    with np.load(io.BytesIO(response.content)) as arrays:
        return 200, {name: value for name, value in arrays.items() if value.dtype.kind in "fi"}


def _numbers(value: object, key: str = "") -> list[float]:
    """Return the numbers in a document, but for times, in order."""
    if key in ("timings_ms", "versions", "overlay"):
        return []
    if isinstance(value, dict):
        return [number for name in sorted(value) for number in _numbers(value[name], name)]
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


def difference(found: Answer, expected: Answer) -> float:
    """Return the largest difference between two answers, over the largest number of each array; infinity for NaN."""
    if found.keys() != expected.keys() or any(found[name].shape != expected[name].shape for name in found):
        return float("inf")
    gaps = [0.0]
    for name, one in expected.items():
        if one.size:
            gap = np.abs(found[name].astype(float) - one.astype(float)).max()
            gaps.append(gap / max(np.abs(one).max(), 1e-12))
    return float(np.nan_to_num(np.max(gaps), nan=np.inf))


@dataclass
class State:
    """What a server and its children hold: bytes, open files, threads; hooks on its models."""

    resident: int = 0
    files: int = 0
    threads: int = 0
    hooks: int = 0


def state(process: "subprocess.Popen[bytes]", base: str) -> State:
    """Return what a server holds now, while it rests."""
    found = State()
    for line in requests.get(f"{base}/metrics", timeout=60).text.splitlines():
        if line.startswith("seewhy_hooks{"):
            found.hooks += int(float(line.split()[-1]))
    for pid in (process.pid, *children(process.pid)):
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        found.resident += int(status["VmRSS"].split()[0]) * 1024
        found.threads += int(status["Threads"])
        found.files += len(os.listdir(f"/proc/{pid}/fd"))
    return found


@dataclass
class Report:
    """What came of it."""

    asked: int = 0
    codes: "Counter[int]" = field(default_factory=Counter)
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """How much resident memory grew between the second and the last quarter of the run, over what it was."""
        quarter = max(1, len(self.states) // 4)
        early = statistics.median(one.resident for one in self.states[quarter : 2 * quarter] or self.states)
        late = statistics.median(one.resident for one in self.states[-quarter:])
        return late / early - 1


def soak(count: int, threads: int, models: tuple[str, ...] = MODELS, seed: int = 0) -> Report:
    """Send that many requests, after one of each kind alone, and return what came of it."""
    port = free_port()
    process = start(
        port, SEEWHY_MAX_IN_FLIGHT="128", SEEWHY_QUEUE_SIZE="1000", SEEWHY_DEADLINE="300", SEEWHY_LOG_LEVEL="error"
    )
    base, report, kept = f"http://127.0.0.1:{port}", Report(), local()
    try:
        asked = questions(models)
        alone = {}
        with requests.Session() as session:
            for question in asked:
                status, alone[question] = ask(session, base, question)
                if status != 200:
                    raise RuntimeError(f"{question} is answered with {status}.")

        def one(question: Question) -> tuple[int, float]:
            kept.session = getattr(kept, "session", None) or requests.Session()
            try:
                status, found = ask(kept.session, base, question)
            except requests.RequestException as broken:
                print(f"{broken} {question}", file=sys.stderr)
                status, found = 0, {}
            return status, difference(found, alone[question]) if status == 200 else 0.0

        draw = random.Random(seed)
        order = [draw.choice(asked) for _ in range(count)]
        started = time.monotonic()
        step = max(2 * threads, count // 20)
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, count, step):
                asking = order[first : first + step]
                for question, (status, gap) in zip(asking, pool.map(one, asking), strict=True):
                    report.codes[status] += 1
                    report.worst = max(report.worst, gap)
                    if gap > TOLERANCE:
                        report.wrong.append(f"{gap:.2g} {question}")
                time.sleep(REST)
                report.states.append(held := state(process, base))
                print(f"{first + len(asking):,} requests, {held.resident / 1e6:,.0f} MB", file=sys.stderr, flush=True)
        report.asked, report.seconds = count, time.monotonic() - started
        return report
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
