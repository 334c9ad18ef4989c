import pytest
import torch
import torchvision
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from seewhy.explainers import GradCAM
from seewhy.explainers.errors import LayerError, NonFiniteError, TargetError
from seewhy.explainers.methods.cam.base import fuse
from tests import nets

CAM = GradCAM(layers=("conv",))


def by_hand() -> nn.Module:
    """Feature maps A0 = x and A1 = -x of four cells; logits 4 A0 + 8 A1 and 8 A0 + 4 A1, averaged."""
    conv, head = nets.pointwise([[1], [-1]]), nets.linear([[4, 8], [8, 4]])
    return nets.Wired(lambda net, images: net.head(net.conv(images).mean(dim=(2, 3))), conv=conv, head=head)


IMAGE = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]])
# The weights are the gradients' means: a quarter of the head's, (1, 2) for class 0 and (2, 1) for class 1.
BY_HAND = [1 * IMAGE[:, 0] + 2 * -IMAGE[:, 0], 2 * IMAGE[:, 0] + 1 * -IMAGE[:, 0]]


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize(
    ("sign", "part"),
    [
        ("positive", lambda values: values.clamp_min(0)),
        ("signed", lambda values: values),
        ("absolute", torch.abs),
    ],
)
def test_the_map_computed_by_hand(target, sign, part, untouched):
    attribution = GradCAM(layers=("conv",), sign=sign).explain(untouched(by_hand()), IMAGE, torch.tensor([target]))
    assert torch.equal(attribution.maps, part(BY_HAND[target]))
    assert attribution.signed is (sign == "signed")
    assert attribution.layers == ("conv",)


def test_the_result_carries_logits_and_the_most_probable_class():
    attribution = CAM.explain(by_hand(), IMAGE)
    mean = IMAGE.mean()
    assert torch.equal(attribution.logits, torch.stack([-4 * mean, 4 * mean])[None])
    assert attribution.targets.tolist() == [1]
    assert not attribution.logits.requires_grad
    assert not attribution.maps.requires_grad
    assert [attribution.maps.dtype, attribution.targets.dtype] == [torch.float32, torch.int64]


def test_the_gradient_of_a_nonlinear_head_follows_the_equation(images):
    net = nets.seeded(nets.Net)
    features = net.conv(net.stem(images)).detach().requires_grad_()
    logits = net.head(net.middle(features).mean(dim=(2, 3)))
    targets = torch.tensor([0, 2, 1, 1])
    (gradients,) = torch.autograd.grad(logits[range(4), targets].sum(), features)
    expected = (gradients.mean(dim=(2, 3), keepdim=True) * features.detach()).sum(dim=1).relu()
    assert nets.relative_error(CAM.explain(net, images, targets).maps, expected) < 1e-5


def test_the_default_layer_is_found_for_a_bare_module_and_taken_from_a_loaded_model(lite0, resnet18, images):
    assert GradCAM().explain(resnet18, images).layers == ("layer4",)
    assert GradCAM().explain(lite0, torch.zeros(1, 3, 224, 224)).layers == lite0.default_layers


@pytest.mark.parametrize(
    ("kind", "middle"),
    [
        (nets.InPlaceModule, torch.relu),
        (nets.InPlaceFunction, torch.relu),
        (nets.AddsInto, lambda features: (features + features.mean(dim=1, keepdim=True)).relu()),
    ],
)
def test_in_place_operations_after_the_layer(kind, middle, images, untouched):
    net = untouched(nets.seeded(kind))
    plain = nets.seeded(nets.Net)
    plain.load_state_dict(net.state_dict(), strict=False)
    plain.middle = middle
    assert torch.equal(CAM.explain(net, images).maps, CAM.explain(plain, images).maps)


def test_several_layers_are_fused_on_the_finest_grid(images, untouched):
    net = untouched(nets.seeded(nets.Net))
    targets = torch.tensor([0, 1, 2, 0])
    fine, coarse = (GradCAM(layers=(layer,)).explain(net, images, targets).maps for layer in ("stem", "conv"))
    unit = [values / values.amax(dim=(1, 2), keepdim=True) for values in (fine, coarse)]
    resized = functional.interpolate(unit[1][:, None], size=(64, 64), mode="bilinear")[:, 0]
    attribution = GradCAM(layers=("conv", "stem")).explain(net, images, targets)
    assert attribution.layers == ("stem", "conv")
    assert nets.relative_error(attribution.maps, (unit[0] + resized) / 2) < 1e-6


def test_fusing_with_a_blank_map_stays_finite():
    blank, full = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 4.0)
    assert torch.equal(fuse([blank, full]), torch.full((1, 2, 2), 0.5))


def test_a_glob_names_several_layers(resnet18, images):
    by_glob = GradCAM(layers=("layer[34]",)).explain(resnet18, images)
    by_name = GradCAM(layers=("layer4", "layer3")).explain(resnet18, images)
    assert by_glob.layers == by_name.layers == ("layer3", "layer4")
    assert torch.equal(by_glob.maps, by_name.maps)


def test_a_module_that_runs_twice_is_refused_by_name(resnet18, images, untouched):
    with pytest.raises(LayerError, match=r"'again' runs 2 times"):
        GradCAM(layers=("again",)).explain(untouched(nets.seeded(nets.Twice)), images)
    with pytest.raises(LayerError, match=r"'layer1.0.relu' runs 2 times"):
        GradCAM(layers=("layer1.0.relu",)).explain(untouched(resnet18), images)


@pytest.mark.parametrize(
    ("kind", "layers", "message"),
    [
        (nets.Net, ("unused",), "did not run"),
        (nets.Net, ("conv", "unused"), "'unused' never runs"),
        (nets.Net, ("konv",), "Near matches: conv"),
        (nets.Net, ("head",), r"'head' is \(4, 3\), not a grid"),
        (nets.TupleInside, ("pair",), "'pair' is tuple, not a grid"),
        (nets.NoGradAfter, ("conv",), "'conv'"),
        (nets.NoGradAfter, ("stem",), "'stem'"),
    ],
)
def test_a_layer_that_cannot_carry_a_map_is_refused_with_the_reason(kind, layers, message, images, untouched):
    with pytest.raises(LayerError, match=message):
        GradCAM(layers=layers).explain(untouched(nets.seeded(kind)), images)


def test_a_model_without_a_grid_says_why_it_has_no_default_layer(images, untouched):
    vit = torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64, num_classes=5)
    with pytest.raises(LayerError, match=r"patch embedding.*tokens.*saliency"):
        GradCAM().explain(untouched(vit), images)


def test_an_exception_in_the_forward_pass_leaves_everything_as_it_was(images, untouched):
    net = untouched(nets.seeded(nets.Fails).train())
    with torch.no_grad():
        with pytest.raises(ZeroDivisionError):
            CAM.explain(net, images)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("images", "targets", "error"),
    [
        (torch.zeros(3, 8, 8), None, ValueError),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), None, ValueError),
        (torch.zeros(0, 3, 8, 8), None, ValueError),
        (torch.zeros(1, 3, 8, 8), torch.tensor([3]), TargetError),
        (torch.zeros(1, 3, 8, 8), torch.tensor([-1]), TargetError),
        (torch.zeros(1, 3, 8, 8), torch.tensor([0, 1]), TargetError),
        (torch.zeros(1, 3, 8, 8), torch.tensor([0.0]), TargetError),
        (torch.full((1, 3, 8, 8), torch.nan), None, NonFiniteError),
    ],
)
def test_arguments_that_make_no_sense_are_refused(images, targets, error, untouched):
    with pytest.raises(error):
        CAM.explain(untouched(nets.seeded(nets.Net)), images, targets)


@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_before_the_layer_is_kept_for_backward(frozen, images):
    sizes, kept_before = list[int](), list[int]()
    stem = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)]
    checkpoint = nets.Wired(lambda _, features: kept_before.append(sum(sizes)) or features)
    net = nn.Sequential(*stem, nn.Conv2d(8, 4, 3), checkpoint, *head).requires_grad_(not frozen)
    with saved_tensors_hooks(lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor):
        GradCAM(layers=("4",)).explain(net, images)
    assert kept_before[-1] == 0
    assert sum(sizes) > 0


def test_a_channels_last_layer_gives_the_map_of_its_channels_first_twin(generator, untouched):
    swin = nets.seeded(torchvision.models.SwinTransformer, [4, 4], 16, [1, 1], [2, 2], [4, 4])
    untouched(swin)
    images = torch.randn(2, 3, 32, 64, generator=generator)
    targets = torch.tensor([5, 6])
    expected = GradCAM(layers=("permute",)).explain(swin, images, targets).maps
    assert expected.shape == (2, 4, 8)
    assert torch.equal(GradCAM(layers=("norm",)).explain(swin, images, targets).maps, expected)
    assert GradCAM().explain(swin, images, targets).layers == ("permute",)


def test_equal_explainers_are_equal_and_hash_alike():
    assert GradCAM(layers=["conv"]) == GradCAM(layers=("conv",), sign="positive")
    equal = {GradCAM(layers=("conv",)), GradCAM(layers=["conv"])}
    assert len({*equal, GradCAM(layers=("conv",), sign="signed"), GradCAM()}) == 3
    with pytest.raises(AttributeError):
        GradCAM().sign = "signed"
