"""What models take of the memory of requests: who makes room for whom, what never fits, when bytes come back."""

import gc
import threading
import weakref

import pytest

from seewhy.app.errors import OutOfMemoryError
from seewhy.app.memory.budget import BODY
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.engine import Deadline, Engine
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
def service(monkeypatch, modules, files):
    """A service with 300 MiB for requests and models; what loads is counted in `loads`."""
    monkeypatch.setattr("seewhy.app.pipeline.model_store.request_memory", lambda *_: 300 * MIB)
    made = Service(Settings(device="cpu", max_models=10), warm=False)
    made.loads = []

    def load(name, **_):
        made.loads.append(name)
        modules[name] = module = Cyclic()
        return loaded(module, name)

    monkeypatch.setattr(made.registry, "spec", lambda name: name)
    monkeypatch.setattr(made.registry, "file_size", lambda name: files.get(name, 0))
    monkeypatch.setattr(made.registry, "load", load)
    yield made
    made.engine.stop()


def ask(service, name):
    service.engine.model(name, Deadline.after(GUARD))
    until(lambda: service.engine.threads[name].idle)  # its thread rests a moment after it has answered
    return set(service.engine.threads)


def test_the_least_recently_used_idle_model_makes_room_for_another(service):
    default = service.settings.default_model
    ask(service, default)
    assert service.memory.most == 300 * MIB - SMALL
    assert ask(service, "a") == {default, "a"}
    assert ask(service, "b") == {default, "b"}
    assert ask(service, "a") == {default, "a"}
    assert service.loads == [default, "a", "b", "a"]


def test_idle_models_make_room_for_a_request(service):
    ask(service, "a")
    ask(service, "b")
    request = service.memory.account()
    request.take(200 * MIB, BODY)
    assert set(service.engine.threads) == {"b"}
    request.close()
    assert service.memory.size == 300 * MIB - SMALL


def test_models_at_work_make_no_room(service, modules):
    ask(service, "slow")
    module = modules["slow"]
    occupied = hold(service.engine, module)
    with pytest.raises(OutOfMemoryError, match="try again"):
        service.memory.account().take(300 * MIB, BODY)
    assert set(service.engine.threads) == {"slow"}
    module.gate.set()
    occupied.join()


def test_a_model_that_never_fits_is_told_so_and_not_loaded(service, files):
    files["large"] = 200 * MIB
    ask(service, "a")
    with pytest.raises(ModelTooLargeError, match=r"'large' takes .* SEEWHY_MEMORY_BYTES"):
        ask(service, "large")
    assert service.loads == ["a"]
    assert service.memory.size == 300 * MIB - SMALL
    assert "a" in service.engine.threads


def test_a_model_that_turns_out_never_to_fit_is_loaded_once(service, monkeypatch):
    monkeypatch.setattr("seewhy.app.memory.models._model_memory", lambda model: 300 * MIB)
    for _ in range(2):
        with pytest.raises(ModelTooLargeError):
            ask(service, "large")
    assert service.loads == ["large"]
    assert service.memory.size == 300 * MIB


def test_memory_is_reserved_before_a_model_is_loaded(service, files, monkeypatch):
    files["a"] = 30 * MIB
    load, sizes = service.registry.load, []
    monkeypatch.setattr(service.registry, "load", lambda *a, **k: (sizes.append(service.memory.size), load(*a, **k))[1])
    ask(service, "a")
    assert sizes == [(300 - 64 - 3 * 30) * MIB]
    assert service.memory.size == 300 * MIB - SMALL


def test_a_load_that_fails_gives_back_what_was_reserved(service, files, monkeypatch):
    files["a"] = 30 * MIB
    monkeypatch.setattr(service.registry, "load", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(service, "a")
    assert service.memory.size == 300 * MIB


def test_the_default_model_always_fits(monkeypatch, service):
    monkeypatch.setattr("seewhy.app.memory.models._model_memory", lambda model: 600 * MIB)
    ask(service, service.settings.default_model)
    assert service.memory.size == service.memory.most == 128 * MIB


def test_bytes_come_back_with_the_weights_and_not_before(service, modules):
    gc.collect()
    gc.disable()
    try:
        ask(service, "a")
        module = modules["a"]
        assert service.engine.evict((), GUARD)
        assert service.memory.size == 300 * MIB - SMALL  # somebody has the weights still
        gone = threading.Event()
        weakref.finalize(module, gone.set)
        del module
        until(lambda: gc.collect() >= 0 and gone.is_set())  # a thread that ends may hold the model for a moment longer
        assert service.memory.size == 300 * MIB
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
    service = Service(Settings(device="cpu", memory_bytes=40 * 10**6), warm=False)
    ask(service, service.settings.default_model)
    assert service.memory.size == 40 * 10**6
    service.engine.stop()
