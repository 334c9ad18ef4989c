import numpy as np
import pytest
import torch
from torch import nn

from seewhy.explainers import get_method
from seewhy.explainers.methods.cam.gradcam_plus_plus import GradCAMPlusPlus, SmoothGradCAMPlusPlus
from tests import nets
from tests.explainers.methods.test_cam_gradient import FEATURES, by_hand

TARGETS = torch.tensor([7, 999, 0, 7])


def test_the_map_computed_by_hand(untouched):
    explainer = GradCAMPlusPlus(layers=("layer",), sign="signed")
    attribution = explainer.explain(untouched(by_hand()), FEATURES[None], torch.tensor([0]))
    # The sums of the features are 10 and 4; of the gradients 1, -1, 0, 2 and 5, 2, 1, -2 the positive ones count.
    first = 1 / (2 + 10 * 1) + 2 / (2 + 10 * 2)
    second = 5 / (2 + 4 * 5) + 2 / (2 + 4 * 2) + 1 / (2 + 4 * 1)
    torch.testing.assert_close(attribution.maps[0], first * FEATURES[0] + second * FEATURES[1])


def test_the_weights_are_those_of_the_derivatives_of_the_exponential_score(untouched):
    """Equation 19 with the second and third derivatives of exp(y) by autograd, not in closed form."""
    net = untouched(by_hand().double())
    features = FEATURES[None].double().requires_grad_()
    score = net(features)[0, 0].exp()
    (first,) = torch.autograd.grad(score, features, create_graph=True)
    second, third = torch.zeros_like(features), torch.zeros_like(features)
    for index in np.ndindex(features.shape):
        (row,) = torch.autograd.grad(first[index], features, create_graph=True)
        second[index] = row[index]
        (row,) = torch.autograd.grad(row[index], features, retain_graph=True)
        third[index] = row[index]
    shares = second / (2 * second + features.sum(dim=(2, 3), keepdim=True) * third)
    shares = torch.where(first == 0, 0.0, shares)
    weights = (shares * first.relu()).sum(dim=(2, 3), keepdim=True) / score
    expected = (weights * features).sum(dim=1).detach()
    result = GradCAMPlusPlus(layers=("layer",), sign="signed").explain(net, FEATURES[None].double(), torch.tensor([0]))
    assert nets.relative_error(result.maps, expected.float()) < 1e-6


@pytest.mark.parametrize("name", ["gradcam++", "smoothgradcam++", "xgradcam"])
def test_a_sum_that_rounding_made_decides_nothing(name):
    """Features of either sign: their sum is zero but for rounding, or makes the denominator zero."""
    gradients = {"xgradcam": 1.0}.get(name, 0.5)
    total = {"xgradcam": 0.0}.get(name, -2 / gradients)
    features = torch.tensor([3.0, -3.0, 5.0, -5.0 + total]).view(1, 1, 2, 2).repeat(1, 2, 1, 1)
    features[:, 1] = features[:, 1].abs()
    options = {"samples": 1, "noise": 0} if name == "smoothgradcam++" else {}
    explainer = get_method(name).build({"layers": ["layer"], "sign": "signed", **options})
    net, maps = nets.Pooled(nets.linear(torch.full((2, 2), 4 * gradients))), []
    for rounding in (-1e-6, 0.0, 1e-6):
        values = features.clone()
        values[0, 0, 0, 0] += rounding
        maps.append(explainer.explain(net, values, torch.tensor([0])).maps)
    assert nets.relative_error(maps[0], maps[1]) < 1e-3
    assert nets.relative_error(maps[2], maps[1]) < 1e-3


def test_one_sample_without_noise_is_gradcam_plus_plus(resnet18, images):
    expected = GradCAMPlusPlus(sign="signed").explain(resnet18, images, TARGETS)
    attribution = SmoothGradCAMPlusPlus(sign="signed", samples=1, noise=0).explain(resnet18, images, TARGETS)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-5
    assert attribution.layers == expected.layers == ("layer4",)
    assert torch.equal(attribution.logits, expected.logits)


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(nets.InPlaceModule)


def test_derivatives_are_averaged_before_they_are_weighed(net, images):
    result = SmoothGradCAMPlusPlus(layers=("relu",), sign="signed", samples=3, noise=0.2, seed=5)
    picture, target = images[:1], torch.tensor([2])
    seeds = torch.randint(2**63 - 1, (3,), generator=torch.Generator().manual_seed(5))
    noise = [torch.randn(picture.shape[1:], generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
    spread = 0.2 * (picture.max() - picture.min())
    gradients = torch.stack([_behind_relu(net, picture + spread * sample, target) for sample in noise]).double()
    features = net.conv(net.stem(picture)).relu().detach()
    first, second, third = (gradients**order for order in (1, 2, 3))
    share = second.mean(0) / (2 * second.mean(0) + features.sum(dim=(2, 3), keepdim=True) * third.mean(0))
    weights = (share * first.mean(0).relu()).sum(dim=(2, 3), keepdim=True)
    expected = (weights * features).sum(dim=1).float()
    assert nets.relative_error(result.explain(net, picture, target).maps, expected) < 1e-5


def _behind_relu(net, picture, target):
    features = net.conv(net.stem(picture)).relu().detach().requires_grad_()
    logits = net.head(features.mean(dim=(2, 3)))
    (gradients,) = torch.autograd.grad(logits[0, int(target)] + 0 * features.sum(), features)
    return gradients
