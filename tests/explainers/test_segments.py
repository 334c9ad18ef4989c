"""Between layers with hooks a model is accelerated, forwards and backwards: hooks see the same as in the model."""

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import LayerCAM, ShapleyCAM, VotesDetail
from seewhy.explainers.execution.accelerated import PICTURES_TO_COMPILE
from seewhy.explainers.execution.segments import Segment
from seewhy.explainers.hooks.session import HookSession
from seewhy.models import LoadedModel, wrap_model
from tests import nets
from tests.grids import few

SIZE = (64, 64)
LAYERS = ("first", "second", "third.1")


def one_by_one(net: nn.Module, images: Tensor) -> Tensor:
    return net.head(net.third(net.between(net.second(net.first(images)))).mean((2, 3)))


def skipping(net: nn.Module, images: Tensor) -> Tensor:
    """The head reads the second stage too."""
    second = net.second(net.first(images))
    return net.head(net.third(second).mean((2, 3))) + second.mean((1, 2, 3))[:, None]


def stages(run=one_by_one, between: type[nn.Module] = nn.Identity) -> nn.Module:
    """Return three stages, with a step between the last two, and a linear head."""
    first = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
    second = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True))
    third, head = nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU()), nn.Linear(12, 5)
    return nets.Wired(run, first=first, second=second, between=between(), third=third, head=head)


def carried(module: nn.Module) -> LoadedModel:
    return wrap_model(module.eval().requires_grad_(False), input_size=SIZE, accelerator="openvino")


def pictures(count: int = PICTURES_TO_COMPILE) -> Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def segments(model: LoadedModel, layers: tuple[str, ...]) -> int:
    parts = model.accelerated.parts(layers, pictures())
    return sum(isinstance(part, Segment) for part in parts.suffix.modules())


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return carried(nets.seeded(stages))


@pytest.mark.parametrize(("layers", "count"), [(LAYERS, 2), (LAYERS[:2], 1), (LAYERS[1:], 1), (LAYERS[:1], 0)])
def test_a_segment_lies_between_each_two_layers(layers, count, model):
    assert segments(model, layers) == count


@pytest.mark.parametrize("explainer", [LayerCAM(layers=LAYERS), ShapleyCAM(layers=LAYERS), VotesDetail()])
@pytest.mark.parametrize("count", few([1, 5], short=[5]))
def test_maps_are_those_of_the_model(explainer, count, model):
    images = pictures(count)
    expected = explainer.explain(model.module, images)
    explainer.explain(model, pictures())
    maps = explainer.explain(model, images)
    assert maps.layers == expected.layers
    torch.testing.assert_close(maps.maps, expected.maps, atol=1e-6, rtol=1e-4)


def test_hooks_see_and_change_gradients_between_segments(model):
    def gradients(module: nn.Module, run) -> list[Tensor]:
        with HookSession(module) as hooks:
            hooks.cut(*LAYERS)
            hooks.output_gradient(lambda gradient: gradient * 3, "second")
            hooks.record(*LAYERS, kinds=("grad_output",))
            hooks.backward(run(pictures(2)).sum())
            return [hooks.grad_outputs[path][0] for path in LAYERS]

    parts = model.accelerated.parts(LAYERS, pictures())
    for actual, expected in zip(gradients(parts.suffix, parts), gradients(model.module, model.module), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("form", [(one_by_one, nn.GELU), (skipping,)], ids=["no rule", "skipped layer"])
def test_pytorch_runs_what_cannot_be_a_segment(form):
    model = carried(nets.seeded(stages, *form))
    assert segments(model, LAYERS) == 0
    images = pictures(3)
    explainer = LayerCAM(layers=LAYERS)
    torch.testing.assert_close(explainer.explain(model, images).maps, explainer.explain(model.module, images).maps)
