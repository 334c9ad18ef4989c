"""Faults while the service runs, and their effects for users: gunicorn, real sockets, real signals."""

import contextlib
import io
import math
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from seewhy.app.observability.processes import PARENTS
from seewhy.app.pipeline.jobs import Deadline
from seewhy.explainers import list_methods
from tests.app.conftest import EXAMPLES
from tests.app.serving import CAT, Small, children, explain, free_port, start
from tests.waiting import GUARD, until
from tools import load, reliability, soak
from tools.overload import overload

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Pair:
    """A service of two processes, and the folder in which they share their figures."""

    def __init__(self, service):
        self.service, own = service, service.process.pid
        (self.folder,) = (
            file.parent
            for parent in {Path(parent or tempfile.gettempdir()) for parent in PARENTS}
            for file in parent.glob(f"seewhy-metrics-*/gauge_livesum_{own}.db")
        )

    def total(self, name, **labels):
        """Return the sum of a metric over all processes."""
        text = requests.get(f"{self.service.url}/metrics", timeout=GUARD).text
        samples = [row for family in text_string_to_metric_families(text) for row in family.samples if row.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def explained(self):
        """Return how many explanations the service has counted."""
        return self.total("seewhy_requests_total", route="/explain", status="200")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    service = Small(tmp_path_factory.mktemp("pair"))
    with service.run(2):
        new_pair = Pair(service)
        until(lambda: new_pair.total("seewhy_model_info") == 2)
        yield new_pair
    assert not new_pair.folder.exists()


def test_several_processes_answer_as_one(pair):
    def counters():
        return [file for file in pair.folder.glob("counter_*.db") if b"/explain" in file.read_bytes()]

    before, count = pair.explained(), 0
    while len(counters()) < 2 or not count:  # until each of the two has answered some
        assert pair.service.post("/explain").status_code == 200
        count += 1
    assert pair.explained() == before + count
    assert pair.total("seewhy_request_duration_seconds_count", route="/explain") == before + count
    assert pair.total("seewhy_class_heatmap_entropy_count") == before + count
    (statistics,) = requests.get(f"{pair.service.url}/v2/models/stats", timeout=GUARD).json()["model_stats"]
    assert statistics["inference_count"] == statistics["inference_stats"]["success"]["count"] == before + count
    assert abs(statistics["last_inference"] / 1000 - time.time()) < 2 * GUARD
    assert pair.total("seewhy_requests_in_progress") == 1  # this one
    assert pair.total("seewhy_queue_limit") == 128


@pytest.mark.fault(
    "a process of the service is killed (`kill -9`) under load", "its own requests are aborted; all others are handled"
)
def test_a_killed_worker_loses_its_own_requests_only(pair):
    answers, enough, loads = [], threading.Event(), pair.total("seewhy_model_load_duration_seconds_count")

    def client():
        while not enough.is_set():
            begun = time.monotonic()
            try:
                code = pair.service.post("/explain").status_code
            except requests.RequestException:
                code = None
            answers.append((begun, code))

    def answered(since=0.0):
        return sum(begun > since and code == 200 for begun, code in list(answers))

    clients = [threading.Thread(target=client) for _ in range(4)]
    try:
        for thread in clients:
            thread.start()
        until(lambda: answered() >= 8)
        lost = min(pair.service.workers())
        os.kill(lost, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: answered(killed) >= 8)
    finally:
        enough.set()
        for thread in clients:
            thread.join()
    broken = [begun for begun, code in answers if code is None]
    assert len(broken) <= len(clients)
    assert all(begun < killed for begun in broken)  # whoever came later waited until somebody answered
    assert {code for _, code in answers} <= {200, None}
    until(lambda: not pair.total("process_threads", pid=str(lost)))
    until(lambda: pair.total("seewhy_model_load_duration_seconds_count") == loads + 1)
    assert pair.total("seewhy_model_info") == 2
    assert pair.explained() >= answered()  # what the lost one has counted is not lost


@pytest.mark.fault("files can no longer be written", "nothing")
def test_a_full_disk_does_not_matter(url, served):
    pids = (served.pid, *children(served.pid))
    before = resource.prlimit(served.pid, resource.RLIMIT_FSIZE)
    try:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))  # no file may have as much as one byte
        bitmap = io.BytesIO()
        Image.open(EXAMPLES / "coffee.png").convert("RGB").save(bitmap, "BMP")
        assert len(bitmap.getvalue()) > 500_000  # of which forms keep files elsewhere
        for fields in ({}, {"format": "npz"}, {"method": "rise", "samples": "8"}):
            answer = requests.post(f"{url}/explain", files={"image": bitmap.getvalue()}, data=fields, timeout=GUARD)
            assert answer.status_code == 200
    finally:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert children(served.pid) == [*pids[1:]]


@pytest.mark.fault(
    "the only process of the service is killed",
    "`/readyz` returns 503 until a new process has its model, within seconds",
)
@pytest.mark.slow
def test_what_takes_the_place_of_a_killed_process_has_imported_already():
    # Importing PyTorch takes longer than all else that a new process does.
    port = free_port()
    process = start(port)
    try:
        assert "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text()
        os.kill(children(process.pid)[0], signal.SIGKILL)
        statuses = Counter()
        while not statuses["readyz", 200]:
            for path in ("healthz", "readyz"):
                with contextlib.suppress(requests.ConnectionError):  # of the process that was killed
                    statuses[path, requests.get(f"http://127.0.0.1:{port}/{path}", timeout=GUARD).status_code] += 1
        assert set(statuses) == {("healthz", 200), ("readyz", 503), ("readyz", 200)}
        assert explain(f"http://127.0.0.1:{port}").ok
    finally:
        process.terminate()
        assert process.wait(GUARD) == 0


@pytest.mark.fault("a model that returns NaN", "500 `model-failed` with the reason; the next request is handled")
def test_a_model_that_yields_nan_says_so_and_goes_on(service, post):
    before = post(CAT)
    assert before.status_code == 200
    model = service.models.engine.model("efficientnet_lite0", Deadline.after(60))
    *_, weight, _ = model.module.parameters()
    original = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    try:
        failed = post(CAT)
        assert (failed.status_code, failed.get_json()["type"]) == (500, "urn:seewhy:problem:model-failed")
        assert "NaN" in failed.get_json()["detail"]
    finally:
        with torch.no_grad():
            weight.copy_(original)
    assert post(CAT).status_code == 200


@pytest.mark.slow
def test_answers_under_load_are_those_given_alone():
    """In short, and of all the software: two models make room for one another."""
    models = ("efficientnet_lite0", "shufflenet_v2_x0_5")
    report = soak.soak(36, threads=12, models=models, methods=("gradcam", "refinecam"), max_models=1)
    assert (report.wrong, report.failed) == ([], [])
    assert dict(report.codes) == {200: 36}
    assert report.loads >= 1
    assert report.growth < 0.04  # of few requests; the many of `make soak` may grow by 2 %
    assert report.states[-1].threads <= report.states[0].threads + 8
    assert [state.hooks for state in report.states] == [0] * len(report.states)
    assert report.states[-1].files <= report.states[0].files + 32


@pytest.mark.slow
def test_at_four_times_the_capacity_each_is_answered_in_time_or_refused():
    with ThreadPoolExecutor(1) as pool:  # the browser of other tests has an event loop in this thread
        result = pool.submit(overload, 3).result()
    assert result.is_right, result
    assert result.offered > 2 * result.capacity
    # A refusal costs no more than reading the request; the clients share the processors.
    assert sorted(result.refused)[len(result.refused) // 2] < 1


def test_the_load_has_every_method_and_route_that_runs_a_model():
    assert set(load.OPTIONS) <= set(list_methods())
    questions = load.questions()
    for model in load.MODELS:
        fields = [dict(question.fields) for question in questions if question.model == model]
        explained = {method for field in fields for method in field.get("method", "").split(",")} - {""}
        assert explained == set(load.METHODS) - set(load.UNFIT.get(model, ()))
        assert any("each_channel" in form for form in fields)
    assert {question.path for question in questions} == {
        "/explain",
        "/evaluate",
        "/predict",
        "/similar",
        "/hooks/trace",
        "/hooks/capture",
        "/hooks/intervene",
    }
    sequence = load.order(questions, 20 * load.BAND, load.MAX_MODELS)
    assert len({question.model for question in sequence}) == len(load.MODELS) > load.MAX_MODELS
    assert sum(question.is_long for question in sequence) == 20
    assert load.order(questions, 99, load.MAX_MODELS) == load.order(questions, 99, load.MAX_MODELS)


def test_an_error_that_does_not_say_why_is_wrong(monkeypatch):
    def answered(status, after=None):
        response = requests.Response()
        response.status_code = status
        response.headers["Content-Type"] = "application/problem+json"
        response._content = b'{"detail": "why"}'
        if after is not None:
            response.headers["Retry-After"] = after
        session = requests.Session()
        monkeypatch.setattr(session, "post", lambda *_, **__: response)
        return soak.ask(session, "", load.questions()[0])

    assert not answered(500).explained
    assert not answered(503).explained  # does not say when
    assert not answered(422).explained
    assert answered(504).explained
    assert (answered(503, "5").explained, answered(503, "5").wait) == (True, 5)


def test_an_answer_that_no_runtime_gives_alone_is_wrong(monkeypatch):
    question, values = load.questions()[0], iter([1.0, 1.01, 1.02, *[1.0] * soak.PICTURES_TO_COMPILE, 1.01])
    monkeypatch.setattr(soak, "ask", lambda *_: soak.Reply(200, {"maps": soak.np.full(2, next(values))}))
    clients = soak.Clients("", report := soak.Report())
    clients.ask_alone([question])
    for _ in range(2):
        clients.ask(question)
    clients.ask_again()
    assert report.compiled == [dict(question.fields)["method"]]
    assert report.wrong == [f"0.0099 {question}"]
    assert report.worst == pytest.approx(0.01 / 1.01)


def test_numbers_are_compared_with_those_of_their_kind_and_a_swapped_answer_is_seen():
    document = {"probability": 0.5, "count": 1000, "timings_ms": {"queue": 3.0}, "predictions": [{"index": 7}]}
    changed = {**document, "probability": 0.499, "predictions": [{"index": 8}]}
    assert set(soak.numbers(document)) == {"probability", "count"}
    assert soak.difference(soak.numbers(changed), soak.numbers(document)) == pytest.approx(0.002)
    channels = [{"channel": channel, "score": float(channel), "score_change": 0.0} for channel in range(3)]
    assert soak.difference(soak.numbers(channels), soak.numbers(channels[::-1])) == 0
    answer, swapped = ({"maps": soak.np.full((2, 2), value)} for value in (1.0, 1.001))
    assert soak.difference(answer, answer) == 0
    assert soak.difference(answer, swapped) > soak.TOLERANCE
    assert soak.difference(answer, {"maps": soak.np.ones(3)}) == float("inf")
    assert soak.difference({"maps": soak.np.full((2, 2), float("nan"))}, answer) == float("inf")


def measured(leak, swing):
    """Return the report of a run that began with 1,950 MB, which grew by a share of it from quarter to quarter."""
    levels = [1950e6 * (1 + leak * pause / (soak.PAUSES // 4)) + 1e6 * swing(pause) for pause in range(soak.PAUSES)]
    return soak.Report(states=[soak.State(resident=round(level)) for level in levels])


SWINGS = {
    "none": lambda pause: 0,
    "up and down": lambda pause: 70 * math.sin(2 * pause),
    "at random": lambda pause: random.Random(pause).uniform(-70, 70),
    "mostly high": lambda pause: 140 if pause % 7 else 0,
    "high in the second half": lambda pause: 140 if pause >= soak.PAUSES // 2 and pause % 5 else 0,
    "high in the first half": lambda pause: 140 if pause < soak.PAUSES // 2 and pause % 5 else 0,
}


@pytest.mark.parametrize("swing", SWINGS.values(), ids=SWINGS)
def test_memory_that_swings_has_not_grown_and_a_leak_shows_below_the_swing(swing):
    assert measured(0.0, swing).growth < reliability.MOST_GROWTH
    assert measured(0.015, swing).growth > reliability.MOST_GROWTH  # 3 % in two quarters
