"""Models in the memory of requests: which make room for others, which never fit, and when their bytes are returned."""

import gc
import threading
import weakref

import pytest

from seewhy.app.errors import OutOfMemoryError
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import BODY
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.model_store import ModelStore
from seewhy.app.pipeline.model_threads import EngineOptions
from seewhy.app.settings import Settings
from seewhy.models.errors import ModelTooLargeError
from tests.app.test_engine import Slow, hold, loaded
from tests.waiting import GUARD, until

MIB = 2**20
SMALL = 64 * MIB + 3 * 4 * (4 * 3 * 3 * 3 + 4 + 2 * 4 + 2)
"""What the classifier of the tests takes."""


class Cyclic(Slow):
    """A classifier whose weights hang in a cycle, as those of traced ones do."""

    def __init__(self):
        super().__init__()
        self.circle = [self]


@pytest.fixture
def modules():
    """The modules that were loaded, by name; only weakly."""
    return weakref.WeakValueDictionary()


@pytest.fixture
def files():
    """Bytes of weights files, by model."""
    return {}


@pytest.fixture
def models(monkeypatch, modules, files):
    """A service with 300 MiB for requests and models; what loads is counted in `loads`."""
    monkeypatch.setattr("seewhy.app.pipeline.model_store.request_memory", lambda *_: 300 * MIB)
    store = ModelStore(Settings(device="cpu", max_models=10), warm=False)
    store.loads = []

    def load(name, **_):
        store.loads.append(name)
        modules[name] = module = Cyclic()
        return loaded(module, name)

    monkeypatch.setattr(store.registry, "spec", lambda name: name)
    monkeypatch.setattr(store.registry, "file_size", lambda name: files.get(name, 0))
    monkeypatch.setattr(store.registry, "load", load)
    yield store
    store.stop()


def ask(models, name):
    models.engine.model(name, Deadline.after(GUARD))
    until(lambda: models.engine.threads[name].idle)  # its thread rests a moment after it has answered
    return set(models.engine.threads)


def test_the_least_recently_used_idle_model_makes_room_for_another(models):
    default = Settings().default_model
    ask(models, default)
    assert models.memory.most == 300 * MIB - SMALL
    assert ask(models, "a") == {default, "a"}
    assert ask(models, "b") == {default, "b"}
    assert ask(models, "a") == {default, "a"}
    assert models.loads == [default, "a", "b", "a"]


def test_idle_models_make_room_for_a_request(models):
    ask(models, "a")
    ask(models, "b")
    request = Account(models.memory)
    request.take(200 * MIB, BODY)
    assert set(models.engine.threads) == {"b"}
    request.close()
    assert models.memory.size == 300 * MIB - SMALL


def test_models_at_work_make_no_room(models, modules):
    ask(models, "slow")
    with hold(models.engine, modules["slow"]):
        with pytest.raises(OutOfMemoryError, match="try again"):
            Account(models.memory).take(300 * MIB, BODY)
        assert set(models.engine.threads) == {"slow"}


def test_a_model_that_never_fits_is_told_so_and_not_loaded(models, files):
    files["large"] = 200 * MIB
    ask(models, "a")
    with pytest.raises(ModelTooLargeError, match=r"'large' takes .* SEEWHY_MEMORY_BYTES"):
        ask(models, "large")
    assert models.loads == ["a"]
    assert models.memory.size == 300 * MIB - SMALL
    assert "a" in models.engine.threads


def test_a_model_that_turns_out_never_to_fit_is_loaded_once(models, monkeypatch):
    monkeypatch.setattr("seewhy.app.memory.models._model_memory", lambda model: 300 * MIB)
    for _ in range(2):
        with pytest.raises(ModelTooLargeError):
            ask(models, "large")
    assert models.loads == ["large"]
    assert models.memory.size == 300 * MIB


def test_memory_is_reserved_before_a_model_is_loaded(models, files, monkeypatch):
    files["a"] = 30 * MIB
    load, sizes = models.registry.load, []
    monkeypatch.setattr(models.registry, "load", lambda *a, **k: (sizes.append(models.memory.size), load(*a, **k))[1])
    ask(models, "a")
    assert sizes == [(300 - 64 - 3 * 30) * MIB]
    assert models.memory.size == 300 * MIB - SMALL


def test_a_load_that_fails_gives_back_what_was_reserved(models, files, monkeypatch):
    files["a"] = 30 * MIB
    monkeypatch.setattr(models.registry, "load", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(models, "a")
    assert models.memory.size == 300 * MIB


def test_the_default_model_always_fits(monkeypatch, models):
    monkeypatch.setattr("seewhy.app.memory.models._model_memory", lambda model: 600 * MIB)
    ask(models, Settings().default_model)
    assert models.memory.size == models.memory.most == 128 * MIB


def test_bytes_come_back_with_the_weights_and_not_before(models, modules):
    gc.collect()
    gc.disable()
    try:
        ask(models, "a")
        module = modules["a"]
        assert models.engine.evict((), GUARD)
        assert models.memory.size == 300 * MIB - SMALL  # somebody has the weights still
        end = threading.Event()
        weakref.finalize(module, end.set)
        del module
        until(lambda: gc.collect() >= 0 and end.is_set())  # a thread that ends may hold the model for a moment longer
        assert models.memory.size == 300 * MIB
    finally:
        gc.enable()


def test_the_thread_of_a_model_drops_its_weights_at_its_end(modules):
    """Where a model makes room by their count nobody else collects what hangs in cycles."""

    def load(name):
        modules[name] = module = Cyclic()
        return loaded(module, name)

    ended = threading.Event()
    gc.collect()
    gc.disable()
    try:
        engine = Engine(EngineOptions(load, max_models=1, max_batch=1, queue_size=1))
        engine.model("a", Deadline.after(GUARD))
        weakref.finalize(modules["a"], ended.set)
        engine.model("b", Deadline.after(GUARD))  # the count lets a go
        assert ended.wait(GUARD)
        assert "a" not in modules
        engine.stop()
    finally:
        gc.enable()


def test_where_requests_have_a_budget_by_hand_models_are_not_counted():
    models = ModelStore(Settings(device="cpu", memory_bytes=40 * 10**6), warm=False)
    ask(models, Settings().default_model)
    assert models.memory.size == 40 * 10**6
    models.stop()
