"""State that PyTorch changes for the whole process: one thread at a time, and every change is undone."""

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial

import pytest
import torch
import torchvision
from torch import Tensor, fx, nn
from torch.nn.modules import module as module_globals
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from seewhy.explainers import GradCAM, HookSession, process_wide
from seewhy.explainers.execution.accelerated import PICTURES_TO_COMPILE, AcceleratedModel
from seewhy.explainers.execution.cut import UncuttableError, cut_before
from seewhy.explainers.tasks import pose
from seewhy.explainers.tasks.classification import Classification
from seewhy.models.registry import _without_weights
from seewhy.models.zoo import zoo_spec
from tests import nets
from tests.grids import few


class Threads:
    """Threads that are joined, and whose errors are raised."""

    def __init__(self, *functions: Callable[[], object]) -> None:
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(function,), daemon=True) for function in functions]

    def __enter__(self) -> "Threads":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        assert self.errors == []

    def _run(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            self.errors.append(error)


class Stops(nets.Net):
    """A network during whose tracing, or survey, something else happens."""

    def __init__(self, where: type = fx.Proxy) -> None:
        super().__init__()
        self.where = where
        self.meanwhile: Callable[[], object] = lambda: None

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(images, self.where):
            self.meanwhile()
        return super().forward(images)


class Lock:
    """The lock of the process, which tells of each attempt to enter."""

    def __init__(self, lock: "threading.RLock", attempted: Callable[[], None]) -> None:
        self._lock = lock
        self._attempted = attempted
        self.release = lock.release

    def acquire(self, *args: object, **kwargs: object) -> bool:
        self._attempted()
        return self._lock.acquire(*args, **kwargs)


def trace(net: nn.Module) -> None:
    assert cut_before(net, ("conv",), torch.zeros(1, 3, 64, 64)).layer == "conv"


@pytest.mark.parametrize(
    ("where", "work"), [(fx.Proxy, trace), (Tensor, lambda net: pose.survey(net, (3, 8, 8)))], ids=["traces", "surveys"]
)
def test_two_at_once_leave_nothing_patched(where, work, monkeypatch):
    first, second = nets.seeded(Stops, where), nets.seeded(Stops, where)
    first_runs, second_begins, first_is_done = threading.Event(), threading.Event(), threading.Event()

    def attempted() -> None:
        if threading.current_thread().name == "second":
            second_begins.set()

    monkeypatch.setattr(process_wide, "_lock", Lock(process_wide._lock, attempted))
    # The order that breaks it: the first saves, the second saves, the first puts back, the second puts back.
    first.meanwhile = lambda: (first_runs.set(), second_begins.wait())
    second.meanwhile = lambda: (second_begins.set(), first_is_done.wait())

    def run_first() -> None:
        try:
            work(first)
        finally:
            first_is_done.set()

    def run_second() -> None:
        threading.current_thread().name = "second"
        first_runs.wait()
        work(second)

    before = nn.Module.__call__, nn.Module.__getattr__
    try:
        with Threads(run_first, run_second):
            pass
        assert (nn.Module.__call__, nn.Module.__getattr__) == before
        assert process_wide.changes() == []
        assert not is_in_torch_dispatch_mode()
        work(first)
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = before


class Untraceable(nets.Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images if images.sum() > 0 else -images)


def cut(images: Tensor) -> None:
    cut_before(nets.seeded(nets.Net).eval(), ("conv",), images[:1])


def fail_to_cut(images: Tensor) -> None:
    with pytest.raises(UncuttableError):
        cut_before(nets.seeded(Untraceable).eval(), ("conv",), images[:1])


def accelerated(images: Tensor, name: str = "eager") -> AcceleratedModel:
    module = nets.seeded(nets.Net).requires_grad_(False)
    return AcceleratedModel(module, tuple(images.shape[1:]), ("conv",), Classification().outputs, name)


def compile_for(accelerator: str, images: Tensor) -> None:
    model = accelerated(images, accelerator)
    model.warm()
    assert model.whole(images) is not None


CHANGING = {
    "cut": cut,
    "fail to cut": fail_to_cut,
    "convert": partial(compile_for, "openvino"),
    "fuse": partial(compile_for, "eager"),
    "survey": lambda _: _without_weights(zoo_spec("mobilenet_v3_small")),
}


@pytest.mark.parametrize("first", few(CHANGING, short=["cut", "fail to cut", "convert"]))
def test_nothing_stays_patched_whatever_runs_beside_it(first, images):
    filters, count = warnings.filters, len(CHANGING)
    before = list(filters)
    start = threading.Barrier(2 * count)

    def change(name: str) -> Callable[[], None]:
        def run() -> None:
            start.wait()
            CHANGING[name](images)

        return run

    with Threads(*(change(name) for second in CHANGING for name in (first, second))):
        pass
    assert process_wide.changes() == []
    assert warnings.filters is filters
    assert warnings.filters == before


def while_traced(meanwhile: Callable[[], object], module: nn.Module | None = None) -> None:
    """Run something in another thread while this one traces a model."""

    def in_a_thread() -> None:
        assert process_wide.changes() is not None  # this thread is alone
        assert nn.Module.__call__.__code__ is not called
        with Threads(meanwhile):
            pass

    called = nn.Module.__call__.__code__
    module = module or nets.seeded(Stops)
    module.meanwhile = in_a_thread
    trace(module)


def run_model(images: Tensor) -> Tensor:
    return nets.seeded(torchvision.models.resnet18).eval()(images)


def explain_model(images: Tensor) -> Tensor:
    return GradCAM(layers=("conv",)).explain(nets.seeded(nets.Net), images).maps


def hook_model(images: Tensor) -> Tensor:
    module = nets.seeded(nets.Net)
    records: list[Tensor] = []
    forward = module.conv.register_forward_hook(lambda *call: records.append(call[-1]))
    backward = module.conv.register_full_backward_hook(lambda *call: records.append(call[-1][0]))
    with forward, backward:
        module(images)[:, 0].sum().backward()
        with HookSession(module) as hooks:
            hooks.record("*")
            module(images)[:, 1].sum().backward()
    records += [*hooks.grad_outputs["conv"], module.head.weight.grad]
    module.zero_grad()
    return torch.cat([values.flatten() for values in records])


def copy_model(images: Tensor) -> Tensor:
    module = deepcopy(nets.seeded(nets.Net))
    module.load_state_dict(nets.seeded(nets.Net).state_dict())
    module.scale = nn.Parameter(torch.full((1,), math.sqrt(2.0)))
    return module.eval()(images) * dict(module.named_parameters())["scale"]


@pytest.mark.parametrize("work", [run_model, explain_model, hook_model, copy_model])
def test_a_thread_that_runs_hooks_or_builds_a_model_is_not_disturbed_by_one_that_traces(work, images):
    expected, actual = work(images), list[Tensor]()
    while_traced(lambda: actual.append(work(images)))
    assert torch.equal(actual[0], expected)


def test_the_model_that_is_traced_runs_in_other_threads(images):
    module, actual = nets.seeded(Stops), list[Tensor]()
    expected = module(images)
    while_traced(lambda: actual.append(module(images)), module)
    assert torch.equal(*actual, expected)


def test_functions_of_math_are_not_replaced():
    before, actual = math.sqrt, list[object]()
    while_traced(lambda: actual.append(math.sqrt))
    assert actual == [before]


def test_who_runs_a_model_does_not_wait_for_another_that_is_traced(images):
    model, many, actual = accelerated(images), images.repeat(PICTURES_TO_COMPILE, 1, 1, 1), list[object]()
    while_traced(lambda: actual.append(model.whole(many)))
    assert actual == [None]
    assert model.whole(many) is not None


def test_who_waits_may_give_up():
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) == 3:
            raise TimeoutError

    def wait() -> None:
        with pytest.raises(TimeoutError), process_wide.exclusive(check):
            raise AssertionError("entered")

    with process_wide.exclusive(), Threads(wait):
        pass
    assert len(checks) == 3
    with process_wide.exclusive(lambda: None), process_wide.exclusive():
        pass


def leftover(function: Callable) -> Callable:
    return lambda *args, **kwargs: function(*args, **kwargs)


@pytest.fixture(params=["call", "getattr", "setattr", "math", "hook", "dtype"])
def damage(request, monkeypatch) -> Iterator[tuple[Callable[[], object], str]]:
    """What changes the state of the process, and what it is called; undone at the end."""
    handles = []

    def hook() -> None:
        handles.append(module_globals.register_module_forward_hook(lambda *_: None))

    def replace(name: str) -> Callable[[], None]:
        return lambda: monkeypatch.setattr(nn.Module, name, leftover(getattr(nn.Module, name)))

    yield {
        "call": (replace("__call__"), "torch.nn.Module.__call__"),
        "getattr": (replace("__getattr__"), "torch.nn.Module.__getattr__"),
        "setattr": (replace("__setattr__"), "torch.nn.Module.__setattr__"),
        "math": (lambda: monkeypatch.setattr(math, "sqrt", leftover(math.sqrt)), "the functions of math"),
        "hook": (hook, "the hooks on all modules"),
        "dtype": (lambda: torch.set_default_dtype(torch.float64), "torch.get_default_dtype()"),
    }[request.param]
    torch.set_default_dtype(torch.float32)
    for handle in handles:
        handle.remove()


def test_what_stays_changed_is_named(damage):
    change, name = damage
    assert process_wide.changes() == []
    change()
    assert process_wide.changes() == [name]


def test_what_a_package_of_the_user_changes_as_it_is_imported_is_accepted_and_nothing_else(damage, monkeypatch):
    monkeypatch.setattr(process_wide, "_start", dict(process_wide._start))
    change, _ = damage
    with process_wide.accepted_changes():
        change()
    assert process_wide.changes() == []
    monkeypatch.setattr(math, "cos", leftover(math.cos))
    with process_wide.accepted_changes():
        pass
    assert process_wide.changes() == ["the functions of math"]


def test_nothing_is_said_of_changes_while_another_thread_makes_some():
    results: list[object] = []
    with process_wide.exclusive(), Threads(lambda: results.append(process_wide.changes())):
        pass
    assert results == [None]
