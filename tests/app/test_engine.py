import contextlib
import gc
import math
import threading
import time
import weakref
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from app.engine import Deadline, Engine, Job
from app.errors import ClientGoneError, DeadlineError, OutOfMemoryError, OverloadedError, kind_of
from app.work import Explain
from explainers import GradCAM
from explainers.errors import ExplainerError, LayerError, OptionError, TargetError
from explainers.goals import NO_CONTRAST
from explainers.layers import survey
from explainers.methods.input_gradient import SmoothGrad
from models import LoadedModel, ModelError, Preprocess
from models.spec import ModelSpec


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
        self.gate.wait(10)
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
    found = survey(module, spec.image_shape)
    module.batches.clear()
    module.threads.clear()
    return LoadedModel(spec, module.eval(), found, torch.device("cpu"), None, None)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Slow()


@pytest.fixture
def engine(module):
    made = Engine(lambda name: loaded(module, name), max_models=2, max_batch=4, queue_size=6)
    yield made
    module.gate.set()
    made.stop()


def job(value=1.0, target=0, seconds=10.0):
    return Job(Explain((GradCAM(layers=("conv",)),)), torch.full((3, 8, 8), value), target, Deadline.after(seconds))


def in_threads(*calls):
    """Run the calls at once; return what each returned or raised."""
    results = [None] * len(calls)

    def run(place, call):
        try:
            results[place] = call()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def hold(engine, module):
    """Occupy the model's thread; return the thread that waits for it."""
    engine.model("slow", Deadline.after(10))
    module.gate.clear()
    module.entered.clear()
    occupying = threading.Thread(target=lambda: engine.run("slow", [job()]))
    occupying.start()
    module.entered.wait(10)
    return occupying


def test_each_caller_gets_the_answer_to_its_own_question(engine):
    questions = [(0.5 + 0.1 * number, number % 2) for number in range(6)]
    alone = [engine.run("slow", [job(*question)])[0] for question in questions]
    together = in_threads(*(lambda q=question: engine.run("slow", [job(*q)])[0] for question in questions))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.result[0].maps, other.result[0].maps)
        torch.testing.assert_close(one.result[0].logits, other.result[0].logits)


def test_what_waits_shares_a_batch_whatever_its_targets(engine, module):
    occupying = hold(engine, module)
    jobs = [job(target=target) for target in (0, 1, None, 1)]
    waiting = threading.Thread(target=lambda: engine.run("slow", jobs))
    waiting.start()
    module.gate.set()
    waiting.join()
    occupying.join()
    assert module.batches == [1, 4]


def test_batches_are_bounded(engine, module):
    engine.run("slow", [job() for _ in range(6)])
    assert module.batches == [4, 2]


def test_one_thread_runs_the_model(engine, module):
    in_threads(*(lambda: engine.run("slow", [job()]) for _ in range(5)))
    assert len(module.threads) == 1
    assert threading.get_ident() not in module.threads


@pytest.mark.fault(
    "a model that raises at one picture of a batch",
    "the error for that one; the others are answered",
)
def test_a_bad_picture_does_not_take_its_neighbours_down(engine, module):
    occupying = hold(engine, module)
    good, bad = job(), job(value=float("nan"))
    results = []
    waiting = threading.Thread(target=lambda: results.extend(in_threads(lambda: engine.run("slow", [good, bad]))))
    waiting.start()
    time.sleep(0.05)
    module.gate.set()
    waiting.join()
    occupying.join()
    assert isinstance(results[0], RuntimeError)
    assert good.future.result().result[0].maps.shape == (1, 6, 6)
    assert engine.run("slow", [job()])[0].result[0].maps.isfinite().all()


def test_a_full_queue_refuses_at_once_and_queues_none_of_the_request(engine, module):
    occupying = hold(engine, module)
    with pytest.raises(OverloadedError):
        engine.run("slow", [job() for _ in range(7)])
    module.gate.set()
    occupying.join()
    assert module.batches == [1]


def test_a_job_past_its_deadline_is_given_up_and_never_run(engine, module):
    occupying = hold(engine, module)
    with pytest.raises(DeadlineError):
        engine.run("slow", [job(seconds=0.05)])
    module.gate.set()
    occupying.join()
    engine.run("slow", [job()])
    assert module.batches == [1, 1]


@pytest.mark.parametrize("seconds", [0.05, 10.0], ids=["its deadline is past", "its client is gone"])
def test_a_job_that_is_wanted_no_more_never_runs_even_if_nobody_gave_it_up(engine, module, seconds):
    occupying = hold(engine, module)
    left = replace(job(), deadline=Deadline.after(seconds, lambda: seconds > 1))
    engine.submit("slow", [left])
    time.sleep(0.1)
    module.gate.set()
    occupying.join()
    engine.run("slow", [job()])
    assert module.batches == [1, 1]
    assert not left.future.done()


@pytest.mark.fault(
    "a model that cannot be loaded",
    "its error; the next request tries again",
)
def test_a_model_that_failed_to_load_is_tried_again(module):
    attempts = []

    def load(name):
        attempts.append(name)
        if len(attempts) == 1:
            raise RuntimeError("not yet")
        return loaded(module, name)

    engine = Engine(load, max_models=2, max_batch=4, queue_size=4)
    with pytest.raises(RuntimeError, match="not yet"):
        engine.model("slow", Deadline.after(10))
    assert engine.loaded("slow") is None
    assert engine.model("slow", Deadline.after(10)).name == "slow"
    engine.stop()


def test_requests_for_a_new_model_load_it_once(module):
    loads = []

    def load(name):
        loads.append(name)
        time.sleep(0.1)
        return loaded(module, name)

    engine = Engine(load, max_models=2, max_batch=4, queue_size=16)
    in_threads(*(lambda: engine.run("slow", [job()]) for _ in range(6)))
    assert loads == ["slow"]
    engine.stop()


def test_when_a_model_last_worked(engine, module):
    assert engine.worked == -math.inf
    before = time.monotonic()
    occupying = hold(engine, module)
    for _ in range(2):
        now = time.monotonic()
        assert engine.worked >= now
    module.gate.set()
    occupying.join(10)
    while not engine._workers["slow"].idle:
        time.sleep(0.01)
    ended = time.monotonic()
    assert before < now < engine.worked <= ended
    engine.model("other", Deadline.after(10))
    assert ended < engine.worked < time.monotonic()


def test_the_least_recently_used_idle_model_makes_room():
    engine = Engine(lambda name: loaded(Slow(), name), max_models=2, max_batch=4, queue_size=4)
    for name in ("a", "b", "a", "c"):
        engine.run(name, [job()])
    assert engine.loaded("a") is not None
    assert engine.loaded("b") is None
    assert engine.loaded("c") is not None
    engine.stop()


@pytest.mark.fault(
    "a model that ends the program (`sys.exit`)",
    "500 for that request, nothing else",
)
def test_a_model_that_calls_exit_fails_its_request_and_nothing_else(engine, module, monkeypatch, caplog):
    engine.run("slow", [job()])
    monkeypatch.setattr(module.head, "forward", lambda _: (_ for _ in ()).throw(SystemExit(3)))
    with pytest.raises(ExplainerError, match="SystemExit"):
        engine.run("slow", [job()])
    monkeypatch.undo()
    assert "A model raised" in caplog.text
    caplog.clear()  # its record keeps the traceback, and that the tensors
    assert engine.run("slow", [job()])[0].result[0].maps.isfinite().all()


def test_a_loader_that_calls_exit_is_a_failure_not_a_hang():
    def load(name):
        raise SystemExit(3)

    engine = Engine(load, max_models=1, max_batch=1, queue_size=1)
    with pytest.raises(ModelError, match="SystemExit"):
        engine.model("slow", Deadline.after(10))


def test_a_bad_layer_fails_the_whole_batch_in_one_pass(engine, module):
    engine.model("slow", Deadline.after(10))
    with pytest.raises(LayerError):
        engine.run(
            "slow",
            [Job(Explain((GradCAM(layers=("head",)),)), torch.ones(3, 8, 8), 0, Deadline.after(10)) for _ in range(4)],
        )
    assert len(module.batches) <= 1


def test_more_models_than_may_be_kept_are_refused_while_all_work(module):
    engine = Engine(lambda name: loaded(module, name), max_models=1, max_batch=4, queue_size=4)
    occupying = hold(engine, module)
    with pytest.raises(OverloadedError, match="All models"):
        engine.run("other", [job()])
    module.gate.set()
    occupying.join()
    while not engine._workers["slow"].idle:
        time.sleep(0.01)
    engine.run("other", [job()])
    assert engine.loaded("slow") is None
    engine.stop()


def test_models_that_make_room_for_each_other_under_load_lose_no_request():
    engine = Engine(lambda name: loaded(Slow(), name), max_models=1, max_batch=4, queue_size=16)

    def ask(name):
        for _ in range(200):
            try:
                return engine.run(name, [job()])[0]
            except OverloadedError:
                time.sleep(0.01)
        raise AssertionError("never answered")

    answers = in_threads(*(lambda name=name: ask(name) for name in "abab" * 3))
    assert [type(answer).__name__ for answer in answers] == ["Done"] * 12
    engine.stop()


def test_a_failed_model_is_not_kept_in_memory():
    made = []

    def load(name):
        module = Slow()
        made.append(weakref.ref(module))
        try:
            raise RuntimeError("inner")
        except RuntimeError as error:
            raise ModelError("bad weights") from error

    engine = Engine(load, max_models=1, max_batch=1, queue_size=1)
    with pytest.raises(ModelError):
        engine.model("slow", Deadline.after(10))
    gc.collect()
    assert made[0]() is None


def test_a_failure_is_kept_without_what_those_who_waited_for_the_model_hold():
    def load(name):
        raise OptionError("bad weights", "name")

    engine = Engine(load, max_models=1, max_batch=1, queue_size=1)
    uploads = []

    def ask(raises):
        upload = Slow()
        uploads.append(weakref.ref(upload))
        raises()

    def tell():
        raise engine.failure("slow")

    for raises in (lambda: engine.model("slow", Deadline.after(10)), tell):
        with pytest.raises(OptionError, match="bad weights") as caught:
            ask(raises)
        assert caught.value.field == "name"
        del caught
    gc.collect()
    assert [upload() for upload in uploads] == [None, None]
    assert str(engine.failure("slow")) == "bad weights"


def test_a_model_that_failed_takes_the_room_of_no_other(module):
    def load(name):
        if name == "bad":
            raise ModelError("bad weights")
        return loaded(module, name)

    engine = Engine(load, max_models=2, max_batch=1, queue_size=1)
    for name in ("first", "bad", "second"):
        with contextlib.suppress(ModelError):
            engine.model(name, Deadline.after(10))
    assert [engine.loaded(name) is not None for name in ("first", "bad", "second")] == [True, False, True]
    assert str(engine.failure("bad")) == "bad weights"
    engine.stop()


def test_jobs_that_were_given_up_leave_the_queue(engine, module):
    occupying = hold(engine, module)
    with pytest.raises(DeadlineError):
        engine.run("slow", [job(seconds=0.05) for _ in range(6)])
    waiting = threading.Thread(target=lambda: engine.run("slow", [job() for _ in range(6)]))
    waiting.start()
    module.gate.set()
    waiting.join()
    occupying.join()
    assert sum(module.batches) == 7


@dataclass(frozen=True)
class ManyPasses:
    """Runs a hundred passes, and is held up before each."""

    def run(self, model, batch):
        for done in range(100):
            batch.report(done, 100)
            model.module(batch.images)
        return [None] * len(batch.images)


def test_what_nobody_waits_for_ends_before_its_next_pass_and_says_how_far_it_came(engine, module):
    engine.model("slow", Deadline.after(10))
    module.batches.clear()
    module.held = 0.02
    work = Job(ManyPasses(), torch.ones(3, 8, 8), 0, Deadline.after(0.3))
    with pytest.raises(DeadlineError, match=r"About \d+ % of the work was done"):
        engine.run("slow", [work])
    assert engine.run("slow", [job()])[0].result[0].maps.isfinite().all()
    assert 1 <= len(module.batches) < 60


def test_a_batch_goes_on_while_one_of_its_jobs_is_wanted(engine, module):
    occupying = hold(engine, module)
    short, long = (Job(ManyPasses(), torch.ones(3, 8, 8), 0, Deadline.after(seconds)) for seconds in (0.6, 20))
    results = []

    def ask(one):
        try:
            results.append(engine.run("slow", [one])[0].result)
        except DeadlineError as error:
            results.append(error)

    module.held = 0.02
    waiting = [threading.Thread(target=ask, args=(one,)) for one in (short, long)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    module.gate.set()
    for thread in [occupying, *waiting]:
        thread.join(30)
    assert sorted(type(result).__name__ for result in results) == ["DeadlineError", "NoneType"]
    assert long.progress.passes == (99, 100)


def test_jobs_with_and_without_a_contrast_share_a_batch(engine, module):
    def asked():
        return [job(0.4, 0), replace(job(0.5, 0), against=1), job(0.6, None), replace(job(0.7, 1), against=0)]

    alone = [engine.run("slow", [one])[0].result[0] for one in asked()]
    module.batches.clear()
    together = [done.result[0] for done in engine.run("slow", asked())]
    assert module.batches == [4]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.maps, other.maps)
        assert int(one.targets) == int(other.targets)
    assert [int(one.against) for one in together] == [NO_CONTRAST, 1, NO_CONTRAST, 0]


def test_a_busy_model_waits_a_moment_for_its_next_batch_to_fill_and_an_idle_one_does_not(module):
    made = Engine(lambda name: loaded(module, name), max_models=1, max_batch=4, queue_size=8, max_wait=5.0)
    occupying = hold(made, module)
    first = threading.Thread(target=lambda: made.run("slow", [job(), job(target=None)]))
    first.start()
    while len(made._workers["slow"]._waiting) < 2:
        time.sleep(0.01)
    started = time.monotonic()
    module.gate.set()
    occupying.join()
    assert first.is_alive()
    made.run("slow", [job(), job()])
    first.join()
    assert module.batches == [1, 4]
    made.run("slow", [job()])
    assert time.monotonic() - started < 4
    made.stop()


def test_a_model_with_a_full_queue_does_not_keep_another_one_waiting():
    modules = {"busy": Slow(), "other": Slow()}
    engine = Engine(lambda name: loaded(modules[name], name), max_models=2, max_batch=1, queue_size=64)
    for name in modules:
        engine.run(name, [job()])
    modules["busy"].held = 0.05
    asking = threading.Thread(target=engine.run, args=("busy", [job(seconds=60) for _ in range(40)]))
    modules["busy"].batches.clear()
    asking.start()
    while not modules["busy"].batches:
        time.sleep(0.01)
    engine.run("other", [job()])
    assert len(modules["busy"].batches) < 20
    asking.join()
    engine.stop()
    assert len(modules["busy"].batches) == 40


def test_a_job_whose_client_is_gone_never_runs(engine, module):
    occupying = hold(engine, module)
    left = threading.Event()
    waiting = Job(job().work, torch.ones(3, 8, 8), 0, Deadline.after(20, left.is_set))
    results = []

    def ask():
        try:
            results.append(engine.run("slow", [waiting]))
        except ClientGoneError as error:
            results.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    left.set()
    asking.join(5)
    assert isinstance(results[0], ClientGoneError)
    passes = len(module.batches)
    module.gate.set()
    occupying.join()
    engine.run("slow", [job()])
    assert sum(module.batches[passes:]) == 2  # of the one that occupied it, and of the last


def test_many_passes_end_when_the_client_is_gone(engine, module):
    engine.model("slow", Deadline.after(10))
    module.batches.clear()
    module.held = 0.02
    with pytest.raises(ClientGoneError):
        engine.run(
            "slow", [Job(ManyPasses(), torch.ones(3, 8, 8), 0, Deadline.after(60, lambda: len(module.batches) > 3))]
        )
    assert engine.run("slow", [job()])[0].result[0].maps.isfinite().all()
    assert len(module.batches) < 60


class TimesOut:
    """Work that raises what futures raise when they are waited for in vain."""

    def run(self, model, batch):
        raise TimeoutError("a socket, say")


def test_a_timeout_in_the_work_itself_is_its_error_and_not_waited_for(engine):
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="a socket"):
        engine.run("slow", [Job(TimesOut(), torch.ones(3, 8, 8), 0, Deadline.after(30))])
    assert time.monotonic() - started < 20


def test_a_deadline_is_over_when_the_client_is_gone():
    with pytest.raises(ClientGoneError):
        Deadline.after(30, lambda: True).check()
    with pytest.raises(DeadlineError):
        Deadline.after(0).check()


def test_a_loader_that_times_out_has_failed_and_is_not_still_loading():
    def load(name):
        raise TimeoutError("a download, say")

    engine = Engine(load, max_models=1, max_batch=1, queue_size=1)
    with pytest.raises(TimeoutError, match="a download"):
        engine.model("slow", Deadline.after(10))


def test_a_bad_contrast_does_not_take_the_others_apart(engine, module):
    class_zero, class_one = (replace(job(value, None), against=against) for value, against in ((0.5, 0), (0.5, 1)))
    plain = [job(value) for value in (0.5, 0.6)]
    engine.model("slow", Deadline.after(10))
    module.batches.clear()
    engine.submit("slow", [*plain, class_zero, class_one])
    failed = [one.future.exception(10) for one in (class_zero, class_one)]
    assert [type(one) for one in failed].count(TargetError) == 1  # the most probable class, contrasted with itself
    assert all(one.future.result(10).result[0].maps.isfinite().all() for one in plain)
    assert module.batches == [4, 2, 1, 1]


@pytest.mark.fault(
    "memory does not suffice for a batch",
    "nothing; it is run in parts",
)
@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_is_too_small_batches_become_smaller(runs_out, engine, module):
    expected = [engine.run("slow", [job(value)])[0].result[0].maps for value in (0.5, 0.6, 0.7)]
    module.runs_out, module.fits = runs_out, 1
    module.batches.clear()
    found = engine.run("slow", [job(value) for value in (0.5, 0.6, 0.7)])
    assert module.batches == [3, 1, 1, 1]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.result[0].maps, other)


@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_is_too_small_passes_of_one_picture_become_smaller(runs_out, engine, module):
    engine.model("slow", Deadline.after(10))
    module.runs_out, module.fits = runs_out, 1
    work = Explain((SmoothGrad(samples=5),))
    found = engine.run("slow", [replace(job(), work=work)])[0].result[0]
    assert set(module.batches[-6:]) == {1}
    module.fits = 100
    torch.testing.assert_close(found.maps, engine.run("slow", [replace(job(), work=work)])[0].result[0].maps)


@pytest.mark.fault(
    "memory does not suffice for one picture (`MemoryError`, or out of memory on a GPU)",
    "503; the next request is answered",
)
@pytest.mark.parametrize("runs_out", [allocate, give_up, out_of_cuda_memory])
def test_where_memory_does_not_suffice_for_one_picture_it_is_said_and_the_next_is_answered(runs_out, engine, module):
    engine.model("slow", Deadline.after(10))
    module.runs_out, module.fits = runs_out, 0
    with pytest.raises(OutOfMemoryError, match="one picture in a pass"):
        engine.run("slow", [job()])
    assert kind_of(OutOfMemoryError("")).status == 503
    module.fits = 100
    assert engine.run("slow", [job()])[0].result[0].maps.isfinite().all()
