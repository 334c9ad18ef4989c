"""Excitation backpropagation."""

import pytest
import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers.errors import LayerError
from seewhy.explainers.methods.rules.excitation import ExcitationBackprop
from seewhy.explainers.methods.rules.lrp import LRP
from tests import nets
from tests.explainers.test_catalogue import small
from tests.grids import few

TARGETS = torch.tensor([3, 7])
STOCK = {
    "small": "conv",
    "resnet18": "layer3",
    "densenet121": "features.denseblock3",
    "mobilenet_v2": "features.13",
    "squeezenet1_1": "features.7",
    "shufflenet_v2_x0_5": "stage3",
}


def excited(net: nn.Module, images: Tensor) -> Tensor:
    """Pixels 1, 2, 3 excite two hidden units (with 1 + 4 - 3 = 2 and 2 + 3 = 5), these two logits."""
    pixels = images.permute(0, 3, 1, 2)  # so that channels are places of the map
    return net.head(net.relu(net.hidden(pixels)).flatten(1))


def by_hand(run, bias: float, head_bias: float) -> nn.Module:
    hidden = nets.pointwise([[1, 2, -1], [0, 1, 1]], [bias, 0])
    head = nets.linear([[1, 1], [-1, 2]], [head_bias, head_bias])
    return nets.Wired(run, hidden=hidden, relu=nn.ReLU(inplace=True), head=head)


IMAGE = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_probabilities_by_hand(bias, untouched):
    net = by_hand(excited, bias, -30)
    first, second = 2 + bias, 5
    walks = torch.tensor([[1 / 5, 4 / 5, 0], [0, 2 / 5, 3 / 5]])
    mixture = (first * walks[0] + second * walks[1]) / (first + second)
    untouched(net)
    for target, expected in ((0, mixture), (1, walks[1])):
        attribution = ExcitationBackprop().explain(net, IMAGE, torch.tensor([target]))
        torch.testing.assert_close(attribution.maps[0, 0], expected)
        assert attribution.layers == ()
        assert not attribution.signed
    contrast = ExcitationBackprop(sign="signed").explain(net, IMAGE, torch.tensor([1]), torch.tensor([0])).maps[0, 0]
    torch.testing.assert_close(contrast, walks[1] - mixture)


@pytest.mark.parametrize("name", few(STOCK, short=["small", "squeezenet1_1"]))
def test_maps_are_probabilities(name, images, untouched):
    net = untouched(small() if name == "small" else nets.seeded(torchvision.models.get_model, name))
    targets = TARGETS % (4 if name == "small" else 1000)
    for layers in ((), (STOCK[name],)):
        attribution = ExcitationBackprop(layers=layers, sign="signed").explain(net, images[:2], targets)
        assert attribution.layers == layers
        assert attribution.maps.min() >= 0
        torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), torch.ones(2), rtol=1e-4, atol=0)
        contrast = ExcitationBackprop(layers=layers, sign="signed").explain(net, images[:2], targets, (targets + 1) % 4)
        assert contrast.maps.sum(dim=(1, 2)).abs().max() < 1e-4
        assert contrast.maps.abs().max() > 0


def test_without_biases_it_is_z_plus_of_a_positive_logit(images):
    net = nets.seeded(torchvision.models.squeezenet1_1)  # whose convolutions have no bias at first
    targets = net(images[:2]).argmax(dim=1)
    attribution = ExcitationBackprop().explain(net, images[:2], targets)
    expected = LRP(composite="z-plus").explain(net, images[:2], targets)
    scores = expected.logits[[0, 1], targets]
    assert scores.min() > 0
    assert nets.relative_error(attribution.maps, expected.maps / scores[:, None, None]) < 1e-4


def test_at_a_layer_it_is_what_arrives_there():
    net = by_hand(lambda net, images: net.head(net.relu(net.hidden(images)).mean(dim=(2, 3))), 0, 0)
    image = torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    hidden = net.hidden(image).relu().detach()
    for target, weights in ((0, [1.0, 1.0]), (1, [0.0, 2.0])):
        excited = hidden * torch.tensor(weights)[None, :, None, None]
        maps = ExcitationBackprop(layers=("hidden",)).explain(net, image, torch.tensor([target])).maps
        torch.testing.assert_close(maps, (excited / excited.sum()).sum(dim=1))


def test_several_layers_are_fused_and_others_refused(resnet18, images):
    attribution = ExcitationBackprop(layers=("layer4", "layer2")).explain(resnet18, images[:2], TARGETS)
    assert attribution.layers == ("layer2", "layer4")
    assert attribution.maps.shape == (2, 8, 8)
    with pytest.raises(LayerError, match="runs 2 times"):
        ExcitationBackprop(layers=("layer1.0.relu",)).explain(resnet18, images[:2], TARGETS)
    within = ExcitationBackprop(layers=("layer1.0.conv2",)).explain(resnet18, images[:2], TARGETS).maps
    torch.testing.assert_close(within.sum(dim=(1, 2)), torch.ones(2))
