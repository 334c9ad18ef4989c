"""Many different requests at once, for a long time, against the service as users run it.

Five models, of which the service may keep two: they are constantly loaded and unloaded. Each request is answered alone
first. Then threads send them again and again, and each answer is compared with the one given alone: a batch that mixes
up its pictures, a hook that is left behind, a model that is changed, or a state of the process that two threads share
shows as a difference or as an error. An answer that differs is requested again in the end, alone, until the part of the
model is compiled: rounding on another runtime can open a rectifier whose input is zero, which shows in gradients of
early layers. Now and then the clients pause, and the memory, open files and threads of the server are measured.

Memory varies: a model that has been used for a long time holds more than one that was just loaded, and the C library
gives back what it can. So each pause begins with the same models, just loaded, and takes the lowest of many samples.
Growth is measured by the lowest sample in a quarter of the run, which a leak raises and mere variation does not.
"""

import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, local

import numpy as np
import requests
from safetensors.torch import save_file
from torchvision.models import get_model

from seewhy.app.system.allocator import REST_SECONDS
from seewhy.explainers.execution.accelerated import PICTURES_TO_COMPILE
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import children, figures
from tools.load import MAX_MODELS, METHODS, MODELS, PICTURES, UNTRAINED, Question, order, questions
from tools.service import Service, service

THREADS = 32

PAUSES = 80
"""Number of pauses in a run: enough in a quarter that its lowest sample is the floor, although memory varies."""

REST = 2 * REST_SECONDS
"""Seconds until the server has given back unneeded memory."""

SAMPLES_PER_SECOND = 4
"""Samples of memory per second while the server rests."""

TOLERANCE = 1e-4
"""Maximum error of a heatmap or a number, relative to the largest of its kind in the answer."""

TRIES = 60
"""Maximum number of retries of a request that is refused with 503, each after the seconds of its Retry-After."""


Answer = dict[str, np.ndarray]


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        status: status; 0 without an answer.
        answer: the numbers of a 200.
        explained: whether an error has a reason and, if a retry is sensible, a time for it.
        wait: seconds until the retry; None if a retry is not sensible.
        rounding: whether a diagnostic says that rounding decides the answer, or is visible in it.
    """

    status: int
    answer: Answer = field(default_factory=dict)
    explained: bool = True
    wait: float | None = None
    rounding: bool = False


def ask(session: requests.Session, base: str, question: Question) -> Reply:
    """Send a request once."""
    files = {"image": (EXAMPLES / question.picture).read_bytes()}
    if question.path == "/similar":
        files["reference"] = (EXAMPLES / PICTURES[0]).read_bytes()
    response = session.post(base + question.path, files=files, data=dict(question.fields), timeout=300)
    if response.status_code != 200:
        is_problem = response.headers["Content-Type"] == "application/problem+json" and response.json()["detail"]
        after = response.headers.get("Retry-After")
        explained = bool(is_problem) and response.status_code in (503, 504) and (response.status_code == 504 or after)
        return Reply(response.status_code, {}, bool(explained), float(after) if after else None)
    remarks = response.headers.get("X-SeeWhy-Diagnostics", "")
    rounding = any(code in remarks for code in ("rounding-decides", "faint-map"))
    if response.headers["Content-Type"] == "application/json":
        return Reply(200, numbers(response.json()), rounding=rounding)
    with np.load(io.BytesIO(response.content)) as arrays:
        answer = {name: value for name, value in arrays.items() if value.dtype.kind in "fi"}
        return Reply(200, answer, rounding=rounding)


UNSTEADY = ("timings_ms", "versions", "overlay", "microseconds", "score_change", "probability_change")
"""Members of documents that are times, no numbers, or differences of two other members, which rounding makes rough."""


def numbers(document: object) -> Answer:
    """Return the numbers in a document, in order, by the name of the member that holds them.

    Where only rounding decides what comes first, channels of a sweep are ordered by their index, and the classes of
    predictions are left out.
    """
    by_name: dict[str, list[float]] = {}
    _collect(document, "", by_name)
    return {name: np.array(values) for name, values in by_name.items()}


def _collect(value: object, name: str, by_name: dict[str, list[float]]) -> None:
    if isinstance(value, dict):
        for member in sorted(value.keys() - set(UNSTEADY)):
            if (name, member) != ("predictions", "index"):
                _collect(value[member], member, by_name)
    elif isinstance(value, list):
        if value and isinstance(value[0], dict) and "score_change" in value[0]:
            value = sorted(value, key=lambda effect: effect["channel"])
        for item in value:
            _collect(item, name, by_name)
    elif isinstance(value, int | float):
        by_name.setdefault(name, []).append(float(value))


def difference(answer: Answer, expected: Answer) -> float:
    """Return the largest difference between two answers, over the largest number of each array; infinity for NaN."""
    if answer.keys() != expected.keys() or any(answer[name].shape != expected[name].shape for name in answer):
        return float("inf")
    gaps = [0.0]
    for name, array in expected.items():
        if array.size:
            gap = np.abs(answer[name].astype(float) - array.astype(float)).max()
            gaps.append(gap / max(np.abs(array).max(), 1e-12))
    return float(np.nan_to_num(np.max(gaps), nan=np.inf))


@dataclass
class State:
    """The resources of a server and its children at rest: bytes, open files, threads; hooks on its models."""

    resident: int = 0
    files: int = 0
    threads: int = 0
    hooks: int = 0


def state(running: Service) -> State:
    """Return the resources of a server at the end of a rest, with the minimum memory during the rest."""
    levels = []
    for _ in range(round(REST * SAMPLES_PER_SECOND)):
        time.sleep(1 / SAMPLES_PER_SECOND)
        levels.append(sum(_status(pid, "VmRSS") for pid in _processes(running)) * 1024)
    snapshot = State(resident=min(levels), hooks=int(sum(figures(running.url, "seewhy_hooks{"))))
    for pid in _processes(running):
        snapshot.threads += _status(pid, "Threads")
        snapshot.files += len(os.listdir(f"/proc/{pid}/fd"))
    return snapshot


def _processes(running: Service) -> list[int]:
    return [running.process.pid, *children(running.process.pid)]


def _status(pid: int, name: str) -> int:
    """Return a number of the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@dataclass
class Report:
    """The results.

    Attributes:
        codes: last status of each request.
        refused: number of temporary refusals after which a request was sent again.
        worst: largest difference from an answer given alone.
        wrong: answers that differ by more than `TOLERANCE`.
        rounded: such answers with a diagnostic that rounding decides them, or is visible in them.
        compiled: methods of such answers that equal those given alone once the part of the model was compiled.
        failed: errors without a reason, or that a client should not see.
        loads: models that were loaded for requests, for which the service had to make room.
    """

    count: int = 0
    codes: "Counter[int]" = field(default_factory=Counter)
    refused: int = 0
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    loads: int = 0
    states: list[State] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """The relative growth of the lowest resident memory from the second to the last quarter of the run."""
        quarter = max(1, len(self.states) // 4)
        early, late = (
            min(snapshot.resident for snapshot in part)
            for part in (self.states[quarter : 2 * quarter] or self.states, self.states[-quarter:])
        )
        return late / early - 1


class Clients:
    """The shared state of the threads that send requests: connections, and the answers given alone."""

    def __init__(self, base: str, report: Report) -> None:
        self._base = base
        self._report = report
        self._lock = Lock()
        self._own = local()
        self._alone: dict[Question, Answer] = {}
        self._unlike: dict[Question, list[Answer]] = {}

    def ask_alone(self, kinds: Sequence[Question]) -> None:
        """Keep the answers given while nothing else is asked.

        Raises:
            RuntimeError: a request is not answered.
        """
        for question in kinds:
            reply, _ = self._insist(question)
            if reply.status != 200:
                raise RuntimeError(f"{question} is answered with {reply.status}.")
            self._alone[question] = reply.answer

    def ask(self, question: Question) -> None:
        """Ask until there is an answer, and note the outcome."""
        reply, refused = self._insist(question)
        gap = difference(reply.answer, self._alone[question]) if reply.status == 200 else 0.0
        with self._lock:
            self._report.codes[reply.status] += 1
            self._report.refused += refused
            if gap > TOLERANCE and reply.rounding:
                self._report.rounded.append(_method(question))
            elif gap > TOLERANCE:
                self._unlike.setdefault(question, []).append(reply.answer)
            else:
                self._report.worst = max(self._report.worst, gap)
            if not reply.explained:
                self._report.failed.append(f"{reply.status} {question}")

    def ask_again(self) -> None:
        """Compare the answers that differed with those given alone while the part of the model is being compiled."""
        for question, answers in self._unlike.items():
            alone = [self._insist(question)[0].answer for _ in range(PICTURES_TO_COMPILE + 1)]
            for answer in answers:
                gap = min(difference(answer, other) for other in alone)
                self._report.worst = max(self._report.worst, gap)
                if gap > TOLERANCE:
                    self._report.wrong.append(f"{gap:.2g} {question}")
                else:
                    self._report.compiled.append(_method(question))

    def settle(self, models: Sequence[str]) -> None:
        """Ask models in turn, so that the models in memory at the end were just loaded."""
        for model in models:
            self._insist(Question("/predict", PICTURES[0], (("model", model),)))

    def _insist(self, question: Question) -> tuple[Reply, int]:
        """Ask, and ask again after each refusal that has a time for it; return the last reply and the number of
        refusals."""
        self._own.session = getattr(self._own, "session", None) or requests.Session()
        for refused in range(TRIES):
            try:
                reply = ask(self._own.session, self._base, question)
            except requests.RequestException as broken:
                print(f"{broken} {question}", file=sys.stderr)
                return Reply(0, explained=False), refused
            if reply.wait is None or not reply.explained or refused == TRIES - 1:
                return reply, refused
            time.sleep(reply.wait)
        raise AssertionError("unreachable")


def _method(question: Question) -> str:
    """Return the method of a question, or its path if it has no method."""
    return dict(question.fields).get("method", question.path)


def write_weights(folder: Path) -> None:
    """Write the weights of the untrained models, for the service to find."""
    for name in UNTRAINED:
        save_file(nets.seeded(get_model, name).state_dict(), folder / f"{name}.safetensors")


def soak(
    count: int,
    threads: int,
    models: Sequence[str] = MODELS,
    methods: Sequence[str] = tuple(METHODS),
    max_models: int = MAX_MODELS,
    seed: int = 0,
) -> Report:
    """Send this many requests, after one of each kind alone, and return the results."""
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder))
        limits = {"MAX_MODELS": max_models, "MAX_IN_FLIGHT": 128, "QUEUE_SIZE": 1000, "DEADLINE": 300}
        settings = {f"SEEWHY_{name}": str(value) for name, value in limits.items()}
        with service(SEEWHY_WEIGHTS_DIR=folder, **settings) as running:
            kinds = questions(models, methods)
            sequence = order(kinds, count, max_models, seed)
            return _soaked(running, kinds, sequence, threads, models[::-1])


def _soaked(
    running: Service, kinds: Sequence[Question], sequence: Sequence[Question], threads: int, models: Sequence[str]
) -> Report:
    count = len(sequence)
    report = Report(count=count)
    clients = Clients(running.url, report)
    clients.ask_alone(kinds)
    started = time.monotonic()
    step = max(2 * threads, count // PAUSES)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, count, step):
            asking, loads = sequence[first : first + step], _loads(running)
            for _ in pool.map(clients.ask, asking):
                pass
            report.loads += _loads(running) - loads
            clients.settle(models)
            report.states.append(snapshot := state(running))
            print(f"{first + len(asking):,} requests, {snapshot.resident / 1e6:,.0f} MB", file=sys.stderr, flush=True)
    report.seconds = time.monotonic() - started
    clients.ask_again()
    return report


def _loads(running: Service) -> int:
    """Return the number of times that the service has loaded a model."""
    return int(sum(figures(running.url, "seewhy_model_load_duration_seconds_count{")))
