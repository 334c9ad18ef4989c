"""Every torchvision classifier by name: its default layer, and that it explains and leaves nothing behind."""

import gc
import subprocess
import sys

import pytest
import torch
from torchvision import models as torchvision_models

from seewhy.explainers import GradCAM, Saliency
from seewhy.models import Registry, load_model
from tests.grids import KINDS, few

# The default layer and the side of its grid at the model's own input size.
TORCHVISION = {
    "alexnet": ("features.11", 13),
    "convnext_base": ("features", 7),
    "convnext_large": ("features", 7),
    "convnext_small": ("features", 7),
    "convnext_tiny": ("features", 7),
    "densenet121": ("features", 7),
    "densenet161": ("features", 7),
    "densenet169": ("features", 7),
    "densenet201": ("features", 7),
    "efficientnet_b0": ("features", 7),
    "efficientnet_b1": ("features", 8),
    "efficientnet_b2": ("features", 9),
    "efficientnet_b3": ("features", 10),
    "efficientnet_b4": ("features", 12),
    "efficientnet_b5": ("features", 15),
    "efficientnet_b6": ("features", 17),
    "efficientnet_b7": ("features", 19),
    "efficientnet_v2_l": ("features", 15),
    "efficientnet_v2_m": ("features", 15),
    "efficientnet_v2_s": ("features", 12),
    "googlenet": ("inception5b", 7),
    "inception_v3": ("Mixed_7c", 8),
    "maxvit_t": ("blocks.3", 7),
    "mnasnet0_5": ("layers", 7),
    "mnasnet0_75": ("layers", 7),
    "mnasnet1_0": ("layers", 7),
    "mnasnet1_3": ("layers", 7),
    "mobilenet_v2": ("features", 7),
    "mobilenet_v3_large": ("features", 7),
    "mobilenet_v3_small": ("features", 7),
    "regnet_x_16gf": ("trunk_output", 7),
    "regnet_x_1_6gf": ("trunk_output", 7),
    "regnet_x_32gf": ("trunk_output", 7),
    "regnet_x_3_2gf": ("trunk_output", 7),
    "regnet_x_400mf": ("trunk_output", 7),
    "regnet_x_800mf": ("trunk_output", 7),
    "regnet_x_8gf": ("trunk_output", 7),
    "regnet_y_128gf": ("trunk_output", 12),
    "regnet_y_16gf": ("trunk_output", 7),
    "regnet_y_1_6gf": ("trunk_output", 7),
    "regnet_y_32gf": ("trunk_output", 7),
    "regnet_y_3_2gf": ("trunk_output", 7),
    "regnet_y_400mf": ("trunk_output", 7),
    "regnet_y_800mf": ("trunk_output", 7),
    "regnet_y_8gf": ("trunk_output", 7),
    "resnet101": ("layer4", 7),
    "resnet152": ("layer4", 7),
    "resnet18": ("layer4", 7),
    "resnet34": ("layer4", 7),
    "resnet50": ("layer4", 7),
    "resnext101_32x8d": ("layer4", 7),
    "resnext101_64x4d": ("layer4", 7),
    "resnext50_32x4d": ("layer4", 7),
    "shufflenet_v2_x0_5": ("conv5", 7),
    "shufflenet_v2_x1_0": ("conv5", 7),
    "shufflenet_v2_x1_5": ("conv5", 7),
    "shufflenet_v2_x2_0": ("conv5", 7),
    "squeezenet1_0": ("features", 13),
    "squeezenet1_1": ("features", 13),
    "swin_b": ("permute", 7),
    "swin_s": ("permute", 7),
    "swin_t": ("permute", 7),
    "swin_v2_b": ("permute", 8),
    "swin_v2_s": ("permute", 8),
    "swin_v2_t": ("permute", 8),
    "vgg11": ("features.19", 14),
    "vgg11_bn": ("features.27", 14),
    "vgg13": ("features.23", 14),
    "vgg13_bn": ("features.33", 14),
    "vgg16": ("features.29", 14),
    "vgg16_bn": ("features.42", 14),
    "vgg19": ("features.35", 14),
    "vgg19_bn": ("features.51", 14),
    "vit_b_16": ("encoder.layers.encoder_layer_11.ln_1", 14),
    "vit_b_32": ("encoder.layers.encoder_layer_11.ln_1", 7),
    "vit_h_14": ("encoder.layers.encoder_layer_31.ln_1", 37),
    "vit_l_16": ("encoder.layers.encoder_layer_23.ln_1", 14),
    "vit_l_32": ("encoder.layers.encoder_layer_23.ln_1", 7),
    "wide_resnet101_2": ("layer4", 7),
    "wide_resnet50_2": ("layer4", 7),
}

EXPECTED = TORCHVISION | {
    "timm/levit_128s": ("stages.2.blocks", 4),
    "timm/vit_tiny_patch16_224": ("blocks.11.norm1", 14),
}
"""Further models of timm stand in tests/explainers/test_default_layers.py."""

SHORT = {"mobilenet_v3_small", "timm/vit_tiny_patch16_224"}
"""Models that differ in kind; `make test-slow` tries the others."""


def test_the_table_holds_every_torchvision_classifier():
    assert list(TORCHVISION) == torchvision_models.list_models(module=torchvision_models)


@pytest.mark.parametrize("name", few(EXPECTED, SHORT))
def test_the_default_layer_is_the_one_that_users_mean(name):
    registry = Registry()
    survey = registry.survey(registry.spec(name))
    layer, side = EXPECTED[name]
    assert survey.default_layers == (layer,)
    assert survey.reason is None
    (default,) = (row for row in survey.layers if row.default)
    assert default.cam
    assert default.calls == 1
    grid = default.tokens
    assert (grid.rows, grid.columns) == (side, side) if grid else default.output_shape.count(side) == 2


@pytest.mark.parametrize("name", few(KINDS, {"mobilenet_v3_small", "squeezenet1_1"}))
def test_torchvision_classifiers_of_each_kind_explain(name):
    model = load_model(name, weights=None)
    side = model.spec.image_shape[1]
    if not name.startswith(("vit_", "maxvit")):
        side = {"inception_v3": 107, "alexnet": 95}.get(name, 64)
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    explainer = GradCAM() if model.default_layers else Saliency()
    attribution = explainer.explain(model, images, torch.tensor([3]))
    assert attribution.layers == model.default_layers
    assert attribution.maps.ndim == 3
    assert torch.isfinite(attribution.maps).all()
    assert attribution.logits.shape == (1, 1000)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert not any(part._forward_hooks or part._backward_hooks for part in model.module.modules())
    del model
    gc.collect()


@pytest.mark.slow
def test_in_jupyter_it_is_imported_in_silence():
    """As a kernel without ipywidgets looks to tqdm."""
    script = (
        "import sys, types\n"
        "kernel = types.SimpleNamespace(config={'IPKernelApp': {}})\n"
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: kernel, version_info=(9,))\n"
        "sys.modules['ipykernel.zmqshell'] = types.ModuleType('zmqshell')\n"
        "sys.modules['ipywidgets'] = None\n"
        "from seewhy import load_model\n"
        "assert 'tqdm.autonotebook' in sys.modules\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_detectors_have_names_too():
    model = load_model("ssdlite320_mobilenet_v3_large", weights=None)
    assert (model.preprocess.size, model.preprocess.resize) == ((320, 320), "exact")
    assert (model.spec.head, model.labels[:2]) == ("detection", ("__background__", "person"))
    assert model.default_layers[:2] == ("backbone.features.0", "backbone.features.1")
    spec = Registry().spec("maskrcnn_resnet50_fpn")
    assert (spec.preprocess.size, spec.preprocess.resize) == ((800, 800), "longer")
    assert (spec.head, spec.weights.name) == ("detection", "COCO_V1")


@pytest.mark.slow
@pytest.mark.parametrize("name", torchvision_models.list_models(module=torchvision_models.detection))
def test_layers_of_every_detector_are_known_before_it_is_loaded(name):
    layers = Registry().survey(Registry().spec(name)).default_layers
    assert len(set(layers)) == len(layers) >= 2
