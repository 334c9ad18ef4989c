"""Copies of a module that are made while a session is open do not belong to it."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from seewhy.explainers.hooks.registered import count_hooks
from seewhy.explainers.hooks.session import HookSession
from seewhy.models import wrap_model


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "deepcopy twice": lambda module: copy.deepcopy(copy.deepcopy(module)),
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "deepcopy and pickle": lambda module: pickle.loads(pickle.dumps(copy.deepcopy(module))),
    "torch.save": saved,
    "AveragedModel": lambda module: AveragedModel(module).module,
}


@pytest.mark.parametrize("kind", sorted(COPIES))
def test_a_copy_runs_no_hook_and_fills_no_record(kind):
    net, images, modules = small(), torch.randn(2, 3, 8, 8), []
    expected = net(images)
    with HookSession(net) as hooks:
        hooks.record("*")
        hooks.before_forward(lambda module, args, kwargs: modules.append(module), "*", with_kwargs=True)
        hooks.after_forward(lambda module, args, output: 2 * output, "3")
        hooks.cut("0")
        net(images)
        calls = len(modules)
        twin = COPIES[kind](net)
        assert torch.equal(twin(images), expected)
        score = twin(images)[:, 0].sum()
        score.backward()
        assert [len(entries) for entries in hooks.outputs.values()] == [1] * 5
        assert len(modules) == calls
        assert torch.equal(net(images), 2 * expected)
    assert count_hooks(net) == 0
    assert torch.equal(twin(images), expected)
    if "pickle" not in kind and kind != "torch.save":
        assert count_hooks(twin) == 0
    for parameter in twin.parameters():
        parameter.grad = None


@pytest.mark.slow
def test_a_file_that_was_saved_within_a_session_loads_without_us(tmp_path):
    net = small()
    with HookSession(net) as hooks:
        hooks.record("*")
        torch.save(net, tmp_path / "net.pt")
    code = (
        "import sys, torch; net = torch.load(sys.argv[1], weights_only=False); "
        "print(tuple(net(torch.ones(1, 3, 8, 8)).shape), 'explainers' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "net.pt"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert ran.stdout.split("\n")[0] == "(1, 2) False", ran.stderr


def does_nothing(module, args, output):
    """A hook that can be pickled."""


class Fails(nn.Module):
    def forward(self, images):
        raise ValueError("of the user's own")


@pytest.mark.parametrize("kind", sorted(COPIES))
def test_an_error_of_a_copy_is_the_users_own(kind):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), Fails())
    with HookSession(net) as hooks:
        hooks.after_forward(lambda module, args, output: None, "1", always_call=True)
        net[1].register_forward_hook(does_nothing)  # PyTorch goes on to it after ours
        twin = COPIES[kind](net)
    for _ in range(2):
        with pytest.raises(ValueError, match="of the user's own"):
            twin(torch.ones(1, 3, 8, 8))


def test_a_model_from_a_file_saved_within_a_session_has_no_hook_once_it_is_wrapped():
    net = small()
    with HookSession(net) as hooks:
        hooks.record("*")
        twin = saved(net)
    handle = twin.register_forward_hook(lambda *_: None)
    assert count_hooks(twin) > 1
    wrap_model(twin, input_size=8)
    assert count_hooks(twin) == 1
    handle.remove()
