"""Operations are replaced however they are called, and those without a rule are refused by name."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import Saliency
from seewhy.explainers.errors import ModelOutputError, UnsupportedOperationError
from seewhy.explainers.methods.rules.deeplift import DeepLIFT
from seewhy.explainers.methods.rules.excitation import ExcitationBackprop
from seewhy.explainers.methods.rules.guided import GuidedBackprop
from seewhy.explainers.methods.rules.lrp import LRP
from tests import nets
from tests.grids import few

METHODS = [GuidedBackprop(sign="signed"), LRP(), LRP(composite="epsilon"), DeepLIFT(), ExcitationBackprop()]
TARGETS = torch.tensor([0, 2, 1, 1])


class Calls(nn.Module):
    """Two convolutions, each rectified in the way that is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 5, 3, stride=2)
        self.head = nn.Linear(5, 3)
        self.relus = nn.ModuleList([nn.ReLU(), nn.ReLU()])
        self.relu = nn.ReLU(inplace="in-place" in way)

    def rectified(self, features: Tensor, place: int) -> Tensor:
        ways = {
            "module": lambda: self.relus[place](features),
            "repeated": lambda: self.relu(features),
            "repeated in-place": lambda: self.relu(features),
            "functional": lambda: functional.relu(features),
            "functional in-place": lambda: functional.relu(features, inplace=True),
            "torch": lambda: torch.relu(features),
            "torch in-place": lambda: torch.relu_(features),
            "method": lambda: features.relu(),
            "method in-place": lambda: features.relu_(),
            "clamp": lambda: features.clamp(min=0),
            "clamp in-place": lambda: features.clamp_(0),
            "clamp_min": lambda: torch.clamp_min(features, 0),
            "hardtanh": lambda: functional.hardtanh(features, 0.0, 1e4),
            "threshold": lambda: functional.threshold(features, 0.0, 0.0),
        }
        result = ways[self.way]()
        # Whoever holds what was rectified in place holds the new values.
        return features if "in-place" in self.way else result

    def forward(self, images: Tensor) -> Tensor:
        features = self.rectified(self.stem(images), 0)
        return self.head(self.rectified(self.conv(features), 1).mean(dim=(2, 3)))


WAYS = ["repeated", "functional", "torch", "method", "clamp", "clamp_min", "hardtanh", "threshold"]


@pytest.mark.parametrize(
    "way", few([*WAYS, *(f"{way} in-place" for way in WAYS[:5])], ["functional", "clamp_min", "repeated in-place"])
)
@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
def test_it_does_not_matter_how_a_rectifier_is_called(explainer, way, images, untouched):
    expected = explainer.explain(nets.seeded(Calls, "module"), images, TARGETS)
    attribution = explainer.explain(untouched(nets.seeded(Calls, way)), images, TARGETS)
    assert expected.maps.abs().max() > 0
    assert torch.equal(attribution.logits, expected.logits)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-5


@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
@pytest.mark.parametrize("kind", [nets.PreActivation, nets.Skip, nets.AddsInto, nets.SharedInside, nets.Twice])
def test_the_models_answer_stays_the_same(explainer, kind, images, untouched):
    net = nets.seeded(*((kind, 4, 6) if kind is nets.SharedInside else (kind,)))
    with torch.no_grad():
        expected = net(images.clone())
    attribution = explainer.explain(untouched(net), images, TARGETS)
    torch.testing.assert_close(attribution.logits, expected)
    assert attribution.maps.abs().max() > 0


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def middle(function) -> nn.Module:
    """A function of the features, between the convolutions and the head."""
    return nets.seeded(nets.Middle, lambda _, features: function(features))


def on_a_view(features: Tensor) -> Tensor:
    features[:, :2].sigmoid_()
    return features


@torch.no_grad()
def without_gradient(features: Tensor) -> Tensor:
    return features.sigmoid()


REFUSED = {
    "silu": (functional.silu, {"guided-backprop", "excitation-backprop"}),
    "gelu": (functional.gelu, {"guided-backprop", "excitation-backprop"}),
    "leakyrelu": (functional.leaky_relu, {"guided-backprop"}),
    "softmax": (lambda features: features.softmax(dim=1), {"guided-backprop", "deeplift", "excitation-backprop"}),
    "mul": (lambda features: features * features.mean(dim=1, keepdim=True), {"excitation-backprop"}),
    "cumsum": (lambda features: features.cumsum(dim=1), {"lrp"}),
    "maximum": (lambda features: torch.maximum(features, torch.zeros_like(features)), set()),
    "gt": (lambda features: features * (features > 0), set()),
    "gt ": (lambda features: torch.where(features > 0, features, 0.0), set()),
    "detach": (lambda features: features * features.detach().sigmoid(), set()),
    "sigmoid": (lambda features: features * without_gradient(features), set()),
    "sigmoid ": (on_a_view, {"excitation-backprop"}),
    "Custom": (Custom.apply, set()),
    "nativelayernorm": (lambda features: functional.layer_norm(features, (32, 32)), {"deeplift"}),
    "bmm": (lambda features: features.flatten(1, 2) @ features.flatten(1, 2).mT, {"deeplift"}),
}
NAMED = {"guided-backprop": GuidedBackprop(), "lrp": LRP(), "deeplift": DeepLIFT()}
NAMED["excitation-backprop"] = ExcitationBackprop()


@pytest.mark.parametrize(
    ("operation", "name"),
    [(operation, name) for operation, (_, names) in REFUSED.items() for name in sorted(names or NAMED)],
)
def test_what_has_no_rule_is_refused_by_name(operation, name, images, untouched):
    net = middle(REFUSED[operation][0])
    if operation == "bmm":
        net.forward = lambda pictures: net.head(net.middle(net.conv(net.stem(pictures)))[:, :5, 0])
    with pytest.raises(UnsupportedOperationError, match=f"'{name}' has no rule for the operation") as caught:
        NAMED[name].explain(untouched(net), images)
    assert caught.value.operation == operation.strip()


@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
def test_what_is_done_in_place_to_a_view_counts(explainer, images):
    def overwrite(features: Tensor) -> Tensor:
        first, second = features[:, :2], features[:, 2:]
        first += second.mean(dim=1, keepdim=True)
        second.mul_(2).relu_()
        return features.relu()

    def plain(features: Tensor) -> Tensor:
        first, second = features[:, :2], features[:, 2:]
        first = first + second.mean(dim=1, keepdim=True)
        return torch.cat([first, (second * 2).relu()], dim=1).relu()

    expected = explainer.explain(middle(plain), images, TARGETS)
    attribution = explainer.explain(middle(overwrite), images, TARGETS)
    assert torch.equal(attribution.logits, expected.logits)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-5


@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
def test_values_that_only_move_need_no_rule(explainer, images):
    def moved(features: Tensor) -> Tensor:
        first, second = features.relu().permute(0, 2, 3, 1).flip(1).split([2, 3], dim=3)
        shuffled = torch.cat([second, first], dim=3).permute(0, 3, 1, 2).contiguous()
        shuffled = functional.unfold(shuffled, 1).view_as(shuffled)
        return functional.pad(shuffled, (1, 2, 0, 1))[:, [3, 4, 0, 1, 2], :-1, 1:-2].flip(2)

    expected = explainer.explain(middle(torch.relu), images, TARGETS).maps
    maps = explainer.explain(middle(moved), images, TARGETS).maps
    assert nets.relative_error(maps, expected) < 1e-5


@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
def test_parameters_get_no_gradient_and_standardised_weights_are_constants(explainer, images, untouched):
    class Standardised(nn.Conv2d):
        def forward(self, values: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
            weight = weight / weight.std(dim=(1, 2, 3), keepdim=True)
            return self._conv_forward(values, weight * torch.sigmoid(self.weight.mT).mT, self.bias)

    net = nets.seeded(nets.Net)
    conv = nets.seeded(Standardised, 4, 5, 3, 2, 1)
    net.conv = conv
    maps = explainer.explain(untouched(net), images, TARGETS).maps
    plain = nets.seeded(nets.Net)
    with torch.no_grad():
        weight = conv.weight - conv.weight.mean(dim=(1, 2, 3), keepdim=True)
        plain.conv.weight.copy_(weight / weight.std(dim=(1, 2, 3), keepdim=True) * conv.weight.sigmoid())
        plain.conv.bias.copy_(conv.bias)
    assert torch.equal(explainer.explain(plain, images, TARGETS).maps, maps)


@pytest.mark.parametrize("explainer", METHODS, ids=lambda explainer: type(explainer).__name__)
def test_a_model_that_switches_gradients_off_is_refused(explainer, images):
    for wrap in (torch.detach, lambda logits: logits.detach() + 1):
        with pytest.raises(ModelOutputError, match="No gradient flows"):
            explainer.explain(nets.Wrapped(nets.seeded(nets.Net), wrap), images)


def test_other_threads_keep_their_gradients(images):
    net = nets.seeded(nets.Twice)
    explainers = [GuidedBackprop(sign="signed"), Saliency(sign="signed"), LRP(), DeepLIFT()] * 4
    expected = [explainer.explain(net, images, TARGETS).maps for explainer in explainers[:4]] * 4
    assert nets.relative_error(expected[0], expected[1]) > 0.01
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda explainer: explainer.explain(net, images, TARGETS).maps, explainers))
    for maps, alone in zip(values, expected, strict=True):
        assert torch.equal(maps, alone)


def test_an_exception_of_the_model_ends_the_mode(images):
    with pytest.raises(ZeroDivisionError):
        GuidedBackprop().explain(nets.seeded(nets.Fails), images)
    assert torch.overrides._get_current_function_mode() is None


def scaled(combine, gate) -> nn.Module:
    """Something is done with features and with what is given, which may depend on them."""
    return middle(lambda features: combine(features, gate(features)))


PRODUCTS = [
    torch.mul,
    lambda first, second: torch.mul(first, other=second),
    lambda first, second: torch.mul(input=first, other=second),
    lambda first, second: torch.mul(other=second, input=first),
    lambda first, second: first.mul(other=second),
    lambda first, second: torch.multiply(first, other=second),
    lambda first, second: torch.mul(second, other=first),
]
QUOTIENTS = [
    torch.div,
    lambda first, second: torch.div(first, other=second),
    lambda first, second: torch.div(input=first, other=second),
    lambda first, second: first.div(other=second, rounding_mode=None),
    lambda first, second: first.div(second),
]


def _constant(features: Tensor) -> Tensor:
    return torch.linspace(0.5, 2, 5).view(1, 5, 1, 1)


def _gate(features: Tensor) -> Tensor:
    return features.mean(dim=1, keepdim=True) + 3


@pytest.mark.parametrize("explainer", [LRP(), LRP(composite="epsilon"), DeepLIFT(), ExcitationBackprop()])
@pytest.mark.parametrize("calls", [PRODUCTS, QUOTIENTS])
def test_scaling_is_the_same_however_its_arguments_are_given(calls, explainer, images):
    first, *maps = (explainer.explain(scaled(call, _constant), images, TARGETS).maps for call in calls)
    for result in maps:
        torch.testing.assert_close(result, first)


@pytest.mark.parametrize("call", PRODUCTS)
def test_products_of_activations_are_seen_however_their_arguments_are_given(call, images):
    net = scaled(call, _gate)
    with pytest.raises(UnsupportedOperationError, match="'mul'"):
        ExcitationBackprop().explain(net, images, TARGETS)
    for explainer in (LRP(), DeepLIFT()):
        expected = explainer.explain(scaled(torch.mul, _gate), images, TARGETS).maps
        assert nets.relative_error(explainer.explain(net, images, TARGETS).maps, expected) < 1e-5


@pytest.mark.parametrize("call", QUOTIENTS)
def test_quotients_of_activations_are_seen_however_their_arguments_are_given(call, images):
    net = scaled(call, _gate)
    for explainer in (ExcitationBackprop(), DeepLIFT()):
        with pytest.raises(UnsupportedOperationError, match="'div'"):
            explainer.explain(net, images, TARGETS)
    expected = LRP().explain(scaled(torch.div, _gate), images, TARGETS).maps
    assert nets.relative_error(LRP().explain(net, images, TARGETS).maps, expected) < 1e-5


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("explainer", [LRP(), DeepLIFT(), ExcitationBackprop()])
def test_division_that_rounds_is_refused(explainer, mode, images):
    net = scaled(lambda first, second: torch.div(first, second, rounding_mode=mode), _constant)
    with pytest.raises(UnsupportedOperationError, match="'div'"):
        explainer.explain(net, images, TARGETS)
