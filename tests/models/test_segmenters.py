"""Torchvision's segmenters by name."""

import numpy as np
import pytest
import torch
from torchvision.models import get_model, get_model_weights, list_models, segmentation

from seewhy import explain, load_model, segment
from seewhy.models import Registry
from seewhy.models.errors import UnknownModelError, WeightsUnavailableError
from seewhy.models.models_file import own_specs
from tests.app.conftest import EXAMPLES
from tests.app.serving import declare
from tests.explainers.test_segmentation import Lesions

NAMES = list_models(module=segmentation)


@pytest.fixture(scope="module")
def model():
    return load_model("lraspp_mobilenet_v3_large", weights=None)


def test_a_segmenter_sees_the_whole_picture(model):
    result = segment(model, EXAMPLES / "cat.png")
    assert result.mask.shape == (300, 451)
    assert not (result.mask == result.void).any()
    assert model.labels[:2] == ("__background__", "aeroplane")
    assert model.spec.head == "segmentation"
    assert explain(model, EXAMPLES / "cat.png").layers == ("backbone.16",)


def test_the_input_is_normalised_as_torchvision_does(model):
    picture = segment(model, EXAMPLES / "cat.png").picture
    transforms = get_model_weights(model.name).DEFAULT.transforms()
    square = picture.resize((520, 520), 2)
    expected = transforms(square)  # which changes no size of this one
    assert torch.allclose(model.preprocess(picture), expected, atol=1e-6)


def test_weights_that_are_not_there_are_reported_as_of_other_models(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(WeightsUnavailableError, match="COCO_WITH_VOC_LABELS_V1"):
        Registry().load("deeplabv3_resnet50")
    with pytest.raises(UnknownModelError, match="has no weight set 'IMAGENET'"):
        load_model("deeplabv3_resnet50", weights="IMAGENET")
    with pytest.raises(UnknownModelError, match="deeplabv3_resnet50"):
        load_model("deeplab_resnet50")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"])
def test_torchvisions_own_weights_fit(name, tmp_path):
    set_name = get_model_weights(name).DEFAULT.name
    trained = {} if name.startswith("lraspp") else {"aux_loss": True}  # as the weights were
    module = get_model(name, weights=None, weights_backbone=None, **trained)
    torch.save(module.state_dict(), tmp_path / f"{name}.pth")
    model = Registry(weights_dir=tmp_path).load(name)
    assert model.weights == set_name
    assert len(model.labels) == 21
    first = next(iter(module.parameters()))
    assert torch.equal(next(iter(model.module.parameters())), first)


@pytest.mark.slow
def test_the_architecture_serves_ones_own_segmenters(tmp_path):
    members = {"head": "segmentation", "labels": ["rest", "lung"], "input_size": 64}
    models = declare(tmp_path, "lraspp_mobilenet_v3_large", ["lungs"], **members)
    module = get_model("lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=2)
    torch.save(module.state_dict(), tmp_path / "w.pth")
    registry, spec = Registry(models_file=models), own_specs(models)["lungs"]
    assert (spec.preprocess.size, spec.preprocess.resize) == ((64, 64), "exact")
    result = segment(registry.load("lungs"), np.zeros((50, 70, 3), np.uint8))
    assert {row.label for row in result.classes} <= {"rest", "lung"}


def test_a_network_of_a_single_logit_is_declared_with_two_labels(tmp_path):
    members = {"head": "segmentation", "labels": ["rest", "lesion"]}
    models = declare(tmp_path, "tests.explainers.test_segmentation:Lesions", **members)
    torch.save(Lesions().state_dict(), tmp_path / "w.pth")
    classes = segment(Registry(models_file=models).load("mine"), EXAMPLES / "cat.png").classes
    assert sorted(row.label for row in classes) == ["lesion", "rest"]
