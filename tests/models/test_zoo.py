"""Classifiers of each kind by name: their default layer, and explanations that leave nothing behind."""

import subprocess
import sys

import pytest
import torch

from seewhy.explainers import GradCAM
from seewhy.models import Registry, load_model
from tests.grids import few

# The default layer and the side of its grid at the model's own input size.
TORCHVISION = {
    "alexnet": ("features.11", 13),
    "convnext_tiny": ("features", 7),
    "densenet121": ("features", 7),
    "efficientnet_b0": ("features", 7),
    "efficientnet_v2_s": ("features", 12),
    "googlenet": ("inception5b", 7),
    "inception_v3": ("Mixed_7c", 8),
    "maxvit_t": ("blocks.3", 7),
    "mnasnet0_5": ("layers", 7),
    "mobilenet_v2": ("features", 7),
    "mobilenet_v3_small": ("features", 7),
    "regnet_x_400mf": ("trunk_output", 7),
    "regnet_y_400mf": ("trunk_output", 7),
    "resnet18": ("layer4", 7),
    "resnext50_32x4d": ("layer4", 7),
    "shufflenet_v2_x0_5": ("conv5", 7),
    "squeezenet1_1": ("features", 13),
    "swin_t": ("permute", 7),
    "swin_v2_t": ("permute", 8),
    "vgg11": ("features.19", 14),
    "vgg11_bn": ("features.27", 14),
    "vit_b_32": ("encoder.layers.encoder_layer_11.ln_1", 7),
}

EXPECTED = TORCHVISION | {
    "timm/levit_128s": ("stages.2.blocks", 4),
    "timm/vit_tiny_patch16_224": ("blocks.11.norm1", 14),
}
"""Further models of timm stand in tests/explainers/test_default_layers.py."""

SHORT = {"mobilenet_v3_small", "timm/vit_tiny_patch16_224"}
"""Models that differ in kind; `make test-slow` tries the others."""


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


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1"])
def test_a_classifier_of_torchvision_is_explained_at_its_default_layer(name):
    model = load_model(name, weights=None)
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    attribution = GradCAM().explain(model, images, torch.tensor([3]))
    assert attribution.layers == model.default_layers
    assert attribution.maps.ndim == 3
    assert torch.isfinite(attribution.maps).all()
    assert attribution.logits.shape == (1, 1000)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert not any(part._forward_hooks or part._backward_hooks for part in model.module.modules())


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
@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_layers_of_detectors_are_known_before_it_is_loaded(name):
    layers = Registry().survey(Registry().spec(name)).default_layers
    assert len(set(layers)) == len(layers) >= 2
