"""Guided backpropagation, deconvnet and guided Grad-CAM."""

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from seewhy.explainers import GradCAM
from seewhy.explainers.core.projection import keep_sign
from seewhy.explainers.methods.rules.guided import Deconvnet, GuidedBackprop, GuidedGradCAM
from tests import nets

TARGETS = torch.tensor([7, 999, 0, 7])


def by_hand(relu: nn.Module) -> nn.Module:
    """Two rectified sums of four pixels, h = ReLU(x0 + x1), ReLU(x2 - x3), and the logits h0 - h1 and h1 - h0."""
    first, second = nets.linear([[1, 1, 0, 0], [0, 0, 1, -1]]), nets.linear([[1, -1], [-1, 1]])
    return nn.Sequential(nn.Flatten(), first, relu, second)


IMAGES = torch.tensor([[1.0, 2.0, 3.0, 1.0], [1.0, -2.0, 3.0, 1.0], [4.0, 4.0, 3.0, 9.0]]).view(3, 1, 2, 2)


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        (GuidedBackprop, 0, [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]),
        (GuidedBackprop, 1, [[0, 0, 1, -1], [0, 0, 1, -1], [0, 0, 0, 0]]),
        (Deconvnet, 0, [[1, 1, 0, 0]] * 3),
        (Deconvnet, 1, [[0, 0, 1, -1]] * 3),
    ],
)
def test_the_maps_computed_by_hand(method, target, expected, untouched):
    targets = torch.full((3,), target)
    expected = torch.tensor(expected).float().view(3, 2, 2)
    for relu in (nn.ReLU(), nn.ReLU(inplace=True)):
        net = untouched(by_hand(relu))
        assert torch.equal(method(sign="signed").explain(net, IMAGES, targets).maps, expected)
        assert torch.equal(method().explain(net, IMAGES, targets).maps, expected.abs())
        contrast = method(sign="signed").explain(net, IMAGES, targets, 1 - targets).maps
        assert torch.equal(contrast, 2 * expected)


def test_beyond_six_a_relu6_has_no_slope():
    for method, expected in ((GuidedBackprop, 0.0), (Deconvnet, 1.0)):
        maps = method(sign="signed").explain(by_hand(nn.ReLU6()), IMAGES, torch.tensor([0, 0, 0])).maps
        assert maps[2].tolist() == [[expected, expected], [0, 0]]
        assert maps[0].tolist() == [[1, 1], [0, 0]]


@pytest.mark.filterwarnings("ignore")
def test_the_functional_relu_of_densenet_counts_where_captum_misses_it(images):
    """captum replaces modules only; so it is asked about the same net with a module in the function's place."""
    from captum.attr import GuidedBackprop as Peer

    net = nets.seeded(torchvision.models.DenseNet, 4, (2, 2), 8)
    maps = GuidedBackprop(sign="signed").explain(net, images[:2], TARGETS[:2]).maps
    leaf = images[:2].clone().requires_grad_()
    missed = Peer(nets.modules_of_their_own(net)).attribute(leaf, TARGETS[:2]).sum(dim=1)
    of_modules = nn.Sequential(net.features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier)
    expected = Peer(of_modules).attribute(leaf, TARGETS[:2]).sum(dim=1)
    assert nets.relative_error(maps, expected.detach()) < 1e-5
    assert nets.relative_error(missed.detach(), expected.detach()) > 0.1


def test_guided_gradcam_is_the_product_of_its_two_factors(images, untouched):
    net, layer = untouched(nets.seeded(nets.Skip)), "branch"
    cam = GradCAM(layers=(layer,)).explain(net, images, TARGETS % 3).maps
    resized = functional.interpolate(cam[:, None], size=(64, 64), mode="bilinear")[:, 0]
    guided = GuidedBackprop(sign="signed").explain(net, images, TARGETS % 3).maps
    for sign in ("signed", "absolute", "positive"):
        attribution = GuidedGradCAM(layers=(layer,), sign=sign).explain(net, images, TARGETS % 3)
        assert attribution.layers == (layer,)
        assert nets.relative_error(attribution.maps, keep_sign(guided * resized, sign)) < 1e-5
