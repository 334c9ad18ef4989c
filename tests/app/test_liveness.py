"""A permanently broken process reports this and is replaced; any other one is left alone."""

import functools
import io
import math
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
import torch
from torch import fx, nn

from seewhy.app import create_app
from seewhy.app.pipeline import liveness
from seewhy.app.pipeline.computation import SoloComputation
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.liveness import CHANGED_SECONDS, MOST_FAILED, TRIAL_SECONDS, Liveness
from seewhy.app.pipeline.observer import Observer
from seewhy.app.settings import Settings
from seewhy.explainers import process_wide
from seewhy.models import ModelError
from tests import nets
from tests.app.serving import Small, declare
from tests.app.test_engine import EXPLAINED, Slow, engine_of, give_up, job, loaded, outcomes  # noqa: F401
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


class Living:
    """A service whose default model is ready, and what tells whether it is broken."""

    def __init__(self, app, clock, picture):
        self.app, self.clock, self._picture = app, clock, picture
        self.checks = Liveness(app.extensions["seewhy"].models.engine, 30.0, clock)
        app.extensions["seewhy-operations"].listeners.append(self.checks)
        app.extensions["seewhy-liveness"] = self.checks

    def probe(self, path="/healthz"):
        return probe(self.app, path)

    def predict(self, query=""):
        """Let the time of a trial go by, and return the status of an answer."""
        self.clock.now += TRIAL_SECONDS
        post = self.app.test_client().post
        return post(f"/predict{query}", data=self._picture, content_type="image/png").status_code

    def request_and_try(self):
        status = self.predict()
        self.checks.try_models()
        return status


@pytest.fixture
def living(declared, clock, cat):  # noqa: F811
    app, file = declared("tests.app.test_liveness:Whole")
    torch.save(nets.seeded(Faulty).state_dict(), file)
    service = Living(app, clock, cat)
    becomes(app, "ready")
    return service


@pytest.fixture
def does(monkeypatch):
    """Tell the model what to do before each pass."""
    return lambda do: monkeypatch.setattr(Whole, "do", staticmethod(do))


@pytest.fixture
def watched(engine_of, clock):  # noqa: F811
    """Return a function that makes an engine with a small model, and what tells whether it is broken."""

    def make(**options):
        module = Slow()
        engine = engine_of(lambda name: loaded(module, name), **options)
        engine.model("slow", Deadline.after(GUARD))
        return engine, Liveness(engine, 30.0, clock)

    return make


class Turns:
    """Holds up work again and again, each time until it has been looked at."""

    def __init__(self):
        self._running, self._turns = threading.Semaphore(0), threading.Semaphore(0)

    def pause(self):
        self._running.release()
        assert self._turns.acquire(timeout=GUARD)

    @contextmanager
    def paused(self):
        assert self._running.acquire(timeout=GUARD)
        yield
        self._turns.release()


def solo(work):
    return job(work=SoloComputation(work, None))


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
    leave_wrapper()
    assert [living.probe(path) for path in PROBES] == [200] * 5
    clock.now += CHANGED_SECONDS
    assert [living.probe(path) for path in PROBES] == [503] * 5
    response = living.app.test_client().get("/healthz")
    assert response.mimetype == "application/problem+json"
    assert response.get_json()["type"] == "urn:seewhy:problem:broken"
    assert "torch.nn.Module.__call__ has been changed for 10 s" in response.get_json()["detail"]
    assert living.app.test_client().get("/methods").status_code == 200


def test_a_change_that_comes_and_goes_breaks_nothing(living, clock, called):
    original = nn.Module.__call__
    for _ in range(3):
        leave_wrapper()
        assert living.probe() == 200
        nn.Module.__call__ = original
        clock.now += CHANGED_SECONDS
        assert living.probe() == 200


def test_what_a_model_changes_while_it_runs_and_puts_back_is_no_fault_however_busy_it_is(watched, clock):
    (engine, checks), turns = watched(max_batch=1), Turns()

    def change(*_):
        torch.set_default_dtype(torch.float64)
        try:
            turns.pause()
        finally:
            torch.set_default_dtype(torch.float32)

    for _ in range(3):
        engine.submit("slow", [solo(change)])
    for _ in range(3):
        with turns.paused():
            assert process_wide.changes() == ["torch.get_default_dtype()"]
            assert checks.faults() == []
            clock.now += CHANGED_SECONDS
            assert checks.faults() == []
    engine.stop(GUARD)


def test_what_a_model_leaves_changed_is_seen_between_its_turns_though_it_never_rests(watched, clock):
    (engine, checks), turns = watched(max_batch=1), Turns()

    def leave(*_):
        torch.set_default_dtype(torch.float64)
        turns.pause()

    try:
        for _ in range(3):
            engine.submit("slow", [solo(leave)])
        for faults in ([], [], ["torch.get_default_dtype() has been changed for 10 s, for all threads."]):
            with turns.paused():
                assert checks.faults() == faults
                clock.now += CHANGED_SECONDS
    finally:
        engine.stop(GUARD)
        torch.set_default_dtype(torch.float32)


def test_probes_do_not_wait_for_a_thread_that_traces(living, clock):
    with process_wide.exclusive(), ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            assert pool.submit(living.probe).result() == 200
            clock.now += CHANGED_SECONDS


class Ends(Observer):
    """Ends a model's thread once it has worked."""

    def model_idle(self, name, model):
        raise SystemExit


@pytest.mark.fault(
    "the thread of a model ends unexpectedly",
    "`/healthz` and `/readyz` return 503 `broken` with the reason; another process replaces this one",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("work", "stays"), [(EXPLAINED, None), (SoloComputation(lambda *_: None, None), "model-slow")], ids=["first", "own"]
)
def test_a_thread_that_has_ended_is_told_of(work, stays, watched):
    """Work of a few passes runs in a model's first thread, work of nobody knows how many in one of its own."""
    engine, living = watched(observer=Ends())
    assert living.faults() == []
    outcomes(engine, "slow", [job(work=work)])
    for thread in threading.enumerate():
        if thread.name.startswith("model-slow") and thread.name != stays:
            thread.join(GUARD)
    assert living.faults() == ["A thread of the model 'slow' has ended."]
    engine.stop(1)  # the thread that has ended never gives its turn back, so the other one cannot end


@pytest.mark.fault(
    "a pass of a model hangs forever",
    "504; after five times the deadline, `/healthz` and `/readyz` return 503 `broken` with the reason; another process "
    "replaces this one",
)
def test_a_pass_that_never_ends_is_told_of_and_one_of_many_is_not(watched, clock):
    (engine, living), turns = watched(clock=clock), Turns()

    def work(_model, _images, _targets, progress):
        for step in range(3):
            turns.pause()
            progress.report(step, 3)

    engine.submit("slow", [solo(work)])
    for faults in ([], [], ["A pass of the model 'slow' has not ended for 151 s."]):
        with turns.paused():
            clock.now += 151.0 if faults else 149.0
            assert living.faults() == faults
    until(lambda: engine.threads["slow"].idle)
    assert living.faults() == []
    engine.stop(GUARD)


def test_threads_that_are_stopped_or_could_not_load_are_not_lost(engine_of, clock):  # noqa: F811
    def load(name):
        if name == "bad":
            raise ModelError("no weights")
        return loaded(Slow(), name)

    engine = engine_of(load)
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


UNABLE = ["No model can classify an empty picture any more (RuntimeError: a model that raises)."]


@pytest.mark.fault(
    "all models fail where they worked before, as after the loss of a GPU",
    "500; after 30 s, `/healthz` and `/readyz` return 503 `broken` with the reason; another process replaces this one",
)
def test_models_that_can_do_nothing_any_more_are_told_of(living, does):
    does(fail)
    for _ in range(MOST_FAILED):
        assert living.checks.faults() == []
        assert living.request_and_try() == 500
    assert living.checks.faults() == UNABLE
    assert living.probe() == 503


@pytest.mark.parametrize(
    "trials",
    [(fail, fail, lambda: 1.0, fail, fail), [lambda: math.nan] * (MOST_FAILED + 1), [give_up] * (MOST_FAILED + 1)],
    ids=["one success", "NaN", "memory"],
)
def test_one_success_begins_anew_and_failures_of_a_known_kind_break_nothing(trials, living, does):
    for trial in trials:
        does(fail)
        assert living.predict() == 500
        does(trial)
        living.checks.try_models()
    assert living.checks.faults() == []


@pytest.mark.slow
def test_a_model_that_still_answers_keeps_the_process(living, does):
    assert living.predict("?model=efficientnet_lite0") == 200
    does(fail)
    for _ in range(MOST_FAILED + 1):
        assert living.request_and_try() == 500
    assert living.checks.faults() == []


def test_without_a_failed_request_or_too_soon_nothing_is_tried(living, clock, does):
    runs = []
    does(lambda: runs.append(None) or 1.0)
    assert living.request_and_try() == 200  # its first pass counts activations
    runs.clear()
    assert living.request_and_try() == 200
    assert len(runs) == 1
    does(lambda: runs.append(None) or fail())
    assert living.request_and_try() == 500
    assert len(runs) == 3
    clock.now -= TRIAL_SECONDS
    assert living.request_and_try() == 500
    assert len(runs) == 4


def test_a_broken_process_ends_itself_once(living, clock, called, monkeypatch, caplog):
    ends = []
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
    leave_wrapper()
    assert living.checks.faults() == []
    clock.now += CHANGED_SECONDS
    living.checks.watch(lambda: ends.append(None)).join(GUARD)
    assert len(ends) == 1
    assert "This process ends and will be replaced: torch.nn.Module.__call__" in caplog.text


def test_a_look_that_fails_does_not_end_the_watch(engine_of, clock, monkeypatch, caplog):  # noqa: F811
    ends = []
    checks = Liveness(engine_of(None), 30.0, clock)
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(checks, "faults", Mock(side_effect=[*[OSError("no file left")] * 2, ["It is broken."]]))
    checks.watch(lambda: ends.append(None)).join(GUARD)
    assert len(ends) == 1
    assert "The liveness check failed" in caplog.text


def test_streams_that_fail_are_counted_and_have_models_tried(living, clock, cat, does):
    does(fail)
    for _ in range(MOST_FAILED):
        assert living.checks.faults() == []
        clock.now += TRIAL_SECONDS
        data = {"image": (io.BytesIO(cat), "cat.png")}
        with living.app.test_client().post("/explain", data=data, headers={"Accept": "text/event-stream"}) as streamed:
            assert streamed.status_code == 200
            assert "event: error" in streamed.get_data(as_text=True)
        living.checks.try_models()
    assert living.checks.faults() == UNABLE
    metrics = living.app.test_client().get("/metrics").get_data(as_text=True)
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
    models = declare(tmp_path, "tests.app.test_liveness:Meets", names)
    app = create_app(Settings(models=models, default_model="first", max_models=2))
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
        near = [row | {"probability": pytest.approx(row["probability"], 1e-4)} for row in expected]
        assert [response.get_json()["predictions"] for response in answers] == [near] * len(answers)
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
