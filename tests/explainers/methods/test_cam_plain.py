import pytest
import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers import GradCAM, get_method
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from tests import nets
from tests.explainers.methods.autograd import caught

TARGETS = torch.tensor([7, 999, 0, 7])


def built(name, **options):
    return get_method(name).build({"sign": "signed", **options})


@pytest.fixture(scope="module", params=["resnet18", "mobilenet_v2"])
def pooled(request) -> nn.Module:
    return nets.seeded(torchvision.models.get_model, request.param)


def test_the_mean_of_a_cam_and_the_bias_make_the_logit(pooled, images, untouched):
    attribution = built("cam").explain(untouched(pooled), images, TARGETS)
    head = [part for part in pooled.modules() if isinstance(part, nn.Linear)][-1]
    logits = attribution.maps.mean(dim=(1, 2)) + head.bias[TARGETS]
    torch.testing.assert_close(logits.detach(), attribution.logits[range(4), TARGETS], rtol=1e-4, atol=1e-5)


def test_gradcam_is_a_multiple_of_cam(pooled, images):
    maps = built("cam").explain(pooled, images, TARGETS).maps
    gradcam = GradCAM(sign="signed").explain(pooled, images, TARGETS).maps
    assert nets.relative_error(gradcam * maps.shape[1] * maps.shape[2], maps) < 1e-5


def test_cam_of_a_convolution_as_head():
    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.layer(images).mean(dim=(2, 3), keepdim=True)).flatten(1)

    net = nets.seeded(lambda: nets.Wired(run, layer=nn.Conv2d(3, 4, 3, padding=1), head=nn.Conv2d(4, 3, 1)))
    images = torch.randn(2, 3, 6, 8)
    maps = built("cam", layers=["layer"]).explain(net, images, torch.tensor([2, 0])).maps
    expected = torch.einsum("nc,nchw->nhw", net.head.weight[[2, 0], :, 0, 0], net.layer(images)).detach()
    assert nets.relative_error(maps, expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("densenet", [], "other logits .* 'features', up to .* off"),
        ("resnet18", ["layer3"], "no linear layer that takes 256 features"),
        ("resnet18", ["layer4.0"], "other logits for the averages of layer 'layer4.0'"),
        ("squeezenet1_1", ["features"], "other logits"),
    ],
)
def test_cam_of_another_head_is_refused_with_the_reason(name, layers, message, images, untouched):
    small = (torchvision.models.DenseNet, 4, (2, 2), 8)
    model = untouched(nets.seeded(*(small if name == "densenet" else (torchvision.models.get_model, name))))
    with pytest.raises(LayerError, match=message):
        built("cam", layers=layers).explain(model, images[:1], TARGETS[:1])


def test_cam_of_a_head_that_reads_more_than_averages_advises_gradcam():
    def run(net: nn.Module, images: Tensor) -> Tensor:
        features = net.layer(images)
        return net.head(torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1))

    net = nets.seeded(lambda: nets.Wired(run, layer=nn.Conv2d(3, 4, 3, padding=1), head=nn.Linear(8, 3)))
    with pytest.raises(UnsuitableModelError, match=r"4 features and gives 3 logits\. If the .* otherwise use grad"):
        built("cam", layers=["layer"]).explain(net, torch.randn(1, 3, 6, 8))


def test_fem_computed_by_hand(untouched):
    """pytorch-grad-cam weighs features, not binary maps, and by how many positions stand out, not by the mean."""
    # Means 1, 2 and 3; standard deviations sqrt(3), sqrt(12) and 0.
    images = torch.zeros(1, 3, 2, 2)
    images[0, 0, 0, 1], images[0, 1, 1, 1], images[0, 2] = 4.0, 8.0, 3.0
    net = untouched(nets.Pooled())
    attribution = built("fem", layers=["layer"], deviations=1.5).explain(net, images)
    assert attribution.maps.tolist() == [[[0.0, 1.0], [0.0, 2.0]]]
    with pytest.raises(LayerError, match=r"Among 4 positions none can exceed the mean by more than 1.73"):
        built("fem", layers=["layer"]).explain(net, images)
    assert built("fem", layers=["layer"], deviations=0).explain(net, images).maps.tolist() == [[[0.0, 1.0], [0.0, 2.0]]]


def test_random_weights_repeat_and_are_the_same_for_each_picture(resnet18, images):
    features, _ = caught(resnet18, "layer4", images, TARGETS)
    weights = 2 * torch.rand(512, generator=torch.Generator().manual_seed(4)) - 1
    expected = torch.einsum("c,nchw->nhw", weights, features)
    before = torch.get_rng_state()
    maps = built("random", seed=4).explain(resnet18, images).maps
    assert torch.equal(torch.get_rng_state(), before)
    assert nets.relative_error(maps, expected) < 1e-5
    assert torch.equal(built("random", seed=4).explain(resnet18, images).maps, maps)
    assert nets.relative_error(built("random", seed=5).explain(resnet18, images).maps, maps) > 0.1
