import pytest
import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers import GradCAM
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.methods.cam.score_weighted import FinerCAM, ShapleyCAM
from tests import nets

TARGETS = torch.tensor([7, 999, 0, 7])


PICTURE = torch.tensor([[[[2.0, 4.0], [6.0, 8.0]], [[1.0, 1.0], [3.0, 3.0]]]])
"""Means 5 and 2."""


def test_finercam_by_hand(untouched):
    # The logits are 11, 9, 10, -3 and 30; those next to 10 are 11 and 9.
    net = untouched(nets.Pooled(nets.linear([[1, 3], [1, 2], [2, 0], [-1, 1], [6, 0]])))
    explainer = FinerCAM(layers=("layer",), sign="signed", references=2, strength=0.5)
    attribution = explainer.explain(net, PICTURE, torch.tensor([2]))
    weights = (torch.tensor([2.0, 0.0]) - 0.5 * torch.tensor([1.0, 2.5])) / 4
    torch.testing.assert_close(attribution.maps[0], torch.einsum("c,chw->hw", weights, PICTURE[0]))
    contrast = explainer.explain(net, PICTURE, torch.tensor([2]), torch.tensor([3]))
    weights = (torch.tensor([2.0, 0.0]) - 0.5 * torch.tensor([-1.0, 1.0])) / 4
    torch.testing.assert_close(contrast.maps[0], torch.einsum("c,chw->hw", weights, PICTURE[0]))


def test_finercam_without_strength_is_gradcam_and_a_full_contrast_is_its_contrast(resnet18, images):
    rivals = torch.tensor([1, 2, 3, 4])
    plain = GradCAM(sign="signed")
    maps = FinerCAM(sign="signed", strength=0).explain(resnet18, images, TARGETS).maps
    assert nets.relative_error(maps, plain.explain(resnet18, images, TARGETS).maps) < 1e-6
    maps = FinerCAM(sign="signed", strength=1).explain(resnet18, images, TARGETS, rivals).maps
    assert nets.relative_error(maps, plain.explain(resnet18, images, TARGETS, rivals).maps) < 1e-5


def test_finercam_compares_with_all_classes_of_a_small_model_and_refuses_a_single_one(untouched):
    few = FinerCAM(layers=("layer",), sign="signed", references=2)
    many = FinerCAM(layers=("layer",), sign="signed", references=9)
    net = untouched(nets.Pooled(nets.linear([[1, 3], [1, 2], [2, 0]])))
    assert torch.equal(few.explain(net, PICTURE).maps, many.explain(net, PICTURE).maps)
    with pytest.raises(UnsuitableModelError, match="compares classes, but the model has only one; use gradcam"):
        few.explain(nets.Pooled(nets.linear([[1, 3]])), PICTURE)


def curved(net: nn.Module, images: Tensor) -> Tensor:
    """One logit that is quadratic in the features, with a given symmetric matrix, and one that is 0."""
    flat = net.layer(images).flatten(1)
    score = flat @ net.slope + ((flat @ net.matrix) * flat).sum(dim=1) / 2
    return torch.stack([score, torch.zeros_like(score)], dim=1)


def test_shapleycam_of_a_quadratic_logit_by_hand(generator, untouched):
    half = torch.randn(8, 8, generator=generator)
    net = untouched(nets.Wired(curved, layer=nn.Identity(), matrix=half + half.T, slope=torch.arange(8.0)))
    attribution = ShapleyCAM(layers=("layer",), sign="signed", utility="logit").explain(net, PICTURE, torch.tensor([0]))
    flat = PICTURE.flatten()
    corrected = net.slope + net.matrix @ flat - net.matrix @ flat / 2
    weights = corrected.view(2, 4).mean(dim=1)
    torch.testing.assert_close(attribution.maps[0], torch.einsum("c,chw->hw", weights, PICTURE[0]))
    # The Shapley values of a quadratic game with the empty set at 0 share out all that the logit is worth.
    torch.testing.assert_close((corrected * flat).sum(), attribution.logits[0, 0])


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_shapleycam_of_a_logit_that_is_piecewise_linear_is_gradcam(name, images):
    model = nets.seeded(torchvision.models.get_model, name)
    maps = ShapleyCAM(sign="signed", utility="logit").explain(model, images, TARGETS).maps
    assert nets.relative_error(maps, GradCAM(sign="signed").explain(model, images, TARGETS).maps) < 1e-5


def test_shapleycam_of_several_layers_takes_each_layers_own_hessian(images):
    net = nets.seeded(nets.InPlaceModule)
    net.middle = lambda features: net.relu(features).tanh()
    together = ShapleyCAM(layers=("stem", "conv")).explain(net, images)
    alone = [ShapleyCAM(layers=(layer,)).explain(net, images).maps for layer in ("stem", "conv")]
    from seewhy.explainers.methods.cam.base import fuse

    assert together.layers == ("stem", "conv")
    assert nets.relative_error(together.maps, fuse(alone)) < 1e-5


def test_the_utility_matters_where_the_head_is_linear(resnet18, images):
    logit, rest = (
        ShapleyCAM(sign="signed", utility=utility).explain(resnet18, images, TARGETS).maps
        for utility in ("logit", "rest")
    )
    assert nets.relative_error(rest, logit) > 0.01


def test_a_layer_before_what_has_no_second_derivative_is_refused(images, untouched):
    model = untouched(nets.seeded(torchvision.models.get_model, "mobilenet_v3_small"))
    with pytest.raises(LayerError, match=r"hardsigmoid.*use gradcam, or a later layer"):
        ShapleyCAM(layers=("features.0",)).explain(model, images[:1])
