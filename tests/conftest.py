"""Shared models, and the check that runs after every test: no hook, no gradient, no changed mode is left."""

import gc
import hashlib
from collections.abc import Callable, Iterator
from weakref import WeakSet

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules import module as module_globals

from seewhy.explainers import process_wide
from seewhy.models import LoadedModel, load_model

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)


@pytest.fixture(scope="session", autouse=True)
def live_modules() -> Iterator[WeakSet]:
    """Every module of the session that is alive."""
    made: WeakSet = WeakSet()
    original = nn.Module.__init__

    def init(self: nn.Module, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        made.add(self)

    nn.Module.__init__ = init
    yield made
    nn.Module.__init__ = original


@pytest.fixture(autouse=True)
def nothing_left_behind(live_modules: WeakSet) -> Iterator[None]:
    shared, hooked = WeakSet(live_modules), WeakSet(_hooked(live_modules))
    yield
    if _hooked(live_modules) or _with_gradients(shared):
        gc.collect()  # what hangs in a reference cycle is not left behind, only late
    # The traceback of a failed test keeps its modules: they are not the next test's.
    assert [module for module in _hooked(live_modules) if module not in hooked] == []
    assert _with_gradients(shared) == []
    assert not any(vars(module_globals)[name] for name in vars(module_globals) if name.startswith("_global_for"))
    assert not process_wide.changes()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def _hooked(modules: WeakSet) -> list[nn.Module]:
    return [module for module in modules if any(vars(module).get(name) for name in HOOKS)]


def _with_gradients(modules: WeakSet) -> list[nn.Module]:
    return [
        module
        for module in modules
        if any(value is not None and value.grad is not None for value in vars(module)["_parameters"].values())
    ]


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
