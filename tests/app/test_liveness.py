"""A process that is broken for good says so, and is replaced; one that is not is left alone."""

import functools
import io
import math
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import torch
from torch import fx, nn

from seewhy.app import create_app
from seewhy.app.pipeline import liveness
from seewhy.app.pipeline.computation import ExplainComputation, SoloComputation
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.liveness import CHANGED_SECONDS, MOST_FAILED, TRIAL_SECONDS, Liveness
from seewhy.app.pipeline.model_threads import EngineOptions
from seewhy.app.pipeline.observer import Observer
from seewhy.app.settings import Settings
from seewhy.explainers import GradCAM, process_wide
from seewhy.explainers.core.ask import Ask
from seewhy.models import ModelError
from tests import nets
from tests.app.serving import Small
from tests.app.test_engine import Slow, loaded, outcomes
from tests.app.test_health import Faulty, becomes, declared, fail, probe  # noqa: F401
from tests.explainers.test_process_wide import Lock
from tests.waiting import GUARD, until

PROBES = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/ping")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Whole(Faulty):
    """A classifier that is told what to do before each pass, and of which no part runs elsewhere."""

    def forward(self, images):
        if isinstance(images, fx.Proxy):
            raise TypeError("not to be traced")
        return super().forward(images)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def living(declared, clock):  # noqa: F811
    """A service whose default model is ready, and what tells whether it is broken."""
    app, file = declared("tests.app.test_liveness:Whole")
    torch.save(nets.seeded(Faulty).state_dict(), file)
    checks = Liveness(app.extensions["seewhy"].models.engine, 30.0, clock)
    app.extensions["seewhy-operations"].listeners.append(checks)
    app.extensions["seewhy-liveness"] = checks
    becomes(app, "ready")
    return app, checks


def leave_wrapper():
    """Replace `nn.Module.__call__` as two traces at once would."""
    called = nn.Module.__call__
    nn.Module.__call__ = functools.wraps(called)(lambda *args, **kwargs: called(*args, **kwargs))


@pytest.fixture
def called():
    """Put `nn.Module.__call__` back at the end."""
    original = nn.Module.__call__
    yield
    nn.Module.__call__ = original


@pytest.mark.fault(
    "PyTorch's process-wide state stays modified",
    "after 10 s, `/healthz` and `/readyz` return 503 `broken` with the reason; another process replaces this one",
)
def test_probes_tell_of_a_change_that_stays(living, clock, called):
    app, _ = living
    leave_wrapper()
    assert [probe(app, path) for path in PROBES] == [200] * 5
    clock.now += CHANGED_SECONDS
    assert [probe(app, path) for path in PROBES] == [503] * 5
    response = app.test_client().get("/healthz")
    assert response.mimetype == "application/problem+json"
    assert response.get_json()["type"] == "urn:seewhy:problem:broken"
    assert "torch.nn.Module.__call__ has been changed for 10 s" in response.get_json()["detail"]
    assert app.test_client().get("/methods").status_code == 200


def test_a_change_that_comes_and_goes_breaks_nothing(living, clock, called):
    app, _ = living
    original = nn.Module.__call__
    for _ in range(3):
        leave_wrapper()
        assert probe(app, "/healthz") == 200
        nn.Module.__call__ = original
        clock.now += CHANGED_SECONDS
        assert probe(app, "/healthz") == 200


def test_what_a_model_changes_while_it_runs_and_puts_back_is_no_fault_however_busy_it_is(clock):
    module = Slow()
    engine = Engine(EngineOptions(lambda name: loaded(module, name), 2, 1, 6))
    checks = Liveness(engine, 30.0, clock)
    engine.model("slow", Deadline.after(GUARD))
    running, turns = threading.Semaphore(0), threading.Semaphore(0)

    def change(*_):
        torch.set_default_dtype(torch.float64)
        try:
            running.release()
            turns.acquire(timeout=GUARD)
        finally:
            torch.set_default_dtype(torch.float32)

    jobs = [
        Job(SoloComputation(change, None), torch.ones(3, 8, 8), Ask.single(0), Deadline.after(GUARD)) for _ in range(3)
    ]
    for job in jobs:
        engine.submit("slow", [job])
    for _ in jobs:
        assert running.acquire(timeout=GUARD)
        assert process_wide.changes() == ["torch.get_default_dtype()"]
        assert checks.faults() == []
        clock.now += CHANGED_SECONDS
        assert checks.faults() == []
        turns.release()
    engine.stop(GUARD)


def test_what_a_model_leaves_changed_is_seen_between_its_turns_though_it_never_rests(clock):
    module = Slow()
    engine = Engine(EngineOptions(lambda name: loaded(module, name), 2, 1, 6))
    checks = Liveness(engine, 30.0, clock)
    engine.model("slow", Deadline.after(GUARD))
    running, turns = threading.Semaphore(0), threading.Semaphore(0)

    def leave(*_):
        torch.set_default_dtype(torch.float64)
        running.release()
        turns.acquire(timeout=GUARD)

    jobs = [
        Job(SoloComputation(leave, None), torch.ones(3, 8, 8), Ask.single(0), Deadline.after(GUARD)) for _ in range(3)
    ]
    try:
        for job in jobs:
            engine.submit("slow", [job])
        for faults in ([], [], ["torch.get_default_dtype() has been changed for 10 s, for all threads."]):
            assert running.acquire(timeout=GUARD)
            assert checks.faults() == faults
            clock.now += CHANGED_SECONDS
            turns.release()
    finally:
        engine.stop(GUARD)
        torch.set_default_dtype(torch.float32)


def test_probes_do_not_wait_for_a_thread_that_traces(living, clock):
    app, _ = living
    with process_wide.exclusive(), ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            assert pool.submit(probe, app, "/healthz").result() == 200
            clock.now += CHANGED_SECONDS


class Ends(Observer):
    """Ends a model's thread once it has worked."""

    def rests(self, name, model):
        raise SystemExit


@pytest.mark.fault(
    "the thread of a model ends unexpectedly",
    "`/healthz` and `/readyz` return 503 `broken` with the reason; another process replaces this one",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "work",
    [ExplainComputation((GradCAM(layers=("conv",)),)), SoloComputation(lambda *_: None, None)],
    ids=["first", "own"],
)
def test_a_thread_that_has_ended_is_told_of(work, clock):
    """Work of a few passes runs in a model's first thread, work of nobody knows how many in one of its own."""
    module = Slow()
    engine = Engine(EngineOptions(lambda name: loaded(module, name), 2, 4, 6, observer=Ends()))
    living = Liveness(engine, 30.0, clock)
    engine.model("slow", Deadline.after(GUARD))
    assert living.faults() == []
    outcomes(engine, "slow", [Job(work, torch.ones(3, 8, 8), Ask.single(0), Deadline.after(GUARD))])
    for thread in threading.enumerate():
        if thread.name.startswith("model-slow") and not (
            thread.name == "model-slow" and isinstance(work, SoloComputation)
        ):
            thread.join(GUARD)
    assert living.faults() == ["A thread of the model 'slow' has ended."]
    engine.stop(1)  # the thread that has ended never gives its turn back, so the other one cannot end


@pytest.mark.fault(
    "a pass of a model hangs forever",
    "504; after five times the deadline, `/healthz` and `/readyz` return 503 `broken` with the reason; another process "
    "replaces this one",
)
def test_a_pass_that_never_ends_is_told_of_and_one_of_many_is_not(clock):
    module = Slow()
    engine = Engine(EngineOptions(lambda name: loaded(module, name), 2, 4, 6, clock=clock))
    living = Liveness(engine, 30.0, clock)
    engine.model("slow", Deadline.after(GUARD))
    begun, released = threading.Semaphore(0), threading.Semaphore(0)

    def work(_model, _images, _targets, progress):
        for step in range(3):
            begun.release()
            assert released.acquire(timeout=GUARD)
            progress.report(step, 3)

    engine.submit("slow", [Job(SoloComputation(work, None), torch.ones(3, 8, 8), Ask.single(0), Deadline.after(GUARD))])
    for faults in ([], [], ["A pass of the model 'slow' has not ended for 151 s."]):
        assert begun.acquire(timeout=GUARD)
        clock.now += 151.0 if faults else 149.0
        assert living.faults() == faults
        released.release()
    until(lambda: engine.threads["slow"].idle)
    assert living.faults() == []
    engine.stop(GUARD)


def test_threads_that_are_stopped_or_could_not_load_are_not_lost(clock):
    def load(name):
        if name == "bad":
            raise ModelError("no weights")
        return loaded(Slow(), name)

    engine = Engine(EngineOptions(load, max_models=1, max_batch=4, queue_size=6))
    living = Liveness(engine, 30.0, clock)
    with pytest.raises(ModelError):
        engine.model("bad", Deadline.after(GUARD))
    engine.model("first", Deadline.after(GUARD))
    first = engine.threads["first"]
    engine.model("second", Deadline.after(GUARD))
    engine.threads["bad"].join(GUARD)
    first.join(GUARD)
    assert not first.lost
    assert living.faults() == []
    engine.stop(GUARD)


def request_and_try(app, living, clock, picture):
    clock.now += TRIAL_SECONDS
    status = app.test_client().post("/predict", data=picture, content_type="image/png").status_code
    living.try_models()
    return status


@pytest.mark.fault(
    "all models fail where they worked before, as after the loss of a GPU",
    "500; after 30 s, `/healthz` and `/readyz` return 503 `broken` with the reason; another process replaces this one",
)
def test_models_that_can_do_nothing_any_more_are_told_of(living, clock, cat, monkeypatch):
    app, actual = living
    monkeypatch.setattr(Whole, "do", staticmethod(fail))
    for _ in range(MOST_FAILED):
        assert actual.faults() == []
        assert request_and_try(app, actual, clock, cat) == 500
    assert actual.faults() == ["No model can classify an empty picture any more (RuntimeError: a model that raises)."]
    assert probe(app, "/healthz") == 503


def test_one_success_begins_anew(living, clock, cat, monkeypatch):
    app, actual = living
    for do in (fail, fail, lambda: 1.0, fail, fail):
        monkeypatch.setattr(Whole, "do", staticmethod(fail))
        clock.now += TRIAL_SECONDS
        app.test_client().post("/predict", data=cat, content_type="image/png")
        monkeypatch.setattr(Whole, "do", staticmethod(do))
        actual.try_models()
    assert actual.faults() == []


@pytest.mark.parametrize("value", [math.nan, MemoryError])
def test_failures_of_a_known_kind_break_nothing(value, living, clock, cat, monkeypatch):
    def do():
        if value is MemoryError:
            raise MemoryError
        return value

    app, actual = living
    for _ in range(MOST_FAILED + 1):
        monkeypatch.setattr(Whole, "do", staticmethod(fail))
        clock.now += TRIAL_SECONDS
        assert app.test_client().post("/predict", data=cat, content_type="image/png").status_code == 500
        monkeypatch.setattr(Whole, "do", staticmethod(do))
        actual.try_models()
    assert actual.faults() == []


@pytest.mark.slow
def test_a_model_that_still_answers_keeps_the_process(living, clock, cat, monkeypatch):
    app, actual = living
    response = app.test_client().post("/predict?model=efficientnet_lite0", data=cat, content_type="image/png")
    assert response.status_code == 200
    monkeypatch.setattr(Whole, "do", staticmethod(fail))
    for _ in range(MOST_FAILED + 1):
        assert request_and_try(app, actual, clock, cat) == 500
    assert actual.faults() == []


def test_without_a_failed_request_or_too_soon_nothing_is_tried(living, clock, cat, monkeypatch):
    app, actual = living
    runs = []
    monkeypatch.setattr(Whole, "do", staticmethod(lambda: runs.append(None) or 1.0))
    assert request_and_try(app, actual, clock, cat) == 200  # its first pass counts activations
    runs.clear()
    assert request_and_try(app, actual, clock, cat) == 200
    assert len(runs) == 1
    monkeypatch.setattr(Whole, "do", staticmethod(lambda: runs.append(None) or fail()))
    assert request_and_try(app, actual, clock, cat) == 500
    assert len(runs) == 3
    clock.now -= TRIAL_SECONDS
    assert request_and_try(app, actual, clock, cat) == 500
    assert len(runs) == 4


def test_a_broken_process_ends_itself_once(living, clock, called, monkeypatch, caplog):
    _, actual = living
    ends = []
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
    leave_wrapper()
    assert actual.faults() == []
    clock.now += CHANGED_SECONDS
    actual.watch(lambda: ends.append(None)).join(GUARD)
    assert len(ends) == 1
    assert "This process ends and will be replaced: torch.nn.Module.__call__" in caplog.text


def test_a_look_that_fails_does_not_end_the_watch(clock, monkeypatch, caplog):
    looks = iter([OSError("no file left"), OSError("no file left"), ["It is broken."]])

    def look():
        result = next(looks)
        if isinstance(result, Exception):
            raise result
        return result

    ends = []
    checks = Liveness(Engine(EngineOptions(lambda name: None, 1, 1, 1)), 30.0, clock)
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(checks, "faults", look)
    checks.watch(lambda: ends.append(None)).join(GUARD)
    assert len(ends) == 1
    assert "The liveness check failed" in caplog.text


def test_streams_that_fail_are_counted_and_have_models_tried(living, clock, cat, monkeypatch):
    app, actual = living
    monkeypatch.setattr(Whole, "do", staticmethod(fail))
    for _ in range(MOST_FAILED):
        assert actual.faults() == []
        clock.now += TRIAL_SECONDS
        data = {"image": (io.BytesIO(cat), "cat.png")}
        with app.test_client().post("/explain", data=data, headers={"Accept": "text/event-stream"}) as streamed:
            assert streamed.status_code == 200
            assert "event: error" in streamed.get_data(as_text=True)
        actual.try_models()
    assert actual.faults() == ["No model can classify an empty picture any more (RuntimeError: a model that raises)."]
    metrics = app.test_client().get("/metrics").get_data(as_text=True)
    assert 'seewhy_rejections_total{reason="internal"} 3.0' in metrics


def test_a_process_ends_by_a_signal_to_itself(monkeypatch):
    handled = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: handled.set())
    try:
        liveness.end_process()
        assert handled.wait(GUARD)
    finally:
        signal.signal(signal.SIGTERM, before)


MEANWHILE = {}
"""What happens as a network is traced or run, by the thread."""


class Meets(nets.Net):
    """A network of which another one is traced while it is."""

    def forward(self, images):
        kind = "traced" if isinstance(images, fx.Proxy) else "run"
        MEANWHILE.get((threading.current_thread().name, kind), lambda: None)()
        return super().forward(images)


def test_models_that_load_at_once_and_make_room_for_each_other_all_answer(tmp_path, cat, monkeypatch):
    names = ["first", "second", "third"]
    torch.save(nets.seeded(Meets).state_dict(), tmp_path / "w.pth")
    table = (
        'architecture = "tests.app.test_liveness:Meets"\nweights = "w.pth"\nlabels = ["a", "b", "c"]\ninput_size = 32\n'
    )
    (tmp_path / "models.toml").write_text("".join(f"[models.{name}]\n{table}" for name in names))
    app = create_app(Settings(models=tmp_path / "models.toml", default_model="first", max_models=2))
    surveyed, ready, begun, released = (threading.Event() for _ in range(4))

    def attempted():
        if threading.current_thread().name == "model-second" and surveyed.is_set() and not released.is_set():
            ready.set()
            begun.wait(GUARD)
            released.set()

    def answer(name):
        if name == "first":
            ready.wait(GUARD)
        while True:
            reply = app.test_client().post(f"/predict?model={name}", data=cat, content_type="image/png")
            if not reply.get_json().get("type", "").endswith(":overloaded"):  # none of the two has ended its work yet
                return reply

    monkeypatch.setattr(process_wide, "_lock", Lock(process_wide._lock, attempted))
    # The order that breaks it: the second saves, the first saves, the second puts back, the first puts back. The first
    # one traces while the second does, or, where that has to wait, while it waits; times are limits for what is broken.
    steps = iter([lambda: None, surveyed.set])  # the passes of the survey, and of the look at what the model returns
    meanwhile = {
        ("model-second", "run"): lambda: next(steps, released.set)(),
        ("model-second", "traced"): lambda: (ready.set(), begun.wait(GUARD)),
        ("model-first", "traced"): lambda: (begun.set(), released.wait(GUARD)),
    }
    for key, act in meanwhile.items():
        monkeypatch.setitem(MEANWHILE, key, act)
    originals = nn.Module.__call__, nn.Module.__getattr__
    try:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(answer, ("first", "second")))
        MEANWHILE.clear()
        assert begun.is_set()
        answers += [answer(name) for _ in range(3) for name in reversed(names)]
        assert [reply.status_code for reply in answers] == [200] * len(answers)
        expected = answers[0].get_json()["predictions"]
        for response in answers:
            for row, reference in zip(response.get_json()["predictions"], expected, strict=True):
                assert (row["label"], row["probability"]) == (
                    reference["label"],
                    pytest.approx(reference["probability"], 1e-4),
                )
        assert process_wide.changes() == []
        assert probe(app, "/healthz") == 200
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = originals
        app.extensions["seewhy"].models.stop()


class Breaks(nets.Net):
    """A network that breaks the process when it sees a picture, if a file is there, which it removes."""

    def forward(self, images):
        if isinstance(images, fx.Proxy):
            raise TypeError("not to be traced")
        file = Path("break")
        if file.exists():
            file.unlink()
            leave_wrapper()
        return super().forward(images)


@pytest.mark.slow
def test_a_broken_process_is_replaced_and_the_service_answers_again(tmp_path):
    service = Small(tmp_path, "tests.app.test_liveness:Breaks")
    with (tmp_path / "log").open("w") as log, service.run(stdout=log, stderr=log):
        before = service.workers()
        (tmp_path / "break").touch()
        assert service.predict() == 0
        until(lambda: not before & service.workers())
        assert requests.get(f"{service.url}/healthz", timeout=GUARD).status_code == 200
        assert service.predict() == 0
    assert "torch.nn.Module.__call__ has been changed" in (tmp_path / "log").read_text()
