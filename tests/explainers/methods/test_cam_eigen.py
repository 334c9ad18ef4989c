import pytest
import torch
import torchvision
from torch import nn

from seewhy.explainers import get_method
from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.session import HookSession
from tests import nets
from tests.explainers.methods.autograd import caught

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
    maps = built(name, layers=[layer]).explain(model, images, TARGETS).maps
    for activation, projected in zip(values, maps, strict=True):
        matrix = activation.flatten(1).T.double()
        expected = (matrix @ torch.linalg.svd(matrix, full_matrices=False).Vh[0]).reshape(activation.shape[1:]).float()
        expected = expected * torch.sign((expected * activation.sum(dim=0)).sum())
        assert nets.relative_error(projected, expected) < 1e-4


def test_eigengradcam_is_hirescam_with_eigen_smoothing(stock, images):
    model, layer = stock
    maps = built("eigengradcam", layers=[layer]).explain(model, images, TARGETS).maps
    assert torch.equal(maps, built("hirescam", layers=[layer], smooth="eigen").explain(model, images, TARGETS).maps)


@pytest.mark.parametrize("name", ["eigencam", "eigengradcam", "kpcacam"])
def test_eigen_smoothing_changes_nothing(name, stock, images):
    model, layer = stock
    plain, smooth = (
        built(name, layers=[layer], smooth=smooth).explain(model, images).maps for smooth in ("none", "eigen")
    )
    assert torch.equal(plain, smooth)


def test_the_linear_kernel_gives_the_principal_component_of_centred_features(stock, images):
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

    model, layer = stock
    features, _ = caught(model, layer, images, TARGETS)
    maps = built("kpcacam", layers=[layer], kernel="linear").explain(model, images).maps
    for heatmap, component in zip(maps, torch.as_tensor(get_2d_projection(features.numpy())), strict=True):
        assert nets.relative_error(heatmap, component * torch.sign((heatmap * component).sum())) < 1e-4


def test_a_layer_with_too_many_positions_is_refused(untouched):
    with pytest.raises(LayerError, match="33 by 33 positions"):
        built("kpcacam", layers=["stem"]).explain(untouched(nets.seeded(nets.Net)), torch.randn(1, 3, 33, 33))


def test_eigencam_shows_where_negative_features_are_strong():
    """Of features that are mostly negative the map was blank."""
    strengths = torch.linspace(0.5, 2, 16).view(1, 1, 4, 4)
    features = -strengths * torch.tensor([1.0, 3.0, 0.5]).view(1, 3, 1, 1)
    explainer = get_method("eigencam").build({"layers": ["layer"]})
    actual, positive = (explainer.explain(nets.Pooled(), values) for values in (features, -features))
    expected = strengths[0] * torch.tensor([1.0, 3.0, 0.5]).norm()
    torch.testing.assert_close(actual.maps, expected)
    torch.testing.assert_close(positive.maps, expected)
    assert actual.diagnostics == positive.diagnostics == ((),)


@pytest.mark.slow
def test_eigencam_of_an_untrained_convnext_is_never_blank(images):
    model = nets.seeded(torchvision.models.get_model, "convnext_tiny")
    summed, maps = [], get_method("eigencam").build({}).explain(model, images).maps
    with HookSession(model) as hooks, torch.no_grad():
        hooks.record("features.7", kinds=("output",))
        model(images)
        summed = hooks.outputs["features.7"][0].sum(dim=(1, 2, 3))
    assert (summed < 0).any()
    assert (maps.amax(dim=(1, 2)) > 0).all()
    signed = built("eigencam").explain(model, images).maps
    assert (maps.square().sum(dim=(1, 2)) >= 0.5 * signed.square().sum(dim=(1, 2))).all()


@pytest.mark.parametrize("name", ["eigencam", "kpcacam"])
def test_two_components_of_the_same_strength_are_told(name):
    features = torch.zeros(2, 2, 4, 4)
    features[0, 0, 0, 0] = features[0, 1, 1, 1] = 1
    features[1, 0, :2] = 1
    explainer = get_method(name).build({"layers": ["layer"], **({"kernel": "linear"} if name == "kpcacam" else {})})
    diagnostics = explainer.explain(nets.Pooled(), features).diagnostics
    codes = [[diagnostic.code for diagnostic in of_one] for of_one in diagnostics]
    assert "ambiguous-component" in codes[0] or name == "kpcacam"
    assert "ambiguous-component" not in codes[1]


@pytest.mark.parametrize(("sign", "expected"), [("positive", ["ambiguous-sign"]), ("absolute", [])])
def test_a_sign_that_nothing_speaks_for_is_told(sign, expected):
    features = torch.zeros(1, 1, 2, 2)
    features[0, 0, 0] = torch.tensor([1.0, -1.0])
    attribution = get_method("eigencam").build({"layers": ["layer"], "sign": sign}).explain(nets.Pooled(), features)
    assert [diagnostic.code for diagnostic in attribution.diagnostics[0]] == expected
    assert [diagnostic.code for diagnostic in attribution.rows()[0].diagnostics[0]] == expected


@pytest.mark.parametrize("name", ["eigencam", "eigengradcam", "kpcacam"])
def test_a_layer_that_is_zero_has_no_ambiguous_sign(name):
    attribution = get_method(name).build({"layers": ["layer"]}).explain(nets.Pooled(), torch.zeros(1, 2, 4, 4))
    assert "ambiguous-sign" not in [diagnostic.code for diagnostic in attribution.diagnostics[0]]
