from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.baselines import blurred
from seewhy.explainers.methods.gradient.paths import BlurIG, GuidedIG
from seewhy.explainers.tasks.pose import predict
from tests import nets
from tools.peers import network


def path_of(explainer: GuidedIG, net: nn.Module, pictures: Tensor, target: int = 0) -> tuple[list[Tensor], Tensor]:
    """Return the points at which gradients are taken, and the maps."""
    points: list[Tensor] = []
    with net.register_forward_pre_hook(lambda _, args: points.append(args[0].detach().clone())):
        maps = explainer.explain(net, pictures, torch.full((len(pictures),), target)).maps
    return [point for point in points if len(point) == len(pictures)][-explainer.steps - 1 :], maps


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=generator)


@pytest.fixture
def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(288, 5))


def gradients(net: nn.Module, images: Tensor, target: int) -> Tensor:
    leaf = images.clone().requires_grad_()
    return torch.autograd.grad(net(leaf)[:, target].sum(), leaf)[0]


def test_blur_ig_of_a_linear_model_is_exact(linear, pictures):
    targets = torch.tensor([4, 1])
    weights = linear[1].weight.detach()[targets].view(2, 3, 8, 12)
    maps = BlurIG(steps=3, max_sigma=2).explain(linear, pictures, targets).maps
    torch.testing.assert_close(maps, (weights * (pictures - blurred(pictures, 2))).sum(dim=1))


@pytest.mark.parametrize("size", [pytest.param((8, 12), marks=pytest.mark.slow), (12, 5)])
def test_blur_ig_is_complete(size, generator, large_passes):
    pictures = torch.randn(2, 3, *size, generator=generator)
    net, targets = nets.seeded(nets.Smooth), torch.tensor([2, 0])
    values = BlurIG(steps=50, max_sigma=10).explain(net, pictures, targets).maps.sum(dim=(1, 2))
    expected = (predict(net, pictures) - predict(net, blurred(pictures, 10)))[[0, 1], targets]
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-5)
    rectified = nets.seeded(nets.Skip)
    expected = (predict(rectified, pictures) - predict(rectified, blurred(pictures, 10)))[[0, 1], targets]
    errors = []
    for steps in (2, 30, 600):
        maps = BlurIG(steps=steps, max_sigma=10).explain(rectified, pictures, targets).maps
        errors.append(nets.relative_error(maps.sum(dim=(1, 2)), expected))
    assert errors[0] > 2 * errors[1] > 4 * errors[2], errors
    assert errors[2] < 1e-2


def test_one_piece_takes_the_gradient_in_its_middle(pictures):
    net, targets = nets.seeded(nets.Smooth), torch.tensor([2, 2])
    middle = gradients(net, blurred(pictures, 8 * 0.25), 2)
    maps = BlurIG(steps=1, max_sigma=8).explain(net, pictures, targets).maps
    torch.testing.assert_close(maps, (middle * (pictures - blurred(pictures, 8))).sum(dim=1))


@pytest.mark.slow
def test_blur_ig_comes_to_what_the_authors_code_comes_to(pictures, monkeypatch, large_passes):
    """Theirs with our mirrored borders: it sums other points of the same path."""
    peer = pytest.importorskip("saliency.core.blur_ig")
    from scipy import ndimage

    def mirrored(image: np.ndarray, sigma: float) -> np.ndarray:
        return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="reflect") if sigma else image

    monkeypatch.setattr(peer, "gaussian_blur", mirrored)
    net = nets.seeded(nets.Smooth).double()

    def call(values: np.ndarray, **_: object) -> dict[str, np.ndarray]:
        gradient = gradients(net, torch.as_tensor(values).permute(0, 3, 1, 2), 1)
        return {"INPUT_OUTPUT_GRADIENTS": gradient.permute(0, 2, 3, 1).numpy()}

    image = pictures[0].double()
    array = image.permute(1, 2, 0).numpy()
    expected = peer.BlurIG().GetMask(array, call, max_sigma=5, steps=4000, grad_step=1e-4, batch_size=500).sum(axis=2)
    heatmap = BlurIG(steps=400, max_sigma=5).explain(net, image[None], torch.tensor([1])).maps[0]
    assert nets.relative_error(heatmap, torch.as_tensor(expected).float()) < 2e-2


def test_guided_ig_of_a_linear_model_is_exact(linear, pictures):
    targets = torch.tensor([4, 1])
    weights = linear[1].weight.detach()[targets].view(2, 3, 8, 12)
    for options in ({}, {"max_dist": 1.0}, {"fraction": 0.01}, {"max_dist": 0.0}):
        explainer = GuidedIG(steps=7, baseline="given", value=(0.2,), **options)
        maps = explainer.explain(linear, pictures, targets).maps
        torch.testing.assert_close(maps, (weights * (pictures - 0.2)).sum(dim=1), rtol=1e-4, atol=1e-5)


def test_guided_ig_on_a_leash_of_no_length_follows_the_straight_line(pictures):
    net = nets.seeded(nets.Smooth)
    slopes = [gradients(net, pictures * alpha / 4, 1) for alpha in range(5)]
    expected = sum((first + second) / 2 for first, second in pairwise(slopes)) * pictures / 4
    maps = GuidedIG(steps=4, max_dist=0.0).explain(net, pictures, torch.tensor([1, 1])).maps
    torch.testing.assert_close(maps, expected.sum(dim=1), rtol=1e-4, atol=1e-6)


def test_values_of_small_gradients_move_first():
    net = nn.Sequential(nn.Flatten(), nets.linear([[10, -1, 5, 0]]))
    picture = torch.tensor([2.0, -4.0, 1.0, 1.0]).view(1, 1, 2, 2)
    free, held = (
        [point.flatten().tolist() for point in path_of(GuidedIG(steps=4, fraction=0.01, max_dist=far), net, picture)[0]]
        for far in (1.0, 0.25)
    )
    # Each step is worth 2: the last value and a quarter of the second; half of the second; ...
    assert free == [[0, 0, 0, 0], [0, -1, 0, 1], [0, -3, 0, 1], [0, -4, 1, 1], [2, -4, 1, 1]]
    assert held[1] == pytest.approx([0, -1.5, 0, 0.5])  # no further than half the way; that is 2.0 of 8
    # No less than a quarter of it, which is 3.0 of 8; then 1.0.
    assert held[2] == pytest.approx([0.5, -2.5, 0.25, 0.75])


@pytest.mark.parametrize("max_dist", [0.02, 0.3, 1.0])
def test_the_path_makes_equal_steps_within_its_bounds(max_dist, pictures):
    explainer = GuidedIG(steps=10, max_dist=max_dist, baseline="given", value=(0.1,))
    path, _ = path_of(explainer, nets.seeded(nets.Smooth), pictures)
    assert torch.equal(path[-1], pictures)
    whole = (pictures - 0.1).abs().sum(dim=(1, 2, 3))
    for step, point in enumerate(path):
        distance = (pictures - point).abs().sum(dim=(1, 2, 3))
        torch.testing.assert_close(distance, whole * (1 - step / 10), rtol=1e-4, atol=1e-3)
        progress = (point - 0.1) / (pictures - 0.1)
        assert (progress - step / 10).abs().max() < max_dist + 1e-3


def test_guided_ig_is_complete(pictures):
    net, targets = nets.seeded(nets.Smooth), torch.tensor([2, 0])
    expected = (predict(net, pictures) - predict(net, torch.zeros_like(pictures)))[[0, 1], targets]
    maps = GuidedIG(steps=50).explain(net, pictures, targets).maps.sum(dim=(1, 2))
    torch.testing.assert_close(maps, expected, rtol=1e-3, atol=1e-5)


def test_a_baseline_like_the_picture_gets_nothing():
    grey = torch.full((1, 3, 6, 8), 0.5)
    result = GuidedIG(steps=3, baseline="given", value=(0.5,)).explain(
        nets.seeded(nets.Smooth), grey, torch.tensor([0])
    )
    assert torch.equal(result.maps, torch.zeros(1, 6, 8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("max_dist", [0.05, 1.0])
def test_guided_ig_takes_the_path_of_the_authors_code(max_dist, images, monkeypatch):
    """The points are the same; theirs sums the gradients at the start of each step, ours the mean of both ends."""
    peer = pytest.importorskip("saliency.core.guided_ig")

    def quantile(values: np.ndarray, share: float, interpolation: str) -> np.ndarray:  # numpy renamed the argument
        return np.quantile(values, share, method=interpolation)

    names = ("asarray", "abs", "zeros_like", "errstate", "where", "nan", "inf", "isnan", "logical_and", "expand_dims")
    namespace = SimpleNamespace(**{name: getattr(np, name) for name in names}, float64=np.float64, quantile=quantile)
    monkeypatch.setattr(peer, "np", namespace)
    net = network("resnet18")
    points: list[Tensor] = []

    def call(values: np.ndarray, **_: object) -> dict[str, np.ndarray]:
        point = torch.tensor(values).permute(0, 3, 1, 2).contiguous()  # they change it in place
        points.append(point)
        return {"INPUT_OUTPUT_GRADIENTS": gradients(net, point, 7).permute(0, 2, 3, 1).numpy()}

    image = images[:1, :, :24, :20].double()
    array = image[0].permute(1, 2, 0).numpy()
    mask = peer.GuidedIG().GetMask(array, call, x_baseline=np.full_like(array, 0.1), x_steps=8, max_dist=max_dist)
    points.append(image)
    slopes = [gradients(net, point, 7) for point in points]
    ways = [second - first for first, second in pairwise(points)]
    starts = sum(slope * way for slope, way in zip(slopes, ways, strict=False))
    assert nets.relative_error(starts[0].permute(1, 2, 0), torch.as_tensor(mask)) < 1e-6
    ends = sum(slope * way for slope, way in zip(slopes[1:], ways, strict=True))
    path, maps = path_of(GuidedIG(steps=8, max_dist=max_dist, baseline="given", value=(0.1,)), net, image, 7)
    for point, reference in zip(path, points, strict=True):
        assert nets.relative_error(point, reference) < 1e-6
    assert nets.relative_error(maps, ((starts + ends) / 2).sum(dim=1).float()) < 1e-5


def test_a_fraction_that_would_move_one_value_at_a_time_is_refused():
    with pytest.raises(OptionError, match=r"greater than or equal to 0\.001") as caught:
        get_method("guided-ig").build({"fraction": 1e-9})
    assert caught.value.field == "fraction"
    assert get_method("guided-ig").build({"fraction": 0.001})


def test_a_small_fraction_costs_no_more_than_a_large_one(generator, monkeypatch):
    """The values are put in order once for each step, however many groups of them it changes."""
    counts = []

    def counted(values: Tensor, *args: object, **options: object) -> object:
        counts.append(values.shape)
        return sort(values, *args, **options)

    sort = Tensor.sort
    monkeypatch.setattr(Tensor, "sort", counted)
    net, picture = nets.seeded(nets.Smooth), torch.randn(1, 3, 40, 40, generator=generator)
    GuidedIG(steps=4, fraction=0.001).explain(net, picture, torch.tensor([1]))
    assert len(counts) == 3
