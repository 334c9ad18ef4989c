"""Input gradients on OpenVINO: they equal those of autograd, and PyTorch computes those of models without rules."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import Classification, IntegratedGradients, Saliency, SmoothGrad
from seewhy.explainers.core.ask import MOST_PROBABLE, NO_CONTRAST, Ask
from seewhy.explainers.execution import vjp
from seewhy.explainers.execution.accelerated import GRADIENTS_TO_COMPILE, AcceleratedModel
from seewhy.explainers.execution.openvino_writer import UnknownOperationError
from seewhy.explainers.execution.vjp import DifferentResultsError, vjp_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.models import LoadedModel, load_model, wrap_model
from tests import nets
from tests.grids import diagonal, few

SIZE = (3, 17, 14)


class Applied(nn.Module):
    """Modules after a convolution, or a function of its output, before a linear head."""

    def __init__(self, *parts: nn.Module, function: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.parts = nn.Sequential(*parts)
        self.function = function
        self.head = nn.LazyLinear(5)

    def forward(self, images: Tensor) -> Tensor:
        values = self.parts(self.stem(images))
        return self.head((values if self.function is None else self.function(values)).flatten(1))


CASES: dict[str, Callable[[], nn.Module]] = {
    "stride": lambda: Applied(nn.Conv2d(8, 4, 3, stride=2, padding=1)),
    "stride that leaves a rest": lambda: Applied(nn.Conv2d(8, 4, 2, stride=3)),
    "dilation": lambda: Applied(nn.Conv2d(8, 4, 3, dilation=2, padding=1)),
    "oblong": lambda: Applied(nn.Conv2d(8, 4, (3, 1), padding=(2, 1), bias=False)),
    "groups": lambda: Applied(nn.Conv2d(8, 4, 3, groups=2)),
    "depthwise": lambda: Applied(nn.Conv2d(8, 16, 5, groups=8, padding=2), nn.Conv2d(16, 16, 4, 2, groups=16)),
    "norm": lambda: Applied(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
    "norm without weights": lambda: Applied(nn.BatchNorm2d(8, affine=False), nn.ReLU()),
    "norm of a rectifier": lambda: Applied(nn.ReLU(), nn.BatchNorm2d(8), nn.BatchNorm2d(8)),
    "in place": lambda: Applied(nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.Conv2d(8, 4, 1)),
    "clip": lambda: Applied(nn.Hardtanh(-0.25, 0.5)),
    "sum": lambda: Applied(function=lambda values: values + functional.relu(values) + 1),
    "product": lambda: Applied(function=lambda values: values.mean((2, 3), keepdim=True) * values / 3 * 2),
    "concatenation": lambda: Applied(function=lambda values: torch.cat((values[:, 2:7], values.relu()), dim=1)),
    "slices": lambda: Applied(function=lambda values: values[:, 1:-2, -9:, 2:]),
    "norm of features": lambda: Applied(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(8), nn.ReLU()),
    "norm of linear features": lambda: Applied(nn.Flatten(), nn.Linear(8 * 15 * 12, 6), nn.BatchNorm1d(6)),
    "padding": lambda: Applied(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(8, 4, 3, stride=2)),
    "padding read twice": lambda: Applied(nn.ZeroPad2d((1, 2, 0, 3)), nn.ReLU()),
    "pooling": lambda: Applied(nn.MaxPool2d(3, stride=2, padding=1)),
    "pooling at each place": lambda: Applied(nn.MaxPool2d(3, stride=1)),
    "oblong pooling": lambda: Applied(nn.MaxPool2d((2, 3), stride=2, padding=(0, 1))),
    "pooling of equal values": lambda: Applied(
        function=lambda values: functional.max_pool2d(values * 0 + values.mean((2, 3), keepdim=True), 3, 2, 1)
    ),
    "pooling to the end": lambda: Applied(nn.MaxPool2d(2, ceil_mode=True)),
    "adaptive pooling to the same size": lambda: Applied(nn.AdaptiveAvgPool2d((15, 12))),
    "head": lambda: Applied(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6), nn.ReLU()),
}


def frozen(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a network in evaluation mode with random weights and statistics."""

    def initialised() -> nn.Module:
        module = build().eval()
        module(torch.zeros(1, *SIZE))
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                part.running_mean = torch.randn(part.num_features)  # type: ignore[assignment]
                part.running_var = torch.rand(part.num_features) + 0.5  # type: ignore[assignment]
        return module

    return nets.seeded(initialised).requires_grad_(False)


def pictures(count: int) -> Tensor:
    return torch.randn(count, *SIZE, generator=torch.Generator().manual_seed(3))


def by_autograd(module: nn.Module, images: Tensor, seeds: Tensor) -> Tensor:
    leaf = images.clone().requires_grad_()
    return torch.autograd.grad(module(leaf.clone()), leaf, seeds)[0]


FURTHER = (
    *("stride", "oblong", "norm without weights", "norm of a rectifier", "sum", "norm of linear features"),
    *("padding read twice", "pooling at each place", "oblong pooling", "pooling to the end"),
    "adaptive pooling to the same size",
)
"""Cases of operations that others of them have too."""


@pytest.mark.parametrize("case", few(CASES, short={*CASES} - {*FURTHER}))
def test_gradients_are_those_of_autograd(case):
    module = frozen(CASES[case])
    vjp = vjp_of(module, Classification().outputs, pictures(3))
    for count in (2, 11):
        images, seeds = pictures(count), torch.randn(count, 5)
        outputs, gradients = vjp(images, seeds)
        torch.testing.assert_close(outputs, module(images), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gradients, by_autograd(module, images, seeds), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_an_embedded_network_has_a_graph_of_gradients():
    model = load_model("mobilenet_v2")
    images = torch.rand(2, *model.spec.image_shape, generator=torch.Generator().manual_seed(3))
    seeds = functional.one_hot(torch.tensor([3, 5]), 1000).float()
    vjp = vjp_of(model.module, model.task.outputs, torch.rand(3, *model.spec.image_shape))
    gradients, expected = vjp(images, seeds)[1], by_autograd(model.module, images, seeds)
    assert (gradients - expected).norm() < 0.01 * expected.norm()


def test_masks_are_exact_at_their_bounds():
    """Of a sum of what passes a rectifier, and what passes a clip."""
    six, fractions = torch.tensor(6.0), torch.tensor([0.0, -0.0, 1e-20, -1e-20, 6.0, 3.0, -3.0, 1e30])
    edges = torch.cat([fractions, torch.nextafter(six, torch.tensor([-1.0, 9.0]))])
    net = nets.Wired(lambda _, images: torch.cat((images.relu(), functional.relu6(images)), dim=1).mean((2, 3)))
    images = edges.expand(1, 3, 1, -1)
    vjp = vjp_of(net, Classification().outputs, torch.randn(3, 3, 1, len(edges)))
    seeds = torch.arange(1.0, 7)[None]
    assert vjp(images.contiguous(), seeds)[1].equal(by_autograd(net, images, seeds))


@pytest.mark.parametrize(
    "part",
    [
        nn.GELU(),
        nn.Softmax(1),
        nn.AdaptiveAvgPool2d(4),
        nn.ConvTranspose2d(8, 2, 2),
        nn.MaxPool2d(2, stride=3),
        nn.MaxPool2d(2, stride=(1, 2)),
        nn.MaxPool2d(2, dilation=2),
    ],
)
def test_other_operations_are_refused(part):
    with pytest.raises(UnknownOperationError, match="no rule"):
        vjp_of(frozen(lambda: Applied(deepcopy(part))), Classification().outputs, pictures(3))


@pytest.mark.parametrize(
    ("rule", "function", "what"),
    [
        (torch.ops.aten.threshold_backward.default, torch.relu, "gradients"),  # without its mask
        (torch.ops.aten.add.Tensor, lambda values: values + 1, "outputs"),  # without its second part
    ],
    ids=["gradients", "outputs"],
)
def test_other_results_are_refused(rule, function, what, monkeypatch):
    monkeypatch.setitem(vjp.RULES, rule, lambda writer, first, *_, node: writer.value(first))
    with pytest.raises(DifferentResultsError, match=f"The {what} differ from PyTorch's"):
        vjp_of(frozen(lambda: Applied(function=function)), Classification().outputs, pictures(3))


def net() -> nn.Module:
    """Return a small classifier."""
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
    return nets.Pooled(nn.Linear(8, 5), layer)


def accelerated(module: nn.Module, name: str = "openvino") -> AcceleratedModel:
    return AcceleratedModel(module, SIZE, (), Classification().outputs, name)


def test_a_graph_is_compiled_when_it_pays():
    model = accelerated(frozen(net))
    assert model.vjp(pictures(GRADIENTS_TO_COMPILE - 1)) is None
    assert model.vjp(pictures(1)) is not None


def test_images_that_need_a_gradient_raise_no_warning():
    model = accelerated(frozen(net))
    torch.set_warn_always(True)
    try:
        assert model.vjp(pictures(GRADIENTS_TO_COMPILE).requires_grad_()) is not None
    finally:
        torch.set_warn_always(False)


def test_pytorch_computes_what_the_graph_does_not():
    images = pictures(GRADIENTS_TO_COMPILE)
    module = frozen(net)
    model = accelerated(module)
    assert model.vjp(images) is not None
    assert model.vjp(images.double()) is None
    assert model.vjp(images[..., :-1]) is None
    with module.head.register_forward_hook(lambda *_: None):
        assert model.vjp(images) is None
    module.head.bias.add_(1)
    assert model.vjp(images) is None
    assert accelerated(frozen(net), "eager").vjp(images) is None
    assert accelerated(frozen(lambda: Applied(nn.GELU()))).vjp(images) is None


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return wrap_model(frozen(net), input_size=SIZE[1:], accelerator="openvino")


@pytest.mark.parametrize(
    ("explainer", "ask"),
    diagonal(
        [Saliency(), Saliency(smooth="tta"), SmoothGrad(samples=4), IntegratedGradients(steps=4)],
        [
            Ask(),
            Ask(torch.arange(4)),
            Ask(torch.tensor([MOST_PROBABLE, 1, MOST_PROBABLE, 3])),
            Ask(torch.arange(4), torch.tensor([4, NO_CONTRAST, 0, 1])),
            Ask(function=lambda logits: logits[:, 0] ** 2 - logits[:, 1]),
        ],
    ),
)
def test_maps_are_those_of_pytorch(explainer: Explainer, ask: Ask, model: LoadedModel):
    images = pictures(4)
    expected = explainer.explain(model.module, images, ask)
    assert model.accelerated.vjp(pictures(GRADIENTS_TO_COMPILE)) is not None
    answer = explainer.explain(model, images, ask)
    torch.testing.assert_close(answer.maps, expected.maps, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(answer.outputs, expected.outputs, atol=1e-5, rtol=1e-5)
