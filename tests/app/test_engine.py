import gc
import itertools
import math
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from seewhy.app.errors import ClientGoneError, DeadlineError, OutOfMemoryError, OverloadedError, kind_of
from seewhy.app.pipeline.computation import ExplainComputation, SoloComputation
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.pipeline.model_threads import EngineOptions
from seewhy.explainers import GradCAM
from seewhy.explainers.core.ask import NO_CONTRAST, Ask
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import ExplainerError, LayerError, OptionError, TargetError
from seewhy.explainers.hooks.registered import count_hooks
from seewhy.explainers.inspection.capture import Capture, capture_images
from seewhy.explainers.inspection.edits import parse_edits
from seewhy.explainers.inspection.intervene import edit_images
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.gradient.input_gradient import SmoothGrad
from seewhy.explainers.tasks.pose import survey
from seewhy.models import LoadedModel, ModelError, Preprocess
from seewhy.models.spec import ModelSpec
from tests import nets
from tests.grids import few
from tests.waiting import GUARD, until


def allocate():
    """Ask for more memory than there is anywhere."""
    torch.empty(2**58)


def give_up():
    raise MemoryError


def out_of_cuda_memory():
    """Raise what PyTorch raises for a GPU, in words that say nothing."""
    raise torch.OutOfMemoryError("Tried more than there is.")


class Slow(nn.Module):
    """A classifier that can be held up, counts its passes, fails on pictures of NaN, and on batches that do not fit."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.held = 0.0
        self.fits = 100
        self.runs_out = allocate
        self.batches = []
        self.threads = set()

    def forward(self, images):
        self.entered.set()
        self.gate.wait(GUARD)
        time.sleep(self.held)
        self.batches.append(len(images))
        if len(images) > self.fits:
            self.runs_out()
        self.threads.add(threading.get_ident())
        if torch.isnan(images).any():
            raise RuntimeError("a bad picture")
        return self.head(self.conv(images).relu().mean(dim=(2, 3)))


def loaded(module, name="slow"):
    spec = ModelSpec(name, "own", "", Preprocess((8, 8), (8, 8)), ("a", "b"), lambda: module, lambda *_: None, None)
    layers = survey(module, spec.image_shape)
    module.batches.clear()
    module.threads.clear()
    return LoadedModel(spec, module.eval(), layers, torch.device("cpu"), None, None)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Slow()


@pytest.fixture
def engine_of():
    """Make engines of the models that a function loads."""
    engines = []

    def make(load, max_models=1, max_batch=4, queue_size=16, **options):
        engines.append(Engine(EngineOptions(load, max_models, max_batch, queue_size, **options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


@pytest.fixture
def engine(engine_of, module):
    yield engine_of(lambda name: loaded(module, name), max_models=2, queue_size=6)
    module.gate.set()


EXPLAINED = ExplainComputation((GradCAM(layers=("conv",)),))


def job(value=1.0, target=0, work=EXPLAINED, deadline=None, against=None):
    ask = Ask.single(target, against)
    return Job(work, torch.full((3, 8, 8), value), ask, deadline or Deadline.after(GUARD))


def outcomes(engine, name, jobs):
    """Queue jobs for a model together, and wait for all of them."""
    engine.submit(name, jobs)
    try:
        return [job.result() for job in jobs]
    finally:
        for job in jobs:
            job.abandon()


def answers(engine):
    """Whether the model finds a map."""
    return outcomes(engine, "slow", [job()])[0].result[0].maps.isfinite().all()


def in_threads(*calls):
    """Run the calls at once; return what each returned or raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


@contextmanager
def hold(engine, module):
    """Occupy the model's thread, until the end of the block."""
    engine.model("slow", Deadline.after(GUARD))
    module.gate.clear()
    module.entered.clear()
    occupying = job()
    engine.submit("slow", [occupying])
    assert module.entered.wait(GUARD)
    try:
        yield
    finally:
        module.gate.set()
    occupying.result()


def test_each_caller_gets_the_answer_to_its_own_question(engine):
    questions = [(0.5 + 0.1 * number, number % 2) for number in range(6)]
    alone = [outcomes(engine, "slow", [job(*question)])[0] for question in questions]
    together = in_threads(*(lambda q=question: outcomes(engine, "slow", [job(*q)])[0] for question in questions))
    for expected, outcome in zip(alone, together, strict=True):
        torch.testing.assert_close(expected.result[0].maps, outcome.result[0].maps)
        torch.testing.assert_close(expected.result[0].logits, outcome.result[0].logits)


def test_what_waits_shares_a_batch_whatever_its_targets(engine, module):
    jobs = [job(target=target) for target in (0, 1, None, 1)]
    with hold(engine, module):
        engine.submit("slow", jobs)
    assert all(task.result() for task in jobs)
    assert module.batches == [1, 4]


def test_batches_are_bounded(engine, module):
    outcomes(engine, "slow", [job() for _ in range(6)])
    assert module.batches == [4, 2]


def test_one_thread_runs_the_model(engine, module):
    in_threads(*(lambda: outcomes(engine, "slow", [job()]) for _ in range(5)))
    assert len(module.threads) == 1
    assert threading.get_ident() not in module.threads


@pytest.mark.fault("a model that fails for one picture of a batch", "an error for this picture; the others are handled")
def test_a_bad_picture_does_not_take_its_neighbours_down(engine, module):
    good, bad = job(), job(value=float("nan"))
    with hold(engine, module):
        engine.submit("slow", [good, bad])
    with pytest.raises(RuntimeError, match="a bad picture"):
        bad.result()
    assert good.result().result[0].maps.shape == (1, 6, 6)
    assert answers(engine)


def test_a_full_queue_refuses_at_once_and_queues_none_of_the_request(engine, module):
    with hold(engine, module), pytest.raises(OverloadedError):
        outcomes(engine, "slow", [job() for _ in range(7)])
    assert module.batches == [1]


@pytest.mark.parametrize(
    ("deadline", "error"),
    [(lambda: Deadline.after(0.05), DeadlineError), (lambda: Deadline.after(GUARD, lambda: True), ClientGoneError)],
    ids=["its deadline is past", "its client is gone"],
)
def test_jobs_that_are_given_up_leave_the_queue_and_never_run(deadline, error, engine, module):
    jobs = [job() for _ in range(6)]
    with hold(engine, module):
        with pytest.raises(error):
            outcomes(engine, "slow", [job(deadline=deadline()) for _ in range(6)])
        engine.submit("slow", jobs)
    assert all(task.result() for task in jobs)
    assert module.batches == [1, 4, 2]


@pytest.mark.parametrize("seconds", [0.0, GUARD], ids=["its deadline is past", "its client is gone"])
def test_a_job_that_is_wanted_no_more_never_runs_even_if_nobody_gave_it_up(engine, module, seconds):
    orphan = job(deadline=Deadline.after(seconds, lambda: seconds > 1))
    with hold(engine, module):
        engine.submit("slow", [orphan])
    outcomes(engine, "slow", [job()])
    assert module.batches == [1, 1]
    assert not orphan.future.done()


@pytest.mark.fault("a model that cannot be loaded", "the error; the next request tries again")
def test_a_model_that_failed_to_load_is_tried_again(engine_of, module):
    engine = engine_of(Mock(side_effect=[RuntimeError("not yet"), loaded(module)]))
    with pytest.raises(RuntimeError, match="not yet"):
        engine.model("slow", Deadline.after(GUARD))
    assert engine.loaded("slow") is None
    assert engine.model("slow", Deadline.after(GUARD)).name == "slow"


def test_requests_for_a_new_model_load_it_once(engine_of, module):
    loads = []

    def load(name):
        loads.append(name)
        time.sleep(0.1)  # what must not happen has no event: a moment in which others could load it too
        return loaded(module, name)

    engine = engine_of(load)
    in_threads(*(lambda: outcomes(engine, "slow", [job()]) for _ in range(6)))
    assert loads == ["slow"]


def test_when_a_model_last_worked(engine, module):
    assert engine.worked == -math.inf
    before = time.monotonic()
    with hold(engine, module):
        for _ in range(2):
            now = time.monotonic()
            assert engine.worked >= now
    until(lambda: engine.threads["slow"].idle)
    ended = time.monotonic()
    assert before < now < engine.worked <= ended
    engine.model("other", Deadline.after(GUARD))
    assert ended < engine.worked < time.monotonic()


def test_the_least_recently_used_idle_model_makes_room(engine_of):
    engine = engine_of(lambda name: loaded(Slow(), name), max_models=2)
    for name in ("a", "b", "a", "c"):
        outcomes(engine, name, [job()])
    assert [engine.loaded(name) is not None for name in "abc"] == [True, False, True]


@pytest.mark.fault("a model that ends the program (`sys.exit`)", "500 for that request, nothing else")
def test_a_model_that_calls_exit_fails_its_request_and_nothing_else(engine, module, monkeypatch, caplog):
    outcomes(engine, "slow", [job()])
    monkeypatch.setattr(module.head, "forward", Mock(side_effect=SystemExit(3)))
    with pytest.raises(ExplainerError, match="SystemExit"):
        outcomes(engine, "slow", [job()])
    monkeypatch.undo()
    assert "A model failed" in caplog.text
    caplog.clear()  # its record keeps the traceback, and that the tensors
    assert answers(engine)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(SystemExit(3), ModelError("SystemExit")), (TimeoutError("a download, say"), TimeoutError("a download, say"))],
    ids=["exits", "times out"],
)
def test_a_loader_that_exits_or_times_out_has_failed_and_is_not_still_loading(failure, error, engine_of):
    engine = engine_of(Mock(side_effect=failure))
    with pytest.raises(type(error), match=str(error)):
        engine.model("slow", Deadline.after(GUARD))


def test_a_bad_layer_fails_the_whole_batch_in_one_pass(engine, module):
    engine.model("slow", Deadline.after(GUARD))
    with pytest.raises(LayerError):
        outcomes(engine, "slow", [job(work=ExplainComputation((GradCAM(layers=("head",)),))) for _ in range(4)])
    assert len(module.batches) <= 1


def test_more_models_than_may_be_kept_are_refused_while_all_work(engine_of, module):
    engine = engine_of(lambda name: loaded(module, name))
    with hold(engine, module), pytest.raises(OverloadedError, match="All models"):
        outcomes(engine, "other", [job()])
    until(lambda: engine.threads["slow"].idle)
    outcomes(engine, "other", [job()])
    assert engine.loaded("slow") is None


def test_models_that_make_room_for_each_other_under_load_lose_no_request(engine_of):
    engine = engine_of(lambda name: loaded(Slow(), name))

    def ask(name):
        for _ in range(200):
            try:
                return outcomes(engine, name, [job()])[0]
            except OverloadedError:
                time.sleep(0.01)
        raise AssertionError("never answered")

    outcomes_of_all = in_threads(*(lambda name=name: ask(name) for name in "abab" * 3))
    assert [type(outcome).__name__ for outcome in outcomes_of_all] == ["Outcome"] * 12


def test_a_failed_model_is_not_kept_in_memory(engine_of):
    modules = []

    def load(name):
        module = Slow()
        modules.append(weakref.ref(module))
        try:
            raise RuntimeError("inner")
        except RuntimeError as error:
            raise ModelError("bad weights") from error

    engine = engine_of(load)
    with pytest.raises(ModelError):
        engine.model("slow", Deadline.after(GUARD))
    gc.collect()
    assert modules[0]() is None


def test_a_failure_is_kept_without_what_those_who_waited_for_the_model_hold(engine_of):
    engine = engine_of(Mock(side_effect=OptionError("bad weights", "name")))
    uploads = []

    def ask(raises):
        upload = Slow()
        uploads.append(weakref.ref(upload))
        raises()

    def tell():
        raise engine.failure("slow")

    for raises in (lambda: engine.model("slow", Deadline.after(GUARD)), tell):
        with pytest.raises(OptionError, match="bad weights") as caught:
            ask(raises)
        assert caught.value.field == "name"
        del caught
    gc.collect()
    assert [upload() for upload in uploads] == [None, None]
    assert str(engine.failure("slow")) == "bad weights"


def test_a_model_that_failed_takes_the_room_of_no_other(engine_of, module):
    def load(name):
        if name == "bad":
            raise ModelError("bad weights")
        return loaded(module, name)

    engine = engine_of(load, max_models=2)
    for name in ("first", "bad", "second"):
        with suppress(ModelError):
            engine.model(name, Deadline.after(GUARD))
    assert [engine.loaded(name) is not None for name in ("first", "bad", "second")] == [True, False, True]
    assert str(engine.failure("bad")) == "bad weights"


class Fake:
    """Work of a number of passes that nobody knows before."""

    runs_whole = True
    part = None

    def passes(self, model):
        return None

    def most(self, model):
        return None


@dataclass(frozen=True)
class ManyPasses(Fake):
    """Runs a hundred passes, and is held up before each."""

    def run(self, model, images, ask, progress):
        for done in range(100):
            progress.at(done, 100)
            model.module(images)
        return [None] * len(images)


class Over(Deadline):
    """A deadline that is over once something has happened."""

    def __init__(self, happened):
        super().__init__(time.monotonic() + GUARD)
        vars(self).update(happened=happened)

    @property
    def remaining(self):
        return float(not self.happened())


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (Over, DeadlineError, r"About \d+ % of the work was done"),
        (lambda happened: Deadline.after(GUARD, happened), ClientGoneError, "closed its connection"),
    ],
    ids=["its deadline is past", "its client is gone"],
)
def test_what_nobody_waits_for_ends_before_its_next_pass(end, error, message, engine, module):
    engine.model("slow", Deadline.after(GUARD))
    module.held = 0.02
    with pytest.raises(error, match=message):
        outcomes(engine, "slow", [job(work=ManyPasses(), deadline=end(lambda: len(module.batches) >= 4))])
    assert answers(engine)
    assert 4 <= len(module.batches) < 60


def test_a_batch_goes_on_while_one_of_its_jobs_is_wanted(engine, module):
    short = job(work=ManyPasses(), deadline=Over(lambda: len(module.batches) >= 9))
    long = job(work=ManyPasses())
    module.held = 0.01
    with hold(engine, module):
        engine.submit("slow", [short, long])
    with pytest.raises(DeadlineError):
        short.result()
    assert long.result().result is None
    assert long.progress.passes == (99, 100)


def test_jobs_with_and_without_a_contrast_share_a_batch(engine, module):
    def questions():
        return [job(0.4, 0), job(0.5, 0, against=1), job(0.6, None), job(0.7, 1, against=0)]

    alone = [outcomes(engine, "slow", [question])[0].result[0] for question in questions()]
    module.batches.clear()
    together = [outcome.result[0] for outcome in outcomes(engine, "slow", questions())]
    assert module.batches == [4]
    for expected, result in zip(alone, together, strict=True):
        torch.testing.assert_close(expected.maps, result.maps)
        assert int(expected.targets) == int(result.targets)
    assert [int(result.against) for result in together] == [NO_CONTRAST, 1, NO_CONTRAST, 0]


def test_a_busy_model_waits_a_moment_for_its_next_batch_to_fill_and_an_idle_one_does_not(engine_of, module):
    engine = engine_of(lambda name: loaded(module, name), max_wait=GUARD)
    first = [job(), job(target=None)]
    with hold(engine, module):
        engine.submit("slow", first)
    assert not first[0].future.done()
    outcomes(engine, "slow", [job(), job()])
    assert all(task.result() for task in first)
    assert module.batches == [1, 4]
    outcomes(engine, "slow", [job()])  # or it would be too late for its deadline


def test_a_model_with_a_full_queue_does_not_keep_another_one_waiting(engine_of):
    modules = {"busy": Slow(), "other": Slow()}
    engine = engine_of(lambda name: loaded(modules[name], name), max_models=2, max_batch=1, queue_size=64)
    for name, module in modules.items():
        outcomes(engine, name, [job()])
        module.batches.clear()
    modules["busy"].held = 0.01
    jobs = [job() for _ in range(40)]
    engine.submit("busy", jobs)
    until(lambda: modules["busy"].batches)
    modules["busy"].gate.clear()
    outcomes(engine, "other", [job()])
    assert len(modules["busy"].batches) < 40
    modules["busy"].gate.set()
    assert all(task.result() for task in jobs)
    assert len(modules["busy"].batches) == 40


class TimesOut(Fake):
    """Work that raises what futures raise when they are waited for in vain."""

    def run(self, model, images, ask, progress):
        raise TimeoutError("a socket, say")


def test_a_timeout_in_the_work_itself_is_its_error_and_not_waited_for(engine):
    deadline = Deadline.after(GUARD)
    with pytest.raises(TimeoutError, match="a socket"):
        outcomes(engine, "slow", [job(work=TimesOut(), deadline=deadline)])
    assert deadline.remaining


def test_a_deadline_is_over_when_the_client_is_gone():
    with pytest.raises(ClientGoneError):
        Deadline.after(30, lambda: True).check()
    with pytest.raises(DeadlineError):
        Deadline.after(0).check()


def test_a_bad_contrast_does_not_take_the_others_apart(engine, module):
    contrasted = [job(0.5, None, against=against) for against in (0, 1)]
    plain = [job(value) for value in (0.5, 0.6)]
    engine.submit("slow", [*plain, *contrasted])
    failed = [task.future.exception(GUARD) for task in contrasted]
    assert [type(error) for error in failed].count(TargetError) == 1  # the most probable class, contrasted with itself
    assert all(task.result().result[0].maps.isfinite().all() for task in plain)
    assert module.batches == [4, 2, 1, 1]


@pytest.mark.fault("too little memory for a batch", "nothing; the batch runs in parts")
@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_is_too_small_batches_become_smaller(runs_out, engine, module):
    expected = [outcomes(engine, "slow", [job(value)])[0].result[0].maps for value in (0.5, 0.6, 0.7)]
    module.runs_out, module.fits = runs_out, 1
    module.batches.clear()
    result = outcomes(engine, "slow", [job(value) for value in (0.5, 0.6, 0.7)])
    assert module.batches == [3, 1, 1, 1]
    for outcome, maps in zip(result, expected, strict=True):
        torch.testing.assert_close(outcome.result[0].maps, maps)


@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_is_too_small_passes_of_one_picture_become_smaller(runs_out, engine, module):
    def smoothed():
        return outcomes(engine, "slow", [job(work=ExplainComputation((SmoothGrad(samples=5),)))])[0].result[0].maps

    engine.model("slow", Deadline.after(GUARD))
    module.runs_out, module.fits = runs_out, 1
    maps = smoothed()
    assert set(module.batches[-6:]) == {1}
    module.fits = 100
    torch.testing.assert_close(maps, smoothed())


@pytest.mark.fault(
    "too little memory for a single picture (`MemoryError`, or out of memory on a GPU)",
    "503; the next request is handled",
)
@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_does_not_suffice_for_one_picture_it_is_said_and_the_next_is_answered(runs_out, engine, module):
    engine.model("slow", Deadline.after(GUARD))
    module.runs_out, module.fits = runs_out, 0
    with pytest.raises(OutOfMemoryError, match="one picture per pass"):
        outcomes(engine, "slow", [job()])
    assert kind_of(OutOfMemoryError("")).status == 503
    module.fits = 100
    assert answers(engine)


class Stage:
    """Where fake work runs, on a clock that goes by passes: notes who did each, and that nobody else was at it."""

    def __init__(self, engine_of, module):
        self.passes, self.now, self.jobs = [], 0.0, []
        self._at_it = threading.Lock()
        self.underway, self.most_underway = set(), 0
        self.engine = engine_of(lambda name: loaded(module, name), queue_size=64, clock=lambda: self.now)
        self.engine.model("staged", Deadline.after(GUARD))

    def step(self, name):
        assert self._at_it.acquire(blocking=False), "two threads run the model at once"
        self.passes.append(name)
        self.now += 1
        self._at_it.release()

    def submit(self, *works, seconds=GUARD):
        jobs = [job(0.0, 0, work, Deadline.after(seconds)) for work in works]
        self.jobs += jobs
        for task in jobs:
            self.engine.submit("staged", [task])
        return jobs

    def end(self, jobs):
        """Wait for jobs, and then for the model to rest."""
        entries = [task.future.exception(GUARD) for task in jobs]
        worker = self.engine._threads["staged"]
        with worker._changed:
            assert worker._changed.wait_for(lambda: not worker._batches and not worker._waiting, GUARD)
        return entries

    def run(self, first, at, *others):
        """Run some work, and others that come at one of its passes; return what each failed with."""

        def during(done):
            if done == at:
                self.submit(*others)
            if first.during:
                first.during(done)

        self.submit(replace(first, during=during))
        self.jobs[0].future.exception(GUARD)  # by then all have come
        return self.end(self.jobs)

    def last(self, name):
        """Return how many passes there were until the last of some work."""
        return len(self.passes) - self.passes[::-1].index(name)


@pytest.fixture
def stage(engine_of, module):
    new_stage = Stage(engine_of, module)
    yield new_stage
    new_stage.engine.stop(10)


@dataclass(frozen=True, eq=False)
class Steps(Fake):
    """Reports before each of so many passes, and does in each what a test wants."""

    stage: Stage
    name: str
    total: int
    cost: Passes | None = None
    during: object = None

    def passes(self, model):
        return self.cost

    def run(self, model, images, ask, progress):
        self.stage.underway.add(self.name)
        self.stage.most_underway = max(self.stage.most_underway, len(self.stage.underway))
        try:
            for done in range(self.total):
                progress.at(done, self.total)
                self.stage.step(self.name)
                if self.during:
                    self.during(done)
            progress.at(self.total, self.total)
        finally:
            self.stage.underway.discard(self.name)
        return [self.name] * len(images)


LONG, MEDIUM, SHORT = Passes(5000), Passes(200), Passes(1, 1)


@pytest.mark.parametrize("cost", [LONG, MEDIUM, None, SHORT], ids=["long", "medium", "unknown", "it said it is short"])
def test_short_work_does_not_wait_for_the_end_of_long_work(stage, cost):
    assert stage.run(Steps(stage, "long", 100, cost), 50, Steps(stage, "short", 1, SHORT)) == [None] * 2
    assert stage.passes.count("long") == 100
    assert 50 <= stage.passes.index("short") <= 53


def test_long_work_ends_however_much_short_work_comes(stage):
    def keep_asking(done):
        """Have eight pieces of short work wait for as long as the long one is under way."""
        while "long" in stage.underway and len(stage.engine._threads["staged"]._waiting) < 8:
            stage.submit(Steps(stage, "short", 1, SHORT, keep_asking))

    assert stage.end(stage.submit(Steps(stage, "long", 100, LONG, keep_asking))) == [None]
    assert {*stage.end(stage.jobs)} == {None}
    last = stage.last("long")
    assert stage.passes[:last].count("long") / last == pytest.approx(1 / 3, abs=0.05)


def test_long_batches_take_turns(stage):
    assert stage.run(Steps(stage, "a", 50, LONG), 9, Steps(stage, "b", 20, LONG)) == [None] * 2
    assert stage.passes[:10] == ["a"] * 10
    shared = stage.passes[10:50]
    assert shared.count("b") == 20
    assert all(earlier != later for earlier, later in itertools.pairwise(shared))
    assert stage.passes[50:] == ["a"] * 20


def test_only_so_many_long_batches_are_under_way_and_all_end(stage):
    others = [Steps(stage, f"long {number}", 10, LONG) for number in range(6)]
    assert stage.run(Steps(stage, "first", 10, LONG), 0, *others) == [None] * 7
    assert stage.most_underway == 2
    assert len(stage.passes) == 70


def test_medium_work_does_not_wait_for_long_work_that_waits(stage):
    others = [Steps(stage, f"long {number}", 50, LONG) for number in range(4)]
    medium = Steps(stage, "medium", 5, MEDIUM)
    assert stage.run(Steps(stage, "first", 50, LONG), 0, *others, medium) == [None] * 6
    assert stage.passes.index("medium") < 5
    assert stage.last("medium") < 20


def test_a_batch_that_fails_gives_its_turn_back(stage):
    def fail(done):
        if done == 5:
            raise ValueError("broken")

    errors = stage.run(Steps(stage, "bad", 100, LONG, fail), 0, Steps(stage, "other", 20, LONG))
    assert [str(error) for error in errors] == ["broken", "None"]
    assert stage.passes.count("other") == 20


def test_work_that_turns_out_to_be_clearly_too_slow_ends_early_and_says_how_long_it_would_take(stage):
    """Each pass takes a second, so that all take 100."""
    (error,) = stage.end(stage.submit(Steps(stage, "slow", 100, LONG), seconds=70))
    assert isinstance(error, DeadlineError)
    assert re.search(r"would not be ready within .*: the rest takes about 9\d s, and (69|70) s are left", str(error))
    assert 5 <= stage.passes.count("slow") <= 7
    assert stage.end(stage.submit(Steps(stage, "in time", 100, LONG), seconds=90)) == [None]
    assert stage.passes.count("in time") == 100


def test_a_batch_that_nobody_waits_for_ends_while_another_one_runs(stage):
    def leave(done):
        if done == 5:
            stage.jobs[0].abandon()

    left, other = stage.run(Steps(stage, "left", 1000, LONG), 0, Steps(stage, "other", 50, LONG, leave))
    assert (type(left), other) == (DeadlineError, None)
    assert 5 <= stage.passes.count("left") <= 7
    assert stage.passes.count("other") == 50


def test_the_threads_of_a_model_end_with_its_last_batch(stage):
    jobs = stage.submit(*(Steps(stage, f"long {number}", 20, LONG) for number in range(4)))
    stage.engine.stop(GUARD)
    assert [task.future.exception(0) for task in jobs] == [None] * 4
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("model-staged")]


def test_many_threads_ask_and_one_at_a_time_runs_the_model(stage):
    costs = (LONG, MEDIUM, SHORT, None)

    def ask(number):
        jobs = stage.submit(*(Steps(stage, f"{number} {turn}", 7, costs[(number + turn) % 4]) for turn in range(8)))
        return [task.future.exception(60) for task in jobs]

    assert in_threads(*(lambda number=number: ask(number) for number in range(6))) == [[None] * 8] * 6
    assert len(stage.passes) == 6 * 8 * 7


def test_equal_work_shares_a_batch_also_where_it_is_long(stage):
    work = Steps(stage, "long", 10, LONG)
    assert stage.run(Steps(stage, "first", 3, SHORT), 0, work, work, work) == [None] * 4
    assert stage.passes.count("long") == 10


def test_what_cannot_be_done_in_time_after_what_is_ahead_is_refused_with_the_time_to_come_back(stage):
    refused = []

    def ask(done):
        if done == 0:
            stage.engine.pace("staged").learn(Passes(1000), 10.0)  # 50 s for each of these
            stage.submit(Steps(stage, "second", 1, LONG), seconds=70)
            with pytest.raises(OverloadedError) as caught:
                stage.submit(Steps(stage, "third", 1, LONG), seconds=70)
            refused.append(caught.value)
            stage.jobs.pop()
            stage.submit(Steps(stage, "patient", 1, LONG), seconds=1000)
            stage.submit(Steps(stage, "short", 1, SHORT), seconds=70)

    stage.end(stage.submit(Steps(stage, "first", 2, Passes(1000), ask)))
    assert stage.end(stage.jobs) == [None] * 4
    assert "110 s" in str(refused[0])
    assert 5 <= refused[0].retry_after <= 60


def small_model():
    module = nets.seeded(nets.Net)
    spec = ModelSpec("net", "own", "", Preprocess((16, 16), (16, 16)), ("a", "b", "c"), nets.Net, lambda *_: None, None)
    return LoadedModel(spec, module.eval(), survey(module, spec.image_shape), torch.device("cpu"), None, None)


def short_works():
    """Return what looks at layers, forward and backward, in a pass or two."""
    yield ExplainComputation((GradCAM(layers=("conv",)),))
    yield ExplainComputation((METHODS["lrp"].build({}),))
    yield ExplainComputation((METHODS["fullgrad"].build({}),))
    kinds = ("output", "grad_output")
    yield SoloComputation(
        lambda model, images, *_: capture_images(model, images, ("*",), kinds, Ask.single(0), 2**20), Passes(2, 1)
    )


def edited(model, images, ask, progress):
    """Return the map of RISE while an edit is in place, whose session stays open between its passes."""
    edits = parse_edits([{"layer": "conv", "op": "scale", "value": 0.5}])
    rise = METHODS["rise"].build({"samples": 40, "cells": 3})
    return [edit_images(model, images, edits, rise, ask, progress=progress).after]


LONG_WORKS = {
    "rise": {"samples": 40, "cells": 3},
    "integrated-gradients": {"steps": 12},
    "smoothgradcam++": {"samples": 12, "layers": "conv"},
    "ablationcam": {"layers": "conv"},
    "scorecam": {"layers": "stem"},
    "extremal-perturbation": {"steps": 6, "cells": 6},
    "dff": {"layers": "stem", "iterations": 4},
    "an intervention": {},
}


def values_of(result):
    """Return the tensors in what a job came to."""
    return list(result.arrays.values()) if isinstance(result, Capture) else [explanation.maps for explanation in result]


def same(task, expected):
    """Whether two jobs came to the same, to a ten-thousandth of the largest value."""
    pairs = zip(values_of(task.future.result(30).result), values_of(expected), strict=True)
    return all(nets.relative_error(maps, reference) < 1e-4 for maps, reference in pairs)


@pytest.mark.parametrize("name", few(LONG_WORKS, ["rise", "ablationcam", "an intervention"]))
def test_what_runs_between_the_passes_of_another_batch_is_answered_as_if_it_were_alone(name):
    model = small_model()
    engine = Engine(EngineOptions(lambda _: model, 1, max_batch=4, queue_size=200))
    picture = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(3))
    requests = []

    def ask(work):
        task = Job(work, picture, Ask.single(1), Deadline.after(GUARD))
        engine.submit("net", [task])
        return task

    def explained(model, images, about, progress):
        if name == "an intervention":
            return edited(model, images, about, progress)
        explainer = METHODS[name].build(LONG_WORKS[name])
        return [explainer.explain(model, images, about.targets, progress=progress)]

    def interrupted(model, images, about, progress):
        def report(done, total):
            requests.append([ask(work) for work in short_works()])
            progress.report(done, total)

        return explained(model, images, about, replace(progress, report=report))

    engine.model("net", Deadline.after(GUARD))
    alone = [ask(SoloComputation(explained, None)), *(ask(work) for work in short_works())]
    long_alone, *short_alone = [task.future.result(30).result for task in alone]
    long = ask(SoloComputation(interrupted, None))
    assert same(long, long_alone)
    assert len(requests) > 1
    for round_of in requests:
        for task, expected in zip(round_of, short_alone, strict=True):
            assert same(task, expected)
    engine.stop(20)
    assert count_hooks(model.module) == 0
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_a_thread_that_cannot_start_fails_its_job_alone_and_leaves_the_turn_to_the_rest(stage, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "model-staged-long":
            raise RuntimeError("can't start new thread")
        start(thread)

    long, short = Steps(stage, "long", 1, LONG), Steps(stage, "short", 1, SHORT)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    (alone,) = stage.submit(long)
    assert isinstance(alone.future.exception(GUARD), OverloadedError)
    stage.jobs.clear()
    errors = stage.run(Steps(stage, "medium", 20, MEDIUM), 5, long, short)
    assert [type(error) for error in errors] == [type(None), OverloadedError, type(None)]
    assert not stage.engine.threads["staged"].lost
    monkeypatch.undo()
    assert stage.end(stage.submit(long)) == [None]


def test_a_model_whose_thread_cannot_start_is_refused_and_tried_again(engine, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(OverloadedError, match="another thread"):
        engine.model("slow", Deadline.after(GUARD))
    monkeypatch.undo()
    assert engine.model("slow", Deadline.after(GUARD)).name == "slow"
