import pytest
import torch
import torchvision
from torch import nn

from seewhy.explainers import get_method
from tests import nets
from tests.explainers.methods.autograd import caught

LAYERS = {"resnet18": "layer4", "squeezenet1_1": "features", "mobilenet_v2": "features"}
TARGETS = torch.tensor([7, 999, 0, 7])

FEATURES = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [0.0, 3.0]]])
HEAD = torch.tensor([[[1.0, -1.0], [0.0, 2.0]], [[5.0, 2.0], [1.0, -2.0]]])


def by_hand() -> nn.Module:
    """The picture's two channels are the features; one logit has a weight for each position, another is nothing."""
    head = nets.linear(torch.stack([HEAD.flatten(), torch.zeros(8)]))
    return nets.Wired(lambda net, images: net.head(net.layer(images).flatten(1)), layer=nn.Identity(), head=head)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Averages in proportion to the features: (1 - 2 + 0 + 8) / 10 and (0 + 2 + 0 - 6) / 4.
        ("xgradcam", 0.7 * FEATURES[0] - 1.0 * FEATURES[1]),
        ("hirescam", torch.tensor([[1.0, 0.0], [0.0, 2.0]])),
        ("gradcam-elementwise", torch.tensor([[1.0, 2.0], [0.0, 8.0]])),
        ("layercam", torch.tensor([[1.0, 2.0], [0.0, 8.0]])),
    ],
)
def test_maps_computed_by_hand(name, expected, untouched):
    explainer = get_method(name).build({"layers": ["layer"], "sign": "signed"})
    maps = explainer.explain(untouched(by_hand()), FEATURES[None], torch.tensor([0])).maps
    torch.testing.assert_close(maps[0], expected)


def test_layercam_keeps_negative_features_and_elementwise_gradcam_products_of_two_negatives():
    for name, expected in (("layercam", [[-1, -2], [0, -8]]), ("gradcam-elementwise", [[0, 2], [0, 6]])):
        explainer = get_method(name).build({"layers": ["layer"], "sign": "signed"})
        maps = explainer.explain(by_hand(), -FEATURES[None], torch.tensor([0])).maps
        assert maps[0].tolist() == expected


@pytest.fixture(scope="module", params=LAYERS)
def stock(request) -> tuple[nn.Module, str]:
    return nets.seeded(torchvision.models.get_model, request.param), LAYERS[request.param]


@pytest.mark.parametrize("name", ["xgradcam", "hirescam"])
def test_the_sum_of_features_times_gradients_is_conserved(name, stock, images):
    model, layer = stock
    features, gradients = caught(model, layer, images, TARGETS)
    maps = get_method(name).build({"layers": [layer], "sign": "signed"}).explain(model, images, TARGETS).maps
    torch.testing.assert_close(maps.sum(dim=(1, 2)), (features * gradients).sum(dim=(1, 2, 3)), rtol=1e-4, atol=1e-5)


def test_hirescam_of_a_linear_head_sums_to_the_logit_less_its_bias(resnet18, images):
    attribution = get_method("hirescam").build({"sign": "signed"}).explain(resnet18, images, TARGETS)
    expected = attribution.logits[range(4), TARGETS] - resnet18.fc.bias[TARGETS]
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), expected, rtol=1e-4, atol=1e-5)


def test_xgradcam_gives_a_map_without_features_no_weight(untouched):
    features = FEATURES.clone()
    features[1] = torch.tensor([[1.0, -1.0], [2.0, -2.0]])
    explainer = get_method("xgradcam").build({"layers": ["layer"], "sign": "signed"})
    maps = explainer.explain(untouched(by_hand()), features[None], torch.tensor([0])).maps
    torch.testing.assert_close(maps[0], 0.7 * FEATURES[0])
