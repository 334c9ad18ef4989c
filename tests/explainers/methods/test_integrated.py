from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.baselines import blurred
from seewhy.explainers.methods.gradient.integrated import ExpectedGradients, IntegratedGradients
from seewhy.explainers.methods.gradient.paths import GuidedIG
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.tasks.pose import predict
from tests import nets
from tests.grids import few

WEIGHT = torch.tensor([[1.0, 2.0, -3.0], [0.5, 0.0, 1.0]])


CUBES = nets.Wired(lambda _, images: torch.einsum("kc,nchw->nk", WEIGHT.to(images), images**3))
"""Logit k is the sum of w_k x³."""


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 6, 8, generator=generator)


@pytest.mark.parametrize("colour", [(), (0.3,), (0.3, -0.2, 1.0)])
def test_integrated_gradients_by_hand(colour, pictures):
    """Two points integrate the square exactly: (x - b) times the mean of 3 w a² from b to x is w (x³ - b³)."""
    explainer = IntegratedGradients(steps=2, baseline="given" if colour else "zero", value=colour)
    maps = explainer.explain(CUBES, pictures, torch.tensor([1, 0])).maps
    start = torch.tensor(colour or (0.0,)).view(-1, 1, 1)
    expected = (WEIGHT[[1, 0], :, None, None] * (pictures**3 - start**3)).sum(dim=1)
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-5)


def baseline_of(baseline: str, pictures: Tensor) -> Tensor:
    if baseline == "mean":
        return pictures.mean(dim=(2, 3), keepdim=True).expand_as(pictures)
    if baseline == "blur":
        return blurred(pictures, 0.1 * min(pictures.shape[2:]))
    return torch.full_like(pictures, 0.7 if baseline == "given" else 0.0)


@pytest.mark.parametrize("baseline", ["zero", "mean", "blur", "given"])
def test_integrated_gradients_are_complete(baseline, pictures):
    net, targets = nets.seeded(nets.Smooth), torch.tensor([2, 0])
    value = (0.7,) if baseline == "given" else ()
    maps = IntegratedGradients(steps=10, baseline=baseline, value=value).explain(net, pictures, targets).maps
    difference = predict(net, pictures) - predict(net, baseline_of(baseline, pictures))
    torch.testing.assert_close(maps.sum(dim=(1, 2)), difference[[0, 1], targets], rtol=1e-3, atol=1e-5)


def test_more_steps_come_nearer_to_completeness_on_a_rectified_net(pictures, large_passes):
    net, targets = nets.seeded(nets.Skip), torch.tensor([2, 0])
    difference = (predict(net, pictures) - predict(net, torch.zeros_like(pictures)))[[0, 1], targets]
    errors = []
    for steps in (2, 20, 500):
        maps = IntegratedGradients(steps=steps).explain(net, pictures, targets).maps
        errors.append(nets.relative_error(maps.sum(dim=(1, 2)), difference))
    assert errors[0] > 3 * errors[1]
    assert errors[2] < 1e-3


def test_a_baseline_like_the_picture_gets_nothing():
    grey = torch.full((1, 3, 6, 8), 0.4)
    for explainer in (IntegratedGradients(baseline="mean"), IntegratedGradients(baseline="given", value=(0.4,))):
        assert explainer.explain(CUBES, grey, torch.tensor([0])).maps.abs().max() < 1e-5


def test_black_is_that_of_the_models_normalisation(pictures):
    preprocess = SimpleNamespace(mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1))
    model = SimpleNamespace(module=CUBES, preprocess=preprocess, task=Classification(), accelerated=None)
    black = (-2.0, -2.0, -3.0)
    maps = IntegratedGradients(steps=2, baseline="black").explain(model, pictures).maps
    expected = IntegratedGradients(steps=2, baseline="given", value=black).explain(CUBES, pictures).maps
    torch.testing.assert_close(maps, expected)
    with pytest.raises(OptionError, match="does not say how its pictures are normalised") as caught:
        IntegratedGradients(baseline="black").explain(CUBES, pictures)
    assert caught.value.field == "baseline"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "given"}, "has 0 values"),
        ({"baseline": "given", "value": (0.1, 0.2)}, "has 2 values; give one, or one for each of the 3 channels"),
        ({"value": (0.1,)}, "colour of `baseline=given`"),
    ],
)
def test_colours_that_cannot_be_are_refused(options, message, pictures):
    with pytest.raises(OptionError, match=message) as caught:
        IntegratedGradients(**options).explain(CUBES, pictures)
    assert caught.value.field == "value"


def test_options_come_as_text():
    explainer = get_method("integrated-gradients").build({"baseline": "given", "value": ["0.5", "-1"], "steps": "20"})
    assert explainer == IntegratedGradients(baseline="given", value=(0.5, -1.0), steps=20)
    assert len({explainer, explainer}) == 1
    for text, value in (("0.5,-1, 2", (0.5, -1.0, 2.0)), ("0.5", (0.5,)), (0.5, (0.5,))):
        built = get_method("guided-ig").build({"baseline": "given", "value": text})
        assert built == GuidedIG(baseline="given", value=value)
    assert get_method("guided-ig").options["value"]["type"] == "array"
    for value in (["nan"], ["inf"], ["red"], [[1]], "1,,2", "", "1e38", [0, -10001.0]):
        with pytest.raises(OptionError) as caught:
            get_method("integrated-gradients").build({"value": value})
        assert caught.value.field == "value"


@pytest.mark.slow
@pytest.mark.parametrize("baselines", few(["shuffle", "noise", "blur"], short=["noise"]))
def test_expected_gradients_are_complete_but_for_chance(baselines, pictures, large_passes):
    """The spread of the sum is that of the baselines' scores, and shrinks with the root of the samples."""
    targets = torch.tensor([0, 1])
    maps, more_maps = (
        ExpectedGradients(baselines=baselines, samples=samples, seed=samples).explain(CUBES, pictures, targets).maps
        for samples in (500, 1000)
    )
    scale, sums = maps.abs().sum(), more_maps.sum(dim=(1, 2))
    assert (maps.sum(dim=(1, 2)) - sums).abs().max() < 0.05 * scale
    if baselines == "noise":  # its cubes are 0 on average
        expected = CUBES(pictures)[[0, 1], targets]
        assert (sums - expected).abs().max() < 0.05 * scale
    if baselines == "shuffle":  # the same pixels elsewhere have the same score
        assert sums.abs().max() < 0.05 * scale


def test_expected_gradients_of_a_linear_model_are_differences_from_the_mean_baseline(pictures, large_passes):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    targets = torch.tensor([4, 1])
    weights = linear[1].weight.detach()[targets].view(2, 3, 6, 8)
    maps = ExpectedGradients(samples=500, baselines="noise").explain(linear, pictures, targets).maps
    assert nets.relative_error(maps, (weights * pictures).sum(dim=1)) < 0.1
    maps = ExpectedGradients(samples=800).explain(linear, pictures, targets).maps
    mean = pictures.mean(dim=(2, 3), keepdim=True)
    assert nets.relative_error(maps, (weights * (pictures - mean)).sum(dim=1)) < 0.1


def test_a_shuffled_baseline_keeps_the_colours_of_pixels(pictures):
    grey, inputs = pictures[:1, :1].expand(-1, 3, -1, -1).clone(), list[Tensor]()
    with CUBES.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone())):
        ExpectedGradients(samples=2, seed=4).explain(CUBES, grey)
    for point in inputs[-1]:  # between the picture and pixels of three equal channels
        torch.testing.assert_close(point[0], point[1])
        assert not torch.allclose(point, grey[0])


def test_blur_keeps_the_mean_and_tends_to_it(generator):
    scipy = pytest.importorskip("scipy.ndimage")
    images = torch.randn(2, 3, 9, 14, generator=generator, dtype=torch.float64)
    for sigma in (0.3, 1.0, 4.0, 30.0):
        result = blurred(images, sigma)
        expected = scipy.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="reflect")
        torch.testing.assert_close(result, torch.as_tensor(expected), atol=2e-5, rtol=0)
        torch.testing.assert_close(result.mean(dim=(2, 3)), images.mean(dim=(2, 3)))
    assert (result - images.mean(dim=(2, 3), keepdim=True)).abs().max() < 1e-3
    assert blurred(images, 0) is images
