from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.perturbation.base import superpixels
from seewhy.explainers.methods.perturbation.superpixels import LIME, FeatureAblation, KernelSHAP, weighted_ridge
from tests import nets


def products(values: Tensor) -> Tensor:
    """Pixels interact: logits are sums and products of them."""
    return torch.stack([values.prod(dim=1) + values[:, 0] ** 2, values.sum(dim=1) ** 2 / 4], dim=1)


PICTURE = torch.tensor([[[[1.0, 2.0], [-3.0, 1.5]]]])


@pytest.fixture
def linear() -> nn.Module:
    return nets.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5)))


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=generator)


def parts(linear: nn.Module, pictures: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """Return the part of each region in the logit, at all of its pixels."""
    pixels = (linear[1].weight.detach()[targets].view(2, 3, 8, 12) * pictures).sum(dim=1).flatten(1)
    sums = torch.zeros(2, int(labels.max()) + 1).index_add_(1, labels.flatten(), pixels)
    return sums[:, labels]


@pytest.mark.parametrize(
    "explainer",
    [
        FeatureAblation(segmentation="grid", segments=6),
        KernelSHAP(segmentation="grid", segments=6, samples=100),
        KernelSHAP(segmentation="grid", segments=6, samples=40),
        LIME(segmentation="grid", segments=6, samples=100, score="logit", ridge=1e-6),
    ],
)
def test_of_a_linear_model_each_superpixel_has_its_part_of_the_logit(explainer, linear, pictures):
    targets = torch.tensor([3, 1])
    expected = parts(linear, pictures, targets, superpixels(pictures[0], "grid", 6))
    attribution = explainer.explain(linear, pictures, targets)
    assert nets.relative_error(attribution.maps, expected) < 1e-4
    assert attribution.signed


@pytest.mark.parametrize("target", [0, 1])
def test_all_sets_give_the_shapley_values_of_the_definition(target):
    net = nets.Wrapped(nn.Flatten(), products)
    expected = torch.zeros(4)
    for order in permutations(range(4)):
        coalition = torch.zeros(4)
        for pixel in order:
            before = net((PICTURE.flatten() * coalition)[None])[0, target]
            coalition[pixel] = 1
            expected[pixel] += (net((PICTURE.flatten() * coalition)[None])[0, target] - before) / 24
    attribution = KernelSHAP(segmentation="grid", segments=4, samples=14).explain(net, PICTURE, torch.tensor([target]))
    torch.testing.assert_close(attribution.maps[0].flatten(), expected, rtol=1e-5, atol=1e-5)


def test_values_sum_to_what_the_baseline_lacks_and_near_the_shapley_values(images):
    net, explainer = nets.seeded(nets.Skip), KernelSHAP(segments=12, samples=60, baseline="blur")
    attribution = explainer.explain(net, images, torch.tensor([0, 1, 2, 0]), torch.tensor([1, 0, 0, 2]))
    scores = [
        logits[range(4), attribution.targets] - logits[range(4), attribution.against]
        for logits in (net(images), net(baseline_of(images, "blur")))
    ]
    assert (scores[0] - scores[1]).abs().min() > 1e-3
    for row in range(4):
        labels = superpixels(images[row], "slic", 12)
        values = torch.stack([attribution.maps[row][labels == label][0] for label in range(int(labels.max()) + 1)])
        assert abs(values.sum() - (scores[0] - scores[1])[row]) < 1e-3


def test_drawn_sets_come_near_the_values_of_all_sets(images, large_passes):
    net, images = nets.seeded(nets.Net), images[:, :, :24, :24]
    exact, coarse, fine = (
        KernelSHAP(segmentation="grid", segments=9, samples=samples).explain(net, images).maps
        for samples in (510, 100, 400)
    )
    errors = [nets.relative_error(maps, exact) for maps in (coarse, fine)]
    assert 0 < errors[1] < errors[0] < 0.2


def test_sets_are_drawn_with_their_complements_by_their_kernel_weight():
    coalitions = KernelSHAP(samples=8000).coalitions(20)
    assert coalitions[0].sum() == 0
    assert torch.equal(coalitions[1::2], 1 - coalitions[2::2])
    sizes = torch.arange(1, 20)
    weights = 1 / (sizes * (20 - sizes))
    result = coalitions[1:].sum(dim=1).long().bincount(minlength=20)[1:] / 8000
    torch.testing.assert_close(result, weights / weights.sum(), rtol=0, atol=0.02)
    torch.testing.assert_close(coalitions.mean(dim=0), torch.full((20,), 0.5, dtype=torch.float64), rtol=0, atol=0.02)


def test_a_single_superpixel_has_the_whole_score(linear, pictures):
    result = KernelSHAP(segmentation="grid", segments=1).explain(linear, pictures)
    lead = linear(pictures) - linear(pictures * 0)
    torch.testing.assert_close(result.maps[:, 0, 0], lead[[0, 1], result.targets].detach(), rtol=1e-4, atol=1e-5)


def test_too_few_samples_are_refused(linear, pictures):
    with pytest.raises(OptionError, match="at least 96") as caught:
        KernelSHAP(segmentation="grid", segments=24, samples=20).explain(linear, pictures)
    assert caught.value.field == "samples"


def test_the_weighted_ridge_equals_scikit_learn(generator):
    from sklearn.linear_model import Ridge

    coalitions = (torch.rand(60, 7, generator=generator) < 0.5).double()
    scores, weights = torch.randn(60, generator=generator).double(), torch.rand(60, generator=generator).double()
    for penalty in (0.01, 1.0, 30.0):
        peer = Ridge(alpha=penalty).fit(coalitions.numpy(), scores.numpy(), sample_weight=weights.numpy())
        result = weighted_ridge(coalitions, scores, weights, penalty)
        torch.testing.assert_close(result, torch.from_numpy(peer.coef_))


def test_lime_weighs_samples_by_nearness(images):
    net = nets.seeded(nets.Net)
    explainer = LIME(segmentation="grid", segments=4, samples=30, width=0.2, ridge=0.5)
    coalitions = explainer.coalitions(4)
    assert coalitions[0].tolist() == [1] * 4
    labels = superpixels(images[0], "grid", 4)
    with torch.no_grad():
        scores = net(images[:1] * coalitions.float()[:, labels][:, None]).softmax(dim=1)[:, 1].double()
    cosine = torch.nan_to_num(coalitions.sum(dim=1) / (coalitions.norm(dim=1) * 2))
    expected = weighted_ridge(coalitions, scores, torch.exp(-((1 - cosine) ** 2) / 0.04), 0.5).float()
    heatmap = explainer.explain(net, images[:1], torch.tensor([1])).maps[0]
    assert nets.relative_error(heatmap, expected[labels]) < 1e-3


def test_pictures_of_different_numbers_of_superpixels_share_a_batch(images):
    net = nets.seeded(nets.Skip)
    images[0] = 0
    images[0, :, :, 20:] = 1
    explainer = FeatureAblation(segmentation="quickshift")
    counts = [int(superpixels(image, "quickshift", 1).max()) + 1 for image in images]
    assert len(set(counts)) > 1
    together = explainer.explain(net, images)
    for row in range(4):
        alone = explainer.explain(net, images[row : row + 1])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-3


@pytest.mark.parametrize("width", [1e-200, 0.0099])
def test_a_kernel_too_narrow_to_count_any_sample_is_refused(width):
    with pytest.raises(OptionError, match=r"greater than or equal to 0\.01") as caught:
        get_method("lime").build({"width": width})
    assert caught.value.field == "width"


def test_the_narrowest_kernel_has_finite_weights(linear, pictures):
    attribution = LIME(segmentation="grid", segments=6, samples=100, width=0.01).explain(linear, pictures)
    assert bool(attribution.maps.isfinite().all())
