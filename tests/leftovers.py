"""Shared models, and the check that runs after every test: no hook, no gradient, no changed mode is left."""

import gc
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from weakref import WeakSet, ref

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.utils.hooks import RemovableHandle

from seewhy.explainers import process_wide
from seewhy.models import LoadedModel, load_model
from tests.waiting import GUARD

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)
GLOBAL_HOOKS = [name for name in vars(module_globals) if name.startswith("_global_for")]


class Modules:
    """Every module of the session that is alive, in the order in which they were made."""

    def __init__(self) -> None:
        self._references: list[ref[nn.Module]] = []
        self._hooked: WeakSet[nn.Module] = WeakSet()

    def __len__(self) -> int:
        return len(self._references)

    def add(self, module: nn.Module) -> None:
        self._references.append(ref(module))

    def leftovers(self, count: int, handles: int) -> list[nn.Module]:
        """Return those with hooks that had none, and those of the first so many whose parameters have gradients.

        Hooks are looked for only if there were more handles than so many: to do that after each test takes long.
        """
        hooked = [
            module
            for module in self._alive(self._references if RemovableHandle.next_id > handles else [])
            if any(map(vars(module).get, HOOKS)) and module not in self._hooked
        ]
        return hooked + [
            module
            for module in self._alive(self._references[:count])
            for value in vars(module)["_parameters"].values()
            if value is not None and value.grad is not None
        ]

    def forget(self, modules: list[nn.Module]) -> None:
        """Forget those that are gone, and the hooks of those that were left: they are not the next test's.

        The traceback of a failed test keeps its modules.
        """
        self._hooked.update(module for module in modules if any(map(vars(module).get, HOOKS)))
        references = self._references[:]
        self._references[: len(references)] = [reference for reference in references if reference() is not None]

    @staticmethod
    def _alive(references: list[ref[nn.Module]]) -> Iterator[nn.Module]:
        return (module for reference in references if (module := reference()) is not None)


@pytest.fixture(scope="session", autouse=True)
def live_modules() -> Iterator[Modules]:
    modules = Modules()
    original = nn.Module.__init__

    def init(self: nn.Module, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        modules.add(self)

    nn.Module.__init__ = init
    yield modules
    nn.Module.__init__ = original


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What was imported and made before is not looked through whenever a test, or a model that ends, collects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_logger_of_torch() -> None:
    """PyTorch has dozens of loggers with handlers of their own; pytest adds its own to each, six times a test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.startswith("torch.") and name != "torch.__trace":
            logger.handlers.clear()
            logger.propagate = True


@pytest.fixture(autouse=True)
def nothing_left_behind(live_modules: Modules) -> Iterator[None]:
    leftovers = partial(live_modules.leftovers, count := len(live_modules), RemovableHandle.next_id)
    yield
    if modules := leftovers():
        modules = None
        gc.collect()  # what hangs in a reference cycle is not left behind, only late
        limit = time.monotonic() + GUARD  # and so is what a thread does whose work nobody waits for any more
        while (modules := leftovers()) and threading.active_count() > 1 and time.monotonic() < limit:
            time.sleep(0.05)
    if modules or len(live_modules) > count:
        live_modules.forget(modules)
    assert modules == []
    assert not any(vars(module_globals)[name] for name in GLOBAL_HOOKS)
    assert not process_wide.changes()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.fixture
def untouched() -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Return a function that marks a module; after the test each marked one must be as it was."""
    marked: list[tuple[nn.Module, object]] = []

    def mark(module: nn.Module) -> nn.Module:
        marked.append((module, _snapshot(module)))
        return module

    yield mark
    for module, before in marked:
        assert _snapshot(module) == before


def _snapshot(module: nn.Module) -> object:
    modes = [
        (path, type(part), part.training, [len(vars(part)[name]) for name in HOOKS])
        for path, part in module.named_modules(remove_duplicate=False)
    ]
    flags = [
        (name, value.requires_grad, value.grad is None, value.is_leaf) for name, value in module.named_parameters()
    ]
    return modes, flags, [(name, _fingerprint(value)) for name, value in module.state_dict().items()]


def _fingerprint(tensor: Tensor) -> tuple[object, ...]:
    content = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return tensor.dtype, tensor.shape, tensor.stride(), hashlib.sha256(content).hexdigest()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    """Four random pictures of 64 by 64."""
    return torch.randn(4, 3, 64, 64, generator=generator)


@pytest.fixture(scope="session")
def lite0() -> LoadedModel:
    return load_model("efficientnet_lite0")


@pytest.fixture(scope="session")
def resnet18() -> nn.Module:
    """A frozen ResNet-18 with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torchvision.models.resnet18(weights=None).eval().requires_grad_(False)
