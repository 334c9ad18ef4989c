"""DeepLIFT."""

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import Saliency
from seewhy.explainers.errors import UnsupportedOperationError
from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.rules.deeplift import DeepLIFT
from tests import nets
from tests.grids import few

TARGETS = torch.tensor([7, 999])
FIRST = torch.zeros(1, dtype=torch.int64)


def contributions(function, values: list[float], shape: tuple[int, ...], baseline: str = "zero") -> list[float]:
    image, net = torch.tensor(values).view(shape), nets.Wired(lambda _, images: function(images).flatten(1))
    return DeepLIFT(baseline=baseline).explain(net, image, FIRST).maps.flatten().tolist()


def test_the_rescale_rule_by_hand():
    # The picture's ReLU has 2 - 1 + 3 - 2 = 2, the baseline's max(-2, 0) = 0: half of the difference 4 arrives.
    parts = contributions(lambda x: (x.flatten(1).sum(1) - 2).relu()[:, None], [2.0, -1.0, 3.0], (1, 1, 1, 3))
    assert parts == [1.0, -0.5, 1.5]
    # A saturated unit, whose gradient is zero.
    parts = contributions(lambda x: 1 - (1 - x.flatten(1).sum(1)).relu()[:, None], [1.0, 1.0], (1, 1, 1, 2))
    assert parts == [0.5, 0.5]


def test_equal_activations_have_the_slope_between_them():
    parts = contributions(lambda x: x.sigmoid().sum((1, 2, 3))[:, None], [1.0, 1.0], (1, 1, 1, 2), "mean")
    assert parts == [0.0, 0.0]
    parts = contributions(lambda x: (x - x.mean((2, 3), keepdim=True)).exp()[..., 0], [2.0, 2.0], (1, 1, 1, 2))
    assert parts == [1.0, -1.0]


def test_max_pooling_gives_to_the_larger_maximum():
    def pooled(images: Tensor) -> Tensor:
        shift = torch.tensor([0.0, 3.0, 1.0, 0.0]).view(1, 1, 2, 2)
        return functional.max_pool2d(images + shift, 2)

    # Of 5, 1, 1, 0 the first wins, of the baseline's 0, 3, 1, 0 the second: 5 - 3, all to the first.
    assert contributions(pooled, [5.0, -2.0, 0.0, 0.0], (1, 1, 2, 2)) == [2.0, 0.0, 0.0, 0.0]
    # Of 2, 1, 1, 0 the first wins, but the second of the baseline is larger: 2 - 3, all to the second.
    assert contributions(pooled, [2.0, -2.0, 0.0, 0.0], (1, 1, 2, 2)) == [0.0, -1.0, 0.0, 0.0]


def test_a_product_gives_each_factor_its_shapley_value():
    def gated(images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        return (pixels[:, :1] + 1) * (pixels[:, 1:] + 2)

    # (4 + 1) (3 + 2) - 1 * 2 = 23: 4 times the mean of 5 and 2, and 3 times the mean of 5 and 1.
    assert contributions(gated, [4.0, 3.0], (1, 1, 1, 2)) == [14.0, 9.0]


@pytest.mark.parametrize("baseline", ["zero", "mean", "blur"])
def test_a_linear_model_is_its_weights_times_the_difference(baseline, images):
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 1000))
    maps = DeepLIFT(baseline=baseline).explain(net, images[:2], TARGETS).maps
    weights = net[1].weight.detach()[TARGETS].view(2, 3, 64, 64)
    expected = (weights * (images[:2] - baseline_of(images[:2], baseline))).sum(dim=1)
    assert nets.relative_error(maps, expected) < 1e-5


def test_baselines():
    images = torch.rand(2, 3, 20, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(baseline_of(images, "zero"), torch.zeros_like(images))
    mean = baseline_of(images, "mean")
    torch.testing.assert_close(mean[:, :, 3, 5], images.mean(dim=(2, 3)))
    assert mean.std(dim=(2, 3)).max() < 1e-6
    blurred = baseline_of(images, "blur")
    assert blurred.shape == images.shape
    torch.testing.assert_close(blurred.mean(), images.mean(), rtol=0.02, atol=0)
    assert 0 < blurred.std(dim=(2, 3)).max() < 0.3 * images.std(dim=(2, 3)).min()
    torch.testing.assert_close(baseline_of(torch.ones(1, 1, 5, 9), "blur"), torch.ones(1, 1, 5, 9))
    expected = torchvision.transforms.functional.gaussian_blur(images, 19, 2.0)
    torch.testing.assert_close(blurred[:, :, 9:11, 9:31], expected[:, :, 9:11, 9:31], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("baseline", ["zero", "mean", "blur"])
@pytest.mark.parametrize(
    "name",
    few(
        ["resnet18", "densenet121", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "efficientnet_b0"],
        short=["squeezenet1_1", "mobilenet_v3_small"],
    ),
)
def test_contributions_sum_to_the_difference_of_the_scores(name, baseline, images, untouched):
    net = untouched(nets.seeded(torchvision.models.get_model, name))
    rivals = torch.tensor([1, 2])
    attribution = DeepLIFT(baseline=baseline).explain(net, images[:2], TARGETS, rivals)
    with torch.no_grad():
        logits = net(images[:2]), net(baseline_of(images[:2], baseline))
    expected = [scores[[0, 1], TARGETS] - scores[[0, 1], rivals] for scores in logits]
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), expected[0] - expected[1], rtol=1e-3, atol=1e-6)


def test_a_model_that_breaks_the_sum_is_refused(images):
    """Pictures of a batch see each other."""
    net = nets.seeded(nets.Middle, lambda _, features: features.relu() * features.flip(0).mean(dim=1, keepdim=True))
    with pytest.raises(UnsupportedOperationError, match="do not sum"):
        DeepLIFT().explain(net, images, torch.tensor([0, 1, 2, 0]))


def test_a_picture_equal_to_its_baseline_has_no_contributions():
    attribution = DeepLIFT().explain(nets.seeded(nets.Net), torch.zeros(2, 3, 8, 8))
    assert torch.equal(attribution.maps, torch.zeros(2, 8, 8))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("baseline", ["zero", "blur"])
def test_max_pooling_after_a_nonlinearity_follows_the_chain_rule(baseline, images):
    """captum is right about a pooling alone, but with a nonlinearity before it, its contributions do not sum to the
    difference of the scores; so its multipliers of the net after the nonlinearity are chained by hand.
    """
    from captum.attr import DeepLift as Peer

    pictures = images[:2, :, :16, :24].double()
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the peer divides by differences, and one that is next to nothing spoils the comparison
        before, after = nn.Conv2d(3, 8, 3, padding=1).double(), nn.Sequential(nn.MaxPool2d(2), nn.Flatten())
        after.append(nn.Linear(8 * 8 * 12, 1000).double())
    compared = baseline_of(pictures, baseline)
    with torch.no_grad():
        activation, reference = before(pictures), before(compared)
        arrived = Peer(after).attribute(activation.sigmoid(), reference.sigmoid(), TARGETS)
        multipliers = arrived / (activation - reference)  # of pooling and sigmoid together
        gradient = functional.conv_transpose2d(multipliers, before.weight, padding=1)
        expected = (gradient * (pictures - compared)).sum(dim=1).float()
    net = nn.Sequential(before, nn.Sigmoid(), *after)
    maps = DeepLIFT(baseline=baseline).explain(net, pictures, TARGETS).maps
    assert nets.relative_error(maps, expected) < 1e-4
    wrong = Peer(net).attribute(pictures, compared, TARGETS).sum(dim=1).detach().float()
    assert nets.relative_error(wrong, expected) > 0.01


def test_near_the_baseline_it_is_the_gradient_times_the_difference():
    net = nets.seeded(nets.Net).double()
    images = 1e-6 * torch.randn(2, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 2])
    leaf = images.clone().requires_grad_()
    (gradients,) = torch.autograd.grad(net(leaf)[[0, 1], targets].sum(), leaf)
    maps = DeepLIFT().explain(net, images, targets).maps
    assert nets.relative_error(maps, (gradients * images).sum(dim=1).float()) < 1e-3
    assert Saliency().explain(net, images, targets).maps.max() > 0
