"""Heads in closed form: outputs, gradients and maps are those of the model, and no other head is taken for one."""

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.execution.cut import cut_before
from seewhy.explainers.execution.pooled_head import PooledHead, pooled_head
from seewhy.explainers.methods.catalogue import get_method
from tests import nets
from tests.explainers.test_accelerated import SIZE, Carried


class Headed(nn.Module):
    """A convolution, and a head that reads its output."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 6, 3, stride=8), head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layer(images))


def pooled(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *parts)


class Scaled(nn.Linear):
    """Not quite linear layers, such as those with adapters."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values)


LINEAR = {
    "pooled": lambda: pooled(nn.Linear(6, 7)),
    "without a bias": lambda: pooled(nn.Dropout(), nn.Linear(6, 7, bias=False)),
    "one output": lambda: pooled(nn.Linear(6, 1)),
}


class Mixed(nn.Module):
    """A count, and probabilities, whose logits are tiny beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 7)
        self.linear.weight.data[0] *= 1e8

    def forward(self, values: Tensor) -> Tensor:
        outputs = self.linear(values)
        return torch.cat([outputs[:, :1], outputs[:, 1:].sigmoid()], dim=1)


class Guard(nn.Module):
    """Refuses large features."""

    def forward(self, values: Tensor) -> Tensor:
        if float(values.abs().max()) > 1e3:
            raise ValueError("These features are out of range.")
        return values


OTHERS = {
    "mixed scales": lambda: pooled(Mixed()),
    "guarded": lambda: pooled(Guard(), nn.Linear(6, 7)),
    "with a state": lambda: pooled(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 7)),
    "the largest values": lambda: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 7)),
    "rectified before": lambda: nn.Sequential(nn.ReLU(), pooled(nn.Linear(6, 7))),
    "clamped after": lambda: pooled(nn.Linear(6, 7), nn.Hardtanh(-50, 50)),
    "two layers": lambda: pooled(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 7)),
    "a list of positions": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6 * 64, 7)),
    "a quadrant": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 7)),
    "normed": lambda: pooled(nn.LayerNorm(6), nn.Linear(6, 7)),
    "a layer of another class": lambda: pooled(Scaled(6, 7)),
}


def headed(make) -> Headed:
    return nets.seeded(lambda: Headed(make())).requires_grad_(False)


def head_of(model: nn.Module, images: Tensor) -> PooledHead | None:
    cut = cut_before(model, ("layer",), images[:1])
    with torch.no_grad():
        return pooled_head(cut.suffix, cut.prefix(images.clone()))


@pytest.mark.parametrize("kind", LINEAR)
def test_outputs_and_gradients_are_those_of_autograd(kind, images):
    model = headed(LINEAR[kind])
    head, features = head_of(model, images), model.layer(images).requires_grad_()
    expected = model.head(features)
    torch.testing.assert_close(head.outputs(features), expected)
    seeds = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (gradients,) = torch.autograd.grad(expected, features, seeds)
    torch.testing.assert_close(head.gradients(seeds, features), gradients)


@pytest.mark.parametrize("name", ["eager", "openvino"])
@pytest.mark.parametrize("kind", LINEAR)
def test_an_accelerator_runs_the_head_too(kind, name, images, monkeypatch):
    module = headed(LINEAR[kind])
    model, expected = Carried(module, ("layer",), name), module(images)
    monkeypatch.setattr(PooledHead, "outputs", None)
    features, outputs = model.accelerated.parts(("layer",), images).prefix(images)
    torch.testing.assert_close(features, module.layer(images), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", OTHERS)
def test_no_other_head_is_taken_for_one(kind, images):
    assert head_of(headed(OTHERS[kind]), images) is None


ASKED = {
    "best": {},
    "contrasts": {"targets": torch.tensor([0, 6, 3]), "against": torch.tensor([1, NO_CONTRAST, 2])},
    "a function": {"targets": lambda outputs: outputs[:, 3].exp() - outputs[:, 5]},
    "a function in place": {"targets": lambda outputs: outputs.sub_(outputs.mean(dim=1, keepdim=True))[:, 3]},
}


@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "layercam", "votes", "eigencam"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("is_one", [False, True], ids=["three pictures", "one, asked about three times"])
def test_maps_are_those_of_the_model_in_pytorch(method, asked, is_one, images):
    module = headed(LINEAR["pooled"])
    model, given = Carried(module, ("layer",), "eager"), images[:1].expand(3, -1, -1, -1) if is_one else images[:3]
    assert model.accelerated.parts(("layer",), given).head is not None
    explainer = get_method(method).build({"layers": ("layer",)})
    expected, actual = (explainer.explain(carrier, given, **ASKED[asked]) for carrier in (module, model))
    torch.testing.assert_close(actual.maps, expected.maps, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(actual.outputs, expected.outputs)
    assert torch.equal(actual.targets, expected.targets)
    assert expected.maps.abs().max() > 1e-3
    assert given.shape[1:] == SIZE
