"""Layer-wise relevance propagation."""

from copy import deepcopy
from typing import get_args

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from seewhy.explainers.methods.rules.excitation import ExcitationBackprop
from seewhy.explainers.methods.rules.linear import Linear, box_rule
from seewhy.explainers.methods.rules.lrp import LRP, CompositeName
from seewhy.explainers.methods.transformer.attnlrp import AttnLRP
from tests import nets
from tests.explainers.test_attention import build, pictures
from tests.explainers.test_catalogue import small
from tests.grids import diagonal

COMPOSITES = get_args(CompositeName)
TARGETS = torch.tensor([3, 7])


IMAGE = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)


def dense(bias: float = 0.0) -> nn.Module:
    """One dense layer: logits 1*1 - 2*2 + 3*3 + b = 6 + b and, of the signs reversed, -6 + b."""
    return nn.Sequential(nn.Flatten(), nets.linear([[1, -2, 3], [-1, 2, -3]], [bias, bias]))


def dense_map(lrp: LRP, bias: float = 0.0, target: int = 0) -> Tensor:
    return lrp.explain(dense(bias), IMAGE, torch.tensor([target])).maps[0, 0]


@pytest.mark.parametrize(
    ("composite", "target", "expected"),
    [
        ("epsilon", 0, [1, -4, 9]),
        ("epsilon", 1, [-1, 4, -9]),
        ("gamma", 0, [6 * 2 / 16, 6 * -4 / 16, 6 * 18 / 16]),  # gamma 1: 2 * 1 - 4 + 2 * 9 = 16
        ("gamma", 1, [-6 * 2 / 16, 6 * 4 / 16, -6 * 18 / 16]),
        ("z-plus", 0, [0.6, 0, 5.4]),
        ("z-plus", 1, [-0.6, 0, -5.4]),
        ("epsilon-plus-flat", 0, [2, 2, 2]),
        ("epsilon-alpha2-beta1", 0, [1.2, -6, 10.8]),
        # Contributions beyond those of 1 (times positive weights) and 3 (times negative ones): 0, -2 * (2 - 3), 3 * 2.
        ("epsilon-gamma-box", 0, [0, 6 * 2 / 8, 6 * 6 / 8]),
    ],
)
def test_the_rules_by_hand(composite, target, expected, untouched):
    result = LRP(composite=composite, gamma=1.0).explain(untouched(dense()), IMAGE, torch.tensor([target]))
    torch.testing.assert_close(result.maps[0, 0], torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-5)
    assert result.signed


def tokens() -> nn.Module:
    """A dense layer of each of eight tokens of six channels."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.embed(images.reshape(len(images), 8, 6)).relu().mean(dim=1))

    return nets.Wired(run, embed=nn.Linear(6, 4), head=nn.Linear(4, 3))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3)),
        tokens,
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 3)),
    ],
)
def test_the_box_of_a_picture_is_its_own(build, generator):
    net, pictures = nets.seeded(build), torch.randn(2, 3, 4, 4, generator=generator)
    pictures[1] *= 5
    lrp, targets = LRP(composite="epsilon-gamma-box"), torch.tensor([0, 2])
    together = lrp.explain(net, pictures, targets).maps
    for row in range(2):
        alone = lrp.explain(net, pictures[row : row + 1], targets[row : row + 1]).maps[0]
        torch.testing.assert_close(together[row], alone)


def test_the_box_of_tokens_has_an_end_for_each_channel():
    values = torch.tensor([[[1.0, 5.0], [3.0, -5.0]]])
    weight = torch.tensor([[2.0, -1.0]])
    linear = Linear(lambda inputs, factors: functional.linear(inputs, factors), values, weight, torch.zeros(1), values)
    result = box_rule(linear, torch.ones(1, 2, 1))
    # Beyond 2 * 1 and -1 * 5: 0 and 0 of the first token, 4 and 10 of the second.
    torch.testing.assert_close(result, torch.tensor([[[0.0, 0.0], [4 / 14, 10 / 14]]]))


@pytest.mark.parametrize("bias", [2.0, -3.0])
def test_biases_keep_their_share(bias):
    expected = torch.tensor([1.0, -4.0, 9.0])
    torch.testing.assert_close(dense_map(LRP(composite="epsilon", epsilon=1e-9), bias), expected)
    share = (6 + bias) / (10 + max(bias, 0))
    torch.testing.assert_close(dense_map(LRP(composite="z-plus"), bias), expected.clamp_min(0) * share)


def test_a_large_epsilon_keeps_relevance_back():
    expected = torch.tensor([1.0, -4.0, 9.0]) * 6 / 7
    for target, sign in ((0, 1), (1, -1)):
        heatmap = dense_map(LRP(composite="epsilon", epsilon=1.0), target=target)
        torch.testing.assert_close(heatmap, sign * expected)


def test_no_gamma_is_epsilon_and_a_large_gamma_is_z_plus(resnet18, images):
    zero = LRP(composite="gamma", gamma=0).explain(resnet18, images[:1], TARGETS[:1]).maps
    epsilon = LRP(composite="epsilon", epsilon=1e-9).explain(resnet18, images[:1], TARGETS[:1]).maps
    assert nets.relative_error(zero, epsilon) < 1e-3
    large, plus = dense_map(LRP(composite="gamma", gamma=1000), 1.0), dense_map(LRP(composite="z-plus"), 1.0)
    assert nets.relative_error(large, plus) < 2e-3


def without_biases(net: nn.Module) -> nn.Module:
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear | nn.BatchNorm2d) and part.bias is not None:
            part.bias.data.zero_()
        if isinstance(part, nn.BatchNorm2d):
            part.weight.data.mul_(torch.linspace(-1, 3, len(part.weight)))
            part.running_mean.zero_()
    return net


STOCK = ["resnet18", "densenet121", "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5"]


@pytest.mark.parametrize(
    ("name", "composite"),
    [
        *(("small", composite) for composite in COMPOSITES),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in diagonal(STOCK, COMPOSITES)),
    ],
)
def test_without_biases_the_map_sums_to_the_logit(name, composite, images):
    net = small() if name == "small" else nets.seeded(torchvision.models.get_model, name)
    net, targets = without_biases(net).double(), TARGETS % (4 if name == "small" else 1000)
    attribution = LRP(composite=composite, epsilon=1e-30).explain(net, images[:2].double(), targets)
    scores = attribution.logits[[0, 1], targets]
    assert scores.abs().min() > 0
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), scores, rtol=1e-3, atol=0)


@pytest.mark.parametrize("composite", COMPOSITES)
def test_batch_norm_is_folded_into_the_convolution_before_it(composite, images, untouched):
    conv, norm = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
    norm.weight.data = torch.tensor([1.0, -2.0, 0.5, 1.5, -0.3, 2.0])
    norm.bias.data, norm.running_mean = torch.linspace(-1, 1, 6), torch.linspace(0.5, -0.5, 6)
    head = [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 10)]
    net = untouched(nn.Sequential(conv, norm, *head).eval())
    expected = LRP(composite=composite).explain(
        nn.Sequential(fuse_conv_bn_eval(conv, norm), *head), images[:2], TARGETS
    )
    attribution = LRP(composite=composite).explain(net, images[:2], TARGETS)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-4


def test_batch_norm_of_anything_else_shares_with_its_bias(images):
    norm = nn.BatchNorm2d(3)
    norm.weight.data, norm.bias.data = torch.tensor([2.0, -1.0, 3.0]), torch.tensor([0.5, -0.5, 1.0])
    norm.running_mean = torch.tensor([0.1, 0.0, -0.1])
    head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
    norm.eval()
    normalised = norm(images[:2]).detach().requires_grad_()
    (weights,) = torch.autograd.grad(head(normalised)[[0, 1], TARGETS].sum(), normalised)
    scale = (norm.weight / (1 + norm.eps) ** 0.5).detach()[:, None, None]
    maps = LRP(composite="epsilon", epsilon=1e-9).explain(nn.Sequential(norm, head), images[:2], TARGETS).maps
    assert nets.relative_error(maps, (weights * scale * images[:2]).sum(dim=1)) < 1e-3


def shortcut(pixels: Tensor) -> Tensor:
    """Logits 2x + (x + 1) and, of another class, x - (x * 3) / 2."""
    first = 2 * pixels
    first += pixels + 1
    return torch.cat([first, pixels - pixels * 3 / 2], dim=1)


def test_additions_share_by_contribution_and_constants_are_biases():
    net, image = nets.Wrapped(nn.Flatten(), shortcut), torch.full((1, 1, 1, 1), 4.0)
    for composite, target, expected in (
        ("epsilon", 0, 13 * (8 / 13 + 5 / 13 * 4 / 5)),
        ("epsilon", 1, -2.0),  # 4 of 4 - 6, and -6 of it
        ("z-plus", 0, 12.0),
        ("z-plus", 1, -2.0),
    ):
        maps = LRP(composite=composite, epsilon=1e-9).explain(net, image, torch.tensor([target])).maps
        torch.testing.assert_close(maps.flatten()[0].item(), expected, rtol=1e-5, atol=1e-5)


def test_max_pooling_goes_to_the_winner_and_average_pooling_by_contribution():
    image = torch.tensor([[1.0, 3.0], [4.0, 2.0]]).view(1, 1, 2, 2)
    largest = nn.Sequential(nn.MaxPool2d(2), nn.Flatten())
    mean = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    lrp = LRP(composite="epsilon", epsilon=1e-9)
    assert lrp.explain(largest, image, torch.tensor([0])).maps[0].tolist() == [[0, 0], [4, 0]]
    torch.testing.assert_close(lrp.explain(mean, image, torch.tensor([0])).maps[0], image[0, 0] / 4)


def test_resizing_shares_relevance_by_contribution():
    net = nn.Sequential(nn.Upsample((1, 3), mode="bilinear", align_corners=True), nn.Flatten())
    image = torch.tensor([2.0, 6.0]).view(1, 1, 1, 2)  # becomes 2, 4, 6
    for composite in ("epsilon", "z-plus"):
        maps = LRP(composite=composite, epsilon=1e-9).explain(net, image, torch.tensor([1])).maps
        torch.testing.assert_close(maps.flatten(), torch.tensor([1.0, 3.0]))
    maps = ExcitationBackprop().explain(net, image, torch.tensor([1])).maps
    torch.testing.assert_close(maps.flatten(), torch.tensor([0.25, 0.75]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("composite", ["epsilon", "gamma", "z-plus"])
def test_it_equals_captum_on_squeezenet(composite, images):
    """On pictures without negative values, for positive logits: captum's gamma and alpha-beta rules suppose both."""
    from captum import attr
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule

    net = nets.modules_of_their_own(nets.seeded(torchvision.models.squeezenet1_1))
    net, pictures = net.double(), images[:2].abs().double()
    targets = net(pictures).argmax(dim=1)
    attribution = LRP(composite=composite, epsilon=1e-9).explain(net, pictures, targets)
    assert attribution.logits.amax(dim=1).min() > 0
    rules = {"epsilon": EpsilonRule(epsilon=1e-9), "gamma": GammaRule(gamma=0.25), "z-plus": Alpha1_Beta0_Rule()}
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            part.rule = deepcopy(rules[composite])
        elif isinstance(part, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
            part.rule = EpsilonRule(epsilon=1e-9)
    expected = attr.LRP(net).attribute(pictures.clone().requires_grad_(), targets).sum(dim=1).detach().float()
    assert nets.relative_error(attribution.maps, expected) < 1e-3


@pytest.mark.parametrize("name", ["swin", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_attention_gates_and_smooth_activations_follow_the_rules_of_attnlrp(name):
    gated = name == "mobilenetv3_small_050"
    net = nets.seeded(timm.create_model, name) if gated else build(name)
    picture = pictures(64, 1)
    expected = AttnLRP(gamma=0, conv_gamma=0).explain(net, picture).maps
    assert expected.abs().max() > 0
    assert nets.relative_error(LRP(composite="epsilon").explain(net, picture).maps, expected) < 1e-4
