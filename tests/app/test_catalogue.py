import pytest
from torchvision import models as torchvision_models

from seewhy.app.pipeline.jobs import Deadline
from seewhy.explainers import list_methods
from tests.waiting import GUARD


def test_models_lists_every_ready_made_model_with_its_weights(client):
    models = {model["name"]: model for model in client.get("/models").get_json()["models"]}
    assert set(torchvision_models.list_models(module=torchvision_models)) <= set(models)
    assert sum(name.startswith("timm/") for name in models) > 1000
    default = models["efficientnet_lite0"]
    assert default["weights"] == {"name": "imagenet", "available": True, "reason": None}
    assert default["source"] == "embedded"
    assert default["licence"] == "Apache-2.0"
    assert default["input_size"] == [224, 224]
    assert default["classes"] == 1000
    absent = models["resnet50"]["weights"]
    assert not absent["available"]
    assert "SEEWHY_WEIGHTS_DIR" in absent["reason"]


@pytest.mark.parametrize("source", ["embedded", "torchvision", "timm", "own"])
def test_models_of_one_source(client, source):
    models = client.get(f"/models?source={source}").get_json()["models"]
    assert {model["source"] for model in models} <= {source}


def test_one_model_with_labels_and_default_layers(client):
    model = client.get("/models/efficientnet_lite0").get_json()
    assert model["default_layers"] == ["bn2"]
    assert model["labels"][281] == "tabby"
    transformer = client.get("/models/vit_b_16").get_json()
    assert transformer["default_layers"] == ["encoder.layers.encoder_layer_11.ln_1"]
    assert transformer["no_default_layer"] is None


def test_layers_in_execution_order(client):
    answer = client.get("/models/resnet18/layers").get_json()
    paths = [layer["path"] for layer in answer["layers"]]
    assert paths[:3] == ["", "conv1", "bn1"]
    assert paths.index("layer1") < paths.index("layer1.0.conv1") < paths.index("layer4") < paths.index("fc")
    layers = {layer["path"]: layer for layer in answer["layers"]}
    assert layers["layer4"] == {
        "path": "layer4",
        "type": "Sequential",
        "input_shape": [1, 256, 14, 14],
        "output_shape": [1, 512, 7, 7],
        "parameters": 8393728,
        "calls": 1,
        "hooks": ["input", "output", "grad_input", "grad_output"],
        "cam": True,
        "default": True,
        "tokens": None,
        "inputs": ["layer3.1.relu"],
        "parts": [],
    }
    assert layers["layer1.1.relu"]["inputs"] == ["layer1.0.relu", "layer1.1.bn1", "layer1.1.bn2"]
    assert layers["layer1.0.relu"]["calls"] == 2
    assert not layers["layer1.0.relu"]["cam"]
    assert not layers["fc"]["cam"]


def test_the_layers_of_a_transformer_tell_the_grid_of_their_tokens(client):
    answer = client.get("/models/timm/deit_tiny_distilled_patch16_224/layers").get_json()
    layers = {layer["path"]: layer["tokens"] for layer in answer["layers"]}
    assert layers["blocks.0"] == {"rows": 14, "columns": 14, "before": 2, "after": 0}
    assert layers["patch_embed"] == {"rows": 14, "columns": 14, "before": 0, "after": 0}
    assert layers["head"] is None
    assert [layer["path"] for layer in answer["layers"] if layer["default"]] == ["blocks.11.norm1"]


def test_methods(client):
    methods = {method["name"]: method for method in client.get("/methods").get_json()["methods"]}
    assert list(methods) == list_methods()
    gradcam = methods["gradcam"]
    assert gradcam["paper"]["url"].endswith("1610.02391")
    assert gradcam["papers"] == [gradcam["paper"]]
    layercam, finercam, *_ = methods["votes-detail"]["papers"]
    assert (layercam["title"][:8], finercam["title"][:9]) == ("LayerCAM", "Finer-CAM")
    assert gradcam["cost"] == {"forwards": "1", "backwards": "1"}
    assert gradcam["options"]["sign"]["enum"] == ["positive", "signed", "absolute"]
    assert r"\frac{\partial y^c}" in gradcam["equation"]
    assert gradcam["options"]["layer"]["type"] == "array"


def test_methods_that_can_never_explain_a_loaded_model_say_why(client, service):
    service.models.model(None, Deadline.after(GUARD))

    def reasons(model):
        methods = client.get("/methods", query_string={"model": model}).get_json()["methods"]
        return {method["name"]: method["unsuitable"] for method in methods if method["unsuitable"]}

    reason = reasons("efficientnet_lite0")
    assert {*reason} == {"attention-rollout", "chefer", "legrad", "drise", "grid-saliency"}
    assert "needs a transformer" in reason["legrad"]
    assert reason["drise"] == "The method needs a detector; use rise."
    assert reasons("resnet18") == {}  # it is not loaded


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/models?sauce=timm", "Near matches: source."),
        ("/models?x=1", "There is no such option. It takes source."),
        ("/models?source=tim", "timm"),
        ("/models?source=own&source=timm", "give it once"),
        ("/models/efficientnet_lite0?source=timm", "There is no such option. It takes none."),
        ("/models/efficientnet_lite0/layers?cam=true", "There is no such option. It takes none."),
        ("/methods?family=cam", "There is no such option. It takes model."),
        ("/methods?model=resnet1", "Near matches: resnet18"),
        ("/colormaps?name=vik", "There is no such option. It takes none."),
    ],
)
def test_options_are_refused_as_those_of_pictures_are(client, path, message):
    response = client.get(path)
    assert (response.status_code, response.mimetype) == (422, "application/problem+json")
    assert message in response.get_json()["errors"][0]["message"]
    assert client.get(f"{path.partition('=')[0]}=").status_code == 422
