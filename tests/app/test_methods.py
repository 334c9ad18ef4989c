"""Every method runs through HTTP: on the embedded model and, with random weights, on ResNet-18 and a CNN of timm."""

import io

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from seewhy.app import create_app
from seewhy.app.errors import FieldError
from seewhy.app.settings import Settings
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.models import Registry, load_model
from tests import nets
from tests.app.serving import application, explain
from tests.grids import CONVOLUTIONAL, diagonal
from tests.waiting import GUARD

FEW = {"samples": 3, "steps": 4, "masks": 20, "segments": 8, "iterations": 4, "grid": 4, "patch": 64, "stride": 64}
ENOUGH = {"rise": 40, "kernel-shap": 40}
"""Samples without which a method refuses to answer."""

LAYERS = {"efficientnet_lite0": "blocks.0.0.bn2", "timm/resnet10t": "layer1.0.bn1", "resnet18": "layer1.0.bn1"}
"""Layers of few channels, for methods that run the model once for each."""

SHORT = ("dff", "saliency")
"""The methods of `make test`."""

METHODS_OF = {
    "": ("votes", "votes-detail"),
    "model=resnet18": ("votes", "votes-detail"),
    "model=fcn_resnet50": ("hirescam", "hirescam"),
    "model=fasterrcnn_resnet50_fpn": ("odam", "odam"),
}
"""The default and the recommended method of models, with `SEEWHY_DEFAULT_METHOD=votes`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def client(folder, sharing):
    with application(weights_dir=folder, deadline=GUARD) as app, sharing():
        yield app.test_client()


@pytest.fixture
def model(request, folder):
    """The name of a model whose weights are available."""
    weights = folder / Registry(folder, None).spec(request.param).weights.file_names[0]
    if request.param != "efficientnet_lite0" and not weights.exists():
        weights.parent.mkdir(exist_ok=True)
        module = nets.seeded(lambda: load_model(request.param, weights=None).module)
        for name, value in module.state_dict().items():
            if name.endswith(("bn2.weight", "bn3.weight")):
                value.fill_(1)  # timm starts with residual branches that do nothing
        save_file(module.to(memory_format=torch.contiguous_format).state_dict(), weights)
    return request.param


def test_the_default_method_is_that_of_the_setting_but_where_a_task_needs_another(app_of, client, cat):
    app = app_of(default_method="votes")
    clients = app.test_client(), client
    answers = [client.post("/explain", data=cat, content_type="image/png") for client in clients]
    assert [answer.headers["X-SeeWhy-Method"] for answer in answers] == ["votes", "gradcam"]
    assert answers[0].headers["ETag"] != answers[1].headers["ETag"]
    catalogue = [app.test_client().get("/methods", query_string=query).get_json() for query in METHODS_OF]
    assert [(answer["default"], answer["recommended"]) for answer in catalogue] == list(METHODS_OF.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gradcm", "There is no method 'gradcm'. Near matches: gradcam"),
        ("drise", "Method 'drise' does not explain classifiers"),
    ],
)
def test_a_default_method_that_cannot_be_is_told_by_its_setting(name, message):
    with pytest.raises(FieldError, match=f"SEEWHY_DEFAULT_METHOD: {message}") as caught:
        create_app(Settings(default_method=name))
    assert caught.value.field == "default_method"


@pytest.mark.parametrize("model", ["timm/mobilenetv3_small_050"], indirect=True)
@pytest.mark.slow
def test_an_operation_without_a_rule_is_named(model, client, cat):
    fields = {"image": (io.BytesIO(cat), "cat.png"), "model": model, "method": "excitation-backprop"}
    answer = client.post("/explain", data=fields, content_type="multipart/form-data")
    document = answer.get_json()
    assert (answer.status_code, document["type"]) == (422, "urn:seewhy:problem:unsupported-operation")
    assert [error["field"] for error in document["errors"]] == ["method"]
    assert "hardswish" in document["detail"]


def test_a_method_that_reads_attention_says_what_other_models_can_be_asked(client, cat):
    fields = {"image": (io.BytesIO(cat), "cat.png"), "method": "legrad"}
    answer = client.post("/explain", data=fields, content_type="multipart/form-data")
    document = answer.get_json()
    assert (answer.status_code, document["type"]) == (422, "urn:seewhy:problem:unsuitable-model")
    assert [error["field"] for error in document["errors"]] == ["method"]
    assert "needs a transformer" in document["detail"]
    needs = {method["name"]: method["needs"] for method in client.get("/methods").get_json()["methods"]}
    assert needs["legrad"] == ["gradient", "attention"]
    special = {name for name, names in needs.items() if {"attention", "boxes", "region"} & {*names}}
    assert special == set(METHODS) - {*CONVOLUTIONAL}


def test_the_service_takes_up_the_example_of_a_new_method(tight):
    answer = explain(tight.url, method="powercam", power="3")
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-SeeWhy-Method"] == "powercam"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("efficientnet_lite0", name) for name in SHORT),
        *(pytest.param(model, name, marks=pytest.mark.slow) for name, model in diagonal(CONVOLUTIONAL, [*LAYERS])),
    ],
    indirect=["model"],
)
def test_each_method_answers_over_http(model, name, client, cat):
    method = METHODS[name]
    few = {**FEW, "samples": ENOUGH.get(name, FEW["samples"])}
    fields = {option: str(value) for option, value in few.items() if option in method.options}
    if method.takes_layers and "channels" in method.forwards:
        fields["layer"] = LAYERS[model]
    fields |= {"image": (io.BytesIO(cat), "cat.png"), "model": model, "method": name, "target": "281"}
    fields["sign"] = "signed" if "signed" in method.options["sign"]["enum"] else "positive"
    answer = client.post("/explain", data={**fields, "format": "npz"}, content_type="multipart/form-data")
    assert answer.status_code == 200, answer.get_data(as_text=True)
    with np.load(io.BytesIO(answer.data)) as arrays:
        heatmaps, maps = arrays["heatmaps"], arrays["maps"]
    assert heatmaps.shape == (1, 300, 451)
    assert np.isfinite(heatmaps).all()
    assert np.abs(maps).max() > 0
    assert answer.headers["X-SeeWhy-Method"] == name
