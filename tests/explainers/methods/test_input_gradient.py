import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import Saliency, get_method
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.gradient.input_gradient import InputXGradient, SmoothGrad, VarGrad
from tests import nets

WEIGHT = torch.tensor([[1.0, 2.0, -3.0], [0.5, 0.0, 1.0]])
SQUARES = nets.Wired(lambda _, images: torch.einsum("kc,nchw->nk", WEIGHT, images**2) / 2)
"""Logit k is half the sum of w_k x², so its gradient is w_k x."""


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 4, 6, generator=generator)


def noise(shape: tuple[int, ...], samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(shape, generator=generator) for _ in range(samples)])


def test_input_x_gradient_by_hand(pictures):
    attribution = InputXGradient().explain(SQUARES, pictures, torch.tensor([1, 0]))
    expected = (WEIGHT[[1, 0], :, None, None] * pictures**2).sum(dim=1)
    torch.testing.assert_close(attribution.maps, expected)
    assert attribution.signed


def test_input_x_gradient_of_a_linear_model_sums_to_the_score(pictures):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(72, 5, bias=False))
    attribution = InputXGradient().explain(linear, pictures, torch.tensor([4, 1]))
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), attribution.logits[[0, 1], [4, 1]])


def test_smoothgrad_by_hand(pictures):
    result = SmoothGrad(samples=7, noise=0.3, seed=5, sign="signed").explain(SQUARES, pictures, torch.tensor([0, 0]))
    for picture, map_ in zip(pictures, result.maps, strict=True):
        mean = (picture + 0.3 * (picture.max() - picture.min()) * noise((3, 4, 6), 7, 5)).mean(dim=0)
        gradient = mean * torch.tensor([1.0, 2.0, -3.0])[:, None, None]
        strongest = gradient.gather(0, gradient.abs().argmax(dim=0, keepdim=True))[0]
        torch.testing.assert_close(map_, strongest)


@pytest.mark.parametrize("sign", ["absolute", "signed", "positive"])
def test_smoothgrad_without_noise_is_saliency(sign, images):
    net = nets.seeded(nets.Skip)
    expected = Saliency(sign=sign).explain(net, images).maps
    assert nets.relative_error(SmoothGrad(samples=1, noise=0, sign=sign).explain(net, images).maps, expected) < 1e-5
    assert nets.relative_error(SmoothGrad(samples=3, noise=0, sign=sign).explain(net, images).maps, expected) < 1e-5
    assert nets.relative_error(SmoothGrad(samples=1, sign=sign).explain(net, images).maps, expected) > 0.1


def test_more_samples_are_smoother(pictures):
    exact, few, many = (
        SmoothGrad(samples=samples, noise=noise).explain(SQUARES, pictures, torch.tensor([0, 1])).maps
        for samples, noise in ((1, 0), (5, 0.15), (500, 0.15))
    )
    assert nets.relative_error(many, exact) < nets.relative_error(few, exact) / 3


def test_vargrad_by_hand(pictures):
    attribution = VarGrad(samples=6, noise=0.2, seed=3).explain(SQUARES, pictures, torch.tensor([0, 1]))
    for picture, map_, row in zip(pictures, attribution.maps, WEIGHT, strict=True):
        variance = (0.2 * (picture.max() - picture.min()) * noise((3, 4, 6), 6, 3)).var(dim=0, correction=0)
        torch.testing.assert_close(map_, (variance * row[:, None, None] ** 2).sum(dim=0))


def test_vargrad_of_a_linear_model_is_blank(pictures):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(72, 5))
    assert torch.equal(VarGrad(samples=4).explain(linear, pictures).maps, torch.zeros(2, 4, 6))


def test_one_sample_has_no_variance():
    with pytest.raises(OptionError, match="greater than or equal to 2"):
        get_method("vargrad").build({"samples": 1})
