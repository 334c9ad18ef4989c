import pytest
import torch
import torchvision
from torch import nn

from explainers import get_method
from explainers.errors import LayerError
from tests import nets
from tests.explainers.methods.peers import caught

LAYERS = {"resnet18": "layer3", "squeezenet1_1": "features.7"}
TARGETS = torch.tensor([7, 999, 0, 7])


@pytest.fixture(scope="module", params=LAYERS)
def stock(request) -> tuple[nn.Module, str]:
    return nets.seeded(torchvision.models.get_model, request.param), LAYERS[request.param]


def built(name, **options):
    return get_method(name).build({"sign": "signed", **options})


@pytest.mark.parametrize("name", ["eigencam", "eigengradcam"])
def test_maps_are_projections_onto_the_first_right_singular_vector(name, stock, images):
    """pytorch-grad-cam centres the features, unlike the paper, and leaves the sign to chance."""
    model, layer = stock
    features, gradients = caught(model, layer, images, TARGETS)
    values = features if name == "eigencam" else features * gradients
    found = built(name, layers=[layer]).explain(model, images, TARGETS).maps
    for one, projected in zip(values, found, strict=True):
        matrix = one.flatten(1).T.double()
        expected = (matrix @ torch.linalg.svd(matrix, full_matrices=False).Vh[0]).reshape(one.shape[1:]).float()
        expected = expected * torch.sign((expected * one.sum(dim=0)).sum())
        assert nets.relative_error(projected, expected) < 1e-4


def test_eigengradcam_is_hirescam_with_eigen_smoothing(stock, images):
    model, layer = stock
    found = built("eigengradcam", layers=[layer]).explain(model, images, TARGETS).maps
    assert torch.equal(found, built("hirescam", layers=[layer], smooth="eigen").explain(model, images, TARGETS).maps)


@pytest.mark.parametrize("name", ["eigencam", "eigengradcam", "kpcacam"])
def test_eigen_smoothing_changes_nothing(name, stock, images):
    model, layer = stock
    plain, smooth = (
        built(name, layers=[layer], smooth=smooth).explain(model, images).maps for smooth in ("none", "eigen")
    )
    assert torch.equal(plain, smooth)


@pytest.mark.parametrize("kernel", ["sigmoid", "rbf", "linear"])
def test_kernel_components_equal_those_of_pytorch_grad_cam_but_for_the_sign(kernel, stock, images):
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection_kernel

    model, layer = stock
    features, _ = caught(model, layer, images, TARGETS)
    found = built("kpcacam", layers=[layer], kernel=kernel, gamma=3.0).explain(model, images, TARGETS).maps
    peer = torch.as_tensor(get_2d_projection_kernel(features.double().numpy(), kernel, gamma=3.0 / features.shape[1]))
    for one, other, feature in zip(found, peer, features, strict=True):
        assert nets.relative_error(one, other * torch.sign((one * other).sum())) < 1e-4
        summed = feature.sum(dim=0)
        assert float((one * (summed - summed.mean())).sum()) > 0


def test_the_linear_kernel_gives_the_principal_component_of_centred_features(stock, images):
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

    model, layer = stock
    features, _ = caught(model, layer, images, TARGETS)
    found = built("kpcacam", layers=[layer], kernel="linear").explain(model, images).maps
    for one, other in zip(found, torch.as_tensor(get_2d_projection(features.numpy())), strict=True):
        assert nets.relative_error(one, other * torch.sign((one * other).sum())) < 1e-4


def test_a_layer_with_too_many_positions_is_refused(untouched):
    with pytest.raises(LayerError, match="33 by 33 positions"):
        built("kpcacam", layers=["stem"]).explain(untouched(nets.seeded(nets.Net)), torch.randn(1, 3, 33, 33))
