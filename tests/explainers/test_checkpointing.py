"""Models that checkpoint gradients: explained like other models, or refused with advice."""

import copy
import pickle

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import DenseNet

from seewhy.explainers import GradCAM
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.execution.replay import structure_of
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import Explainer
from tests import nets
from tests.explainers.test_catalogue import FEW
from tests.grids import CONVOLUTIONAL, few

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")

GRADIENTS_OF_THE_PICTURE = {
    *("blur-ig", "deconvnet", "deeplift", "excitation-backprop", "expected-gradients", "extremal-perturbation"),
    *("fullgrad", "guided-backprop", "guided-gradcam", "guided-ig", "input-x-gradient", "integrated-gradients"),
    *("attnlrp", "dave", "lrp", "saliency", "smoothgrad", "vargrad", "xrai"),
}
"""Methods whose backward pass goes through all of the model."""


class Block(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.reentrant = reentrant

    def run(self, features: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(features)))

    def forward(self, features: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.run(features)
        return checkpoint(self.run, features, use_reentrant=self.reentrant)


def checkpointed_net(reentrant: bool | None, frozen: bool = True) -> nn.Module:
    """Return a net with two blocks that run again in the backward pass, unless `reentrant` is None."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.second(net.first(net.stem(images))).mean((2, 3)))

    def build() -> nn.Module:
        stem, head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)
        return nets.Wired(run, stem=stem, first=Block(reentrant), second=Block(reentrant), head=head)

    return nets.seeded(build).requires_grad_(not frozen)


@pytest.fixture
def small() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def explainer(name: str, **options: object) -> Explainer:
    method = METHODS[name]
    return method.build({key: value for key, value in FEW.items() if key in method.options} | options)


@pytest.mark.parametrize(
    "name", few(["gradcam", "guided-backprop", "saliency", "fullgrad"], short=["gradcam", "fullgrad"])
)
@pytest.mark.parametrize("architecture", ["resnet18", "densenet"])
def test_flags_of_models_are_off_while_they_are_explained(name, architecture):
    torch.manual_seed(0)
    if architecture == "densenet":
        net = DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=4, memory_efficient=True)
        flag, parts = "memory_efficient", [part for part in net.modules() if hasattr(part, "memory_efficient")]
    else:
        net = timm.create_model("resnet18", num_classes=4)
        flag, parts = "grad_checkpointing", [net]
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for part in parts:
        setattr(part, flag, False)
    expected = explainer(name).explain(net, images).maps
    for part in parts:
        setattr(part, flag, True)
    assert torch.equal(explainer(name).explain(net, images).maps, expected)
    assert all(getattr(part, flag) is True for part in parts)


def test_flags_come_back_with_the_last_who_holds_them_and_after_an_error():
    net = timm.create_model("resnet18", num_classes=4)
    net.set_grad_checkpointing(True)
    with HookSession(net), evaluation_mode(net):
        assert not net.grad_checkpointing
    assert net.grad_checkpointing is True
    first, second = HookSession(net), HookSession(net)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not net.grad_checkpointing
    second.__exit__(None, None, None)
    assert net.grad_checkpointing is True
    with pytest.raises(ZeroDivisionError), HookSession(net):
        raise ZeroDivisionError
    assert net.grad_checkpointing is True
    assert net.training is True


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_within_a_session_keep_their_flags(copied):
    net = nets.seeded(nets.Net)
    net.grad_checkpointing = True
    with HookSession(net):
        twin = copied(net)
    assert twin.grad_checkpointing is net.grad_checkpointing is True


def test_the_copy_that_replays_does_not_checkpoint():
    net = nets.seeded(nets.Net)
    net.grad_checkpointing = True
    with evaluation_mode(net):
        assert structure_of(net).grad_checkpointing is False


def test_flags_that_are_set_within_a_session_stay_and_others_are_not_touched():
    net = nets.seeded(nets.Net)
    net.grad_checkpointing = net.memory_efficient = True
    with HookSession(net):
        assert net.memory_efficient is True
        net.grad_checkpointing = False
        with HookSession(net):
            assert net.grad_checkpointing is False
    assert net.grad_checkpointing is False


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("layer", ["first.conv", "first", "second.norm", "second"])
def test_layers_in_checkpointed_code_are_explained_as_without(layer, frozen, small):
    expected = GradCAM(layers=(layer,)).explain(checkpointed_net(None), small).maps
    maps = GradCAM(layers=(layer,)).explain(checkpointed_net(False, frozen), small).maps
    assert expected.abs().max() > 0
    assert torch.equal(maps, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("reentrant", [True, False])
def test_all_methods_explain_checkpointed_code_as_without_or_say_what_to_do(name, reentrant, small):
    method, expected = explainer(name), explainer(name).explain(checkpointed_net(None), small).maps
    if reentrant and name in GRADIENTS_OF_THE_PICTURE:
        with pytest.raises(UnsupportedModuleError, match=r"set_grad_checkpointing\(False\)"):
            method.explain(checkpointed_net(True), small)
    else:
        torch.testing.assert_close(method.explain(checkpointed_net(reentrant), small).maps, expected)


@pytest.mark.parametrize("name", ["saliency", "lrp", "integrated-gradients"])
def test_checkpointing_by_reentrant_autograd_is_refused_with_what_to_do(name, small):
    with pytest.raises(UnsupportedModuleError, match=r"set_grad_checkpointing\(False\)"):
        explainer(name).explain(checkpointed_net(True), small)
    net = checkpointed_net(True)
    with HookSession(net) as hooks:
        hooks.record("*")
        logits = net(small)
        with pytest.raises(UnsupportedModuleError, match=r"set_grad_checkpointing\(False\)"):
            hooks.backward(logits[:, 0].sum())


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_records_have_one_entry_for_a_call_that_runs_again(reentrant, frozen, small):
    expected = recorded(checkpointed_net(None, frozen), small)
    records = recorded(checkpointed_net(reentrant, frozen), small)
    for kind in ("inputs", "outputs", "grad_inputs", "grad_outputs"):
        for path, (value,) in getattr(expected, kind).items():
            (record,) = getattr(records, kind)[path]
            torch.testing.assert_close(record, value, msg=f"{kind} of {path}")


def recorded(net: nn.Module, images: Tensor) -> HookSession:
    with HookSession(net) as hooks:
        hooks.record("*")
        net(images)[:, 0].sum().backward()
    for parameter in net.parameters():
        parameter.grad = None
    return hooks


def test_hooks_can_tell_a_call_that_runs_again(small):
    calls, gradients = [], []
    for reentrant in (None, False):
        net = checkpointed_net(reentrant)
        with HookSession(net) as hooks:
            hooks.after_forward(
                lambda *_, hooks=hooks: calls.append((hooks.current.number, hooks.current.again)), "first.conv"
            )
            hooks.after_forward(lambda module, args, output: 2 * output, "first.conv")
            hooks.record("stem")
            hooks.backward(net(small)[:, 0].sum())
        gradients.append(hooks.grad_outputs["stem"][0])
    assert calls == [(0, False), (0, False), (0, True)]
    assert torch.equal(*gradients)
