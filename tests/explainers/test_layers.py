import pytest
import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers.errors import LayerError
from seewhy.explainers.layers.feature_maps import grid_axes
from seewhy.explainers.tasks.pose import survey
from tests import nets

SHAPE = (3, 32, 32)


def test_layers_come_in_execution_order_with_shapes_calls_and_parameters(untouched):
    layers = survey(untouched(nets.seeded(nets.Twice)), SHAPE).layers
    assert [layer.path for layer in layers] == ["", "stem", "conv", "again", "head"]
    root, stem, conv, again, head = layers
    assert [stem.type, stem.input_shape, stem.output_shape] == ["Conv2d", (1, 3, 32, 32), (1, 4, 32, 32)]
    assert [layer.calls for layer in layers] == [1, 1, 1, 2, 1]
    assert stem.parameters == 4 * 3 * 9 + 4
    assert root.parameters > stem.parameters + conv.parameters + again.parameters + head.parameters
    assert [layer.cam for layer in layers] == [False, True, True, False, False]
    assert head.output_shape == (1, 3)


def test_the_default_is_the_last_grid_before_the_head_that_runs_once():
    layers = survey(nets.seeded(nets.Twice), SHAPE)
    assert layers.default_layers == ("conv",)
    assert [layer.path for layer in layers.layers if layer.default] == ["conv"]
    assert layers.reason is None


def test_hook_kinds_say_what_can_be_recorded():
    kinds = {layer.path: layer.hooks for layer in survey(nets.seeded(nets.InPlaceModule), SHAPE).layers}
    tensor_kinds = ("input", "output", "grad_input", "grad_output")
    assert kinds["relu"] == tensor_kinds
    assert kinds["conv"] == (*tensor_kinds, "parameter_grad")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([nn.ReLU()], "2"),
        ([nn.ReLU(), nn.MaxPool2d(2)], "2"),
        ([nn.ReLU(), nn.Dropout(), nn.Identity()], "2"),
        ([nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))], "2.0"),
        ([nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3))], "2"),
        ([nn.MaxPool2d(2), nn.BatchNorm2d(4)], "3"),
    ],
)
def test_pooling_and_passing_modules_are_no_default(tail, expected):
    stem = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)]
    net = nn.Sequential(*stem, *tail, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert survey(net, SHAPE).default_layers == (expected,)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_net_whose_head_is_its_only_convolution_explains_there(kernel):
    net = nn.Sequential(nn.Conv2d(3, 2, kernel), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert survey(net, SHAPE).default_layers == ("0",)


def pooled(*head: nn.Module) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


def gated(net: nn.Module, features: Tensor) -> Tensor:
    """A stage that ends in squeeze and excitation."""
    features = net.conv(features)
    return features * net.gate(features)[..., None, None]


GATED = nets.Wired(gated, conv=nn.Conv2d(4, 4, 3), gate=pooled(nn.Linear(4, 4), nn.Sigmoid()))


class Block(nn.Sequential):
    """A residual block, whose last convolution is linear in each place."""

    def forward(self, features: Tensor) -> Tensor:
        return features + super().forward(features)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([nn.Conv2d(4, 5, 3), pooled()], "1"),
        ([nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), pooled()], "3"),
        ([nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), pooled()], "2"),
        ([nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU()), pooled(nn.Identity())], "1"),
        ([nn.Conv2d(4, 5, 1), nn.ReLU(), pooled(nn.Identity())], "2"),
        ([nn.Conv2d(4, 5, 3), nn.ReLU(), pooled(nn.BatchNorm1d(5))], "2"),
        ([GATED, pooled()], "1"),
        ([Block(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)), pooled()], "1"),
        ([nn.Conv2d(4, 5, 1), nn.ReLU(), pooled()], "0"),  # five scores of each position, as of SqueezeNet
        ([nn.Sequential(nn.Dropout(), nn.Conv2d(4, 5, 1), nn.ReLU(), pooled())], "0"),
    ],
)
def test_a_net_without_a_head_explains_what_it_pools(tail, expected):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), *tail).eval()
    assert survey(net, SHAPE).default_layers == (expected,)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)), "has a grid"),
        (nn.Flatten(), "no parameters"),
        (torchvision.models.VisionTransformer(32, 8, 1, 2, 32, 64), r"'conv_proj'.*tokens of shape \(1, 17, 32\)"),
    ],
)
def test_a_model_without_a_default_layer_says_why(net, reason):
    layers = survey(net, SHAPE)
    assert layers.default_layers == ()
    assert torch.equal(torch.tensor([layer.default for layer in layers.layers]).sum(), torch.tensor(0))
    with pytest.raises(LayerError, match=reason):
        raise LayerError(layers.reason)


def test_a_survey_on_the_meta_device_equals_the_real_one(resnet18):
    with torch.device("meta"):
        meta = torchvision.models.resnet18()
    assert survey(meta, (3, 64, 64)) == survey(resnet18, (3, 64, 64))


def test_a_survey_changes_nothing(untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    survey(net, SHAPE)
    with torch.inference_mode():
        survey(net, SHAPE)


def test_a_half_precision_module_is_surveyed(untouched):
    net = untouched(nets.seeded(nets.Net).bfloat16())
    assert survey(net, SHAPE).default_layers == ("conv",)


def test_an_output_of_several_tensors_has_no_single_shape():
    (layer,) = survey(nets.Wired(lambda _, images: (images, images)), SHAPE).layers
    assert layer.output_shape is None
    assert not layer.cam


@pytest.mark.parametrize(
    ("shape", "image", "axes"),
    [
        ((1, 512, 7, 7), (224, 224), (1, 2, 3)),
        ((1, 7, 7, 768), (224, 224), (3, 1, 2)),
        ((1, 96, 4, 8), (32, 64), (1, 2, 3)),
        ((1, 4, 8, 96), (32, 64), (3, 1, 2)),
        ((1, 8, 4, 96), (64, 32), (3, 1, 2)),
        ((1, 56, 56, 96), (224, 224), (3, 1, 2)),
        ((1, 9, 8, 8), (64, 64), (1, 2, 3)),
        ((1, 8, 8, 9), (64, 64), (3, 1, 2)),
        ((1, 16, 16, 4), (32, 32), None),  # strides of 2 and 8: neither reading is a grid of the picture
        ((1, 3, 197, 64), (224, 224), None),  # queries of a transformer
        ((1, 3, 448, 448), (224, 224), None),  # finer than the picture
        ((1, 49, 768), (224, 224), None),
        ((1, 768), (224, 224), None),
    ],
)
def test_grid_axes_follow_the_pictures_proportions(shape, image, axes):
    assert grid_axes(shape, image) == axes
