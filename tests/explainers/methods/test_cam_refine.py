import pytest
import torch
import torchvision
from torch.nn import functional

from seewhy.explainers import get_method
from seewhy.explainers.errors import LayerError, OptionError
from seewhy.explainers.methods.cam.gradcam_plus_plus import GradCAMPlusPlus, RefineCAM
from tests import nets
from tests.grids import few

TARGETS = torch.tensor([7, 999, 0, 7])


ENDS = {
    "resnet18": ("layer1", "layer2", "layer3", "layer4"),
    "densenet121": ("features", "features.denseblock1", "features.denseblock2", "features.denseblock3"),
    "mobilenet_v2": ("features", "features.3", "features.6", "features.13"),
}


@pytest.mark.parametrize("name", few(ENDS, short=["resnet18"]))
def test_the_layers_are_the_ends_of_the_stages(name, images, untouched):
    model = untouched(nets.seeded(torchvision.models.get_model, name))
    assert RefineCAM().explain(model, images[:1]).layers == ENDS[name]


def test_the_layers_of_a_loaded_model(lite0):
    attribution = RefineCAM().explain(lite0, torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
    assert attribution.layers == ("blocks.1", "blocks.2", "blocks.4", "bn2")
    assert attribution.maps.shape == (1, 56, 56)


def test_the_map_is_the_product_of_the_layers_maps(resnet18, images):
    maps = RefineCAM().explain(resnet18, images, TARGETS).maps
    product = torch.ones(4, 16, 16)
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        layer_maps = GradCAMPlusPlus(layers=(layer,)).explain(resnet18, images, TARGETS).maps
        layer_maps = layer_maps / layer_maps.amax(dim=(1, 2), keepdim=True)
        product *= functional.interpolate(layer_maps[:, None], size=(16, 16), mode="bilinear")[:, 0]
    assert product.max() > 0
    assert nets.relative_error(maps, product) < 1e-5


def test_a_single_layer_gives_gradcam_plus_plus(resnet18, images):
    maps = RefineCAM(layers=("layer4",)).explain(resnet18, images, TARGETS).maps
    expected = GradCAMPlusPlus(layers=("layer4",)).explain(resnet18, images, TARGETS).maps
    assert nets.relative_error(maps, expected / expected.amax(dim=(1, 2), keepdim=True)) < 1e-6


def test_signed_products_are_refused_by_name():
    with pytest.raises(OptionError, match="'positive' or 'absolute'") as caught:
        get_method("refinecam").build({"sign": "signed"})
    assert caught.value.field == "sign"


def test_a_model_without_a_grid_says_why_it_has_no_default_layer(images):
    vit = torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64, num_classes=5)
    with pytest.raises(LayerError, match="No default layer"):
        RefineCAM().explain(vit, images)
