"""A model with one logit: its probability is the sigmoid, and every answer says so."""

import base64
import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from seewhy.app.cli import main
from seewhy.explainers import explain, explain_many, sweep_channels
from seewhy.explainers.errors import TargetError
from seewhy.models import ModelError, wrap_model
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, declare

CAT = EXAMPLES / "cat.png"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    torch.save(nets.seeded(nets.OneLogit).state_dict(), folder / "w.pth")
    return declare(folder, "tests.nets:OneLogit", labels=["cat"], head="sigmoid")


@pytest.fixture(scope="module")
def client(file):
    with application(models=file, default_model="mine") as app:
        yield app.test_client()


@pytest.fixture(scope="module")
def model():
    return wrap_model(nets.seeded(nets.OneLogit), ["cat"], input_size=32, head="sigmoid")


@pytest.fixture(scope="module")
def expected(model):
    result = explain(model, CAT)
    assert 0.05 < result.target.probability < 0.95
    return result.target.probability


def test_explanations_have_the_sigmoid_of_the_logit(model, expected):
    assert ", 1 class, " in repr(model)
    result = explain(model, CAT, sign="signed")
    assert result.target.probability == pytest.approx(1 / (1 + math.exp(-result.target.logit)))
    assert [prediction.label for prediction in result.predictions] == ["cat"]
    assert "one-logit" in [diagnostic.code for diagnostic in result.diagnostics]
    assert next(explain_many(model, [CAT])).target.probability == pytest.approx(expected)
    sweep = sweep_channels(model, CAT, {"layer": "conv", "op": "zero"})
    assert sweep.probability == pytest.approx(expected)
    assert len({effect.probability for effect in sweep.channels}) > 1


@pytest.mark.parametrize("method", ["rise", "lime"])
def test_methods_that_watch_the_probability_see_it_change(model, method):
    options = {"rise": {"samples": 40, "cells": 3}, "lime": {"samples": 40}}[method]
    assert np.ptp(explain(model, CAT, method=method, sign="signed", score="probability", **options).map) > 0


@pytest.mark.parametrize(
    ("question", "message", "detail"),
    [
        ({"target": 1}, r"one logit, class 0.*sign=signed", "one logit"),
        ({"target": "1"}, r"one logit, class 0.*sign=signed", "one logit"),
        ({"target": "healthy"}, r"no class 'healthy'\. It has one logit, for 'cat'.*sign=signed", "one logit"),
        ({"target": "cat", "against": "cat"}, "no other class to contrast", "one output only"),
    ],
)
def test_another_class_is_refused_with_what_to_do(model, client, cat, question, message, detail):
    with pytest.raises(TargetError, match=message):
        explain(model, CAT, **question)
    answer = client.post("/explain", query_string=question, data=cat, content_type="image/png")
    assert (answer.status_code, detail in answer.json["detail"]) == (422, True)


def test_two_labels_for_one_logit_are_refused_with_the_reason():
    with pytest.raises(ModelError, match=r"2 labels are given\. One logit has one label"):
        wrap_model(nets.seeded(nets.OneLogit), ["cat", "dog"], input_size=32, head="sigmoid")


def test_our_own_routes_say_so(client, cat, expected):
    predicted = client.post("/predict", data=cat, content_type="image/png").json
    assert predicted["model"]["head"] == "sigmoid"
    (only,) = predicted["predictions"]
    assert (only["label"], only["probability"]) == ("cat", pytest.approx(expected, abs=0.01))
    explained = client.post("/explain?format=json", data=cat, content_type="image/png").json
    assert explained["model"]["head"] == "sigmoid"
    assert explained["explanations"][0]["target"]["probability"] == pytest.approx(expected, abs=0.01)
    assert "one-logit" in [diagnostic["code"] for diagnostic in explained["explanations"][0]["diagnostics"]]
    assert client.get("/models/mine").json["head"] == "sigmoid"
    assert client.get("/models/efficientnet_lite0").json["head"] == "softmax"


def test_the_routes_of_other_servers_have_the_sigmoid(client, cat, expected):
    near = pytest.approx(expected, abs=0.01)
    encoded = base64.b64encode(cat).decode()
    v1 = {"instances": [{"b64": encoded}]}
    assert client.post("/v1/models/mine:predict", json=v1).json["predictions"][0][0]["probability"] == near
    options = {"output": "probabilities"}
    assert client.post("/v1/models/mine:predict", json=v1 | {"parameters": options}).json["predictions"] == [[near]]
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [encoded]}
    v2 = {"inputs": [image], "outputs": [{"name": "probabilities"}]}
    assert client.post("/v2/models/mine/infer", json=v2).json["outputs"][0]["data"] == [near]
    assert json.loads(client.post("/predictions/mine", data=cat).data) == {"cat": near}


def test_the_command_line_says_so(file, expected):
    environment = {"SEEWHY_MODELS": str(file), "SEEWHY_DEFAULT_MODEL": "mine"}
    ran = CliRunner().invoke(main, ["predict", str(CAT)], env=environment)
    assert ran.exit_code == 0, ran.output
    (line,) = ran.stdout.splitlines()[1:]
    assert line.split()[1:] == ["0", "cat", "(sigmoid", "of", "one", "logit)"]
    assert float(line.split()[0].rstrip("%")) == pytest.approx(100 * expected, abs=1)


def test_the_classes_of_a_model_count_before_the_limit(client, file, cat, tmp_path):
    explained = client.post("/explain?format=json&top=99", data=cat, content_type="image/png").json
    assert [part["target"]["label"] for part in explained["explanations"]] == ["cat"]
    environment = {"SEEWHY_MODELS": str(file), "SEEWHY_DEFAULT_MODEL": "mine"}
    words = ["explain", str(CAT), "--top", "99", "--output", str(tmp_path / "map.png")]
    ran = CliRunner().invoke(main, words, env=environment)
    assert ran.exit_code == 0, ran.output
