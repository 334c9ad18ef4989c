import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM, Saliency
from seewhy.explainers.errors import NonFiniteError, TargetError
from seewhy.explainers.tasks.pose import predict
from tests import nets


@pytest.fixture
def linear(generator) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, 5))


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 4, 6, generator=generator)


def test_saliency_of_a_linear_model_is_its_largest_weight(linear, pictures, untouched):
    attribution = Saliency().explain(untouched(linear), pictures, torch.tensor([4, 1]))
    weights = linear[1].weight.detach()[[4, 1]].view(2, 3, 4, 6)
    assert torch.equal(attribution.maps, weights.abs().amax(dim=1))
    assert not attribution.signed
    assert attribution.layers == ()


def test_the_signed_variant_keeps_the_sign_of_the_strongest_channel(linear, pictures):
    targets = torch.tensor([0, 3])
    weights = linear[1].weight.detach()[targets].view(2, 3, 4, 6)
    highest, lowest = weights.amax(dim=1), weights.amin(dim=1)
    expected = torch.where(highest >= -lowest, highest, lowest)
    signed = Saliency(sign="signed").explain(linear, pictures, targets)
    positive = Saliency(sign="positive").explain(linear, pictures, targets)
    assert torch.equal(signed.maps, expected)
    assert signed.signed
    assert torch.equal(positive.maps, expected.clamp_min(0))
    assert torch.equal(signed.maps.abs(), Saliency().explain(linear, pictures, targets).maps)


def test_a_target_out_of_range_names_the_range(images):
    with pytest.raises(TargetError, match="classes 0 to 2"):
        Saliency().explain(nets.seeded(nets.Net), images, torch.tensor([0, 1, 2, 3]))


def test_predict_gives_float32_logits_and_leaves_no_trace(images, untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    logits = predict(net, images)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, predict(net, images))
    with pytest.raises(NonFiniteError):
        predict(net, images * torch.inf)


@pytest.mark.parametrize("explainer", [Saliency(), GradCAM(layers=("conv",))], ids=["saliency", "gradcam"])
def test_maps_of_nan_are_told_though_the_logits_are_finite(images, untouched, explainer):
    # The gradient is infinity times zero.
    net = untouched(nets.seeded(nets.Middle, lambda _, features: features + (features - features).sqrt()))
    assert predict(net, images).isfinite().all()
    with pytest.raises(NonFiniteError, match="map"):
        explainer.explain(net, images, None)


def test_prediction_of_a_half_precision_model_takes_ordinary_pictures():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    net(torch.rand(1, 3, 8, 8))
    images = torch.rand(2, 3, 8, 8)
    half = predict(net.bfloat16(), images)
    assert half.dtype == torch.float32
    assert images.dtype == torch.float32
