"""Networks of values: the answer is a value with its unit, in Python, over HTTP and on the command line."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from seewhy import compare, explain, intervene, sweep_channels, wrap_model
from seewhy.app.cli import main
from seewhy.explainers.errors import ModelOutputError, TargetError, UnsuitableModelError
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.tasks.values import Values
from seewhy.models import ModelError
from seewhy.models.errors import ModelsFileError
from seewhy.models.models_file import own_specs
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, declare
from tests.grids import CONVOLUTIONAL, few

CAT = EXAMPLES / "cat.png"
LABELS, UNITS = ["age", "height", "age:down"], ["years", "cm", ""]
DECLARED = {"head": "value", "labels": LABELS, "units": UNITS}
COMPARES_CLASSES = ("finercam", "shapleycam")

SAME = [
    name
    for name in CONVOLUTIONAL
    if not METHODS[name].rounding and name not in (*COMPARES_CLASSES, "recipro-cam", "cam", "votes", "votes-detail")
]
"""Methods that explain a value as they explain a logit; Recipro-CAM takes probabilities, CAM another network, and votes
need classes."""


class OneValue(nets.Net):
    """Returns a number for each picture, without an axis of outputs."""

    def forward(self, images):
        return super().forward(images)[:, 0]


@pytest.fixture(scope="module")
def module():
    return nets.seeded(nets.Net)


@pytest.fixture(scope="module")
def model(module):
    return wrap_model(module, LABELS, input_size=32, head="value", units=UNITS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, module):
    folder = tmp_path_factory.mktemp("values")
    torch.save(module.state_dict(), folder / "w.pth")
    declare(folder, names=["patient"], **DECLARED)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with application(models=folder / "models.toml", default_model="patient") as app:
        yield app.test_client()


@pytest.fixture
def ask(client):
    """Post the picture, with options in the query."""

    def send(path="/explain", **query):
        return client.post(path, query_string=query, data=CAT.read_bytes(), content_type="image/png")

    return send


def test_a_value_is_what_the_network_returns(model):
    result = explain(model, CAT)
    with torch.no_grad():
        expected = model.module(model.preprocess(result.picture)[None])[0]
    assert [row.value for row in result.predictions] == pytest.approx(expected.tolist(), rel=1e-5)
    assert [(row.label, row.unit) for row in result.predictions] == list(zip(LABELS, UNITS, strict=True))
    assert result.target == result.predictions[0]
    assert result.caption == f"age {result.target.value:.4g} years by gradcam"


@pytest.mark.parametrize("name", few(SAME, ["gradcam", "lrp", "rise", "dff"]))
def test_the_map_is_that_of_a_logit(name, model, module):
    options = {"samples": 150} if name in ("rise", "lime", "kernel-shap") else {}
    options |= {"score": "logit"} if name in ("rise", "lime") else {}
    logit = explain(wrap_model(module, input_size=32), CAT, name, target=1, **options).map
    value = explain(model, CAT, name, target="height", **options).map
    assert np.allclose(value, logit, atol=1e-4 * abs(logit).max())


@pytest.mark.parametrize("name", ["votes", "votes-detail"])
def test_a_value_has_no_votes_and_the_map_of_gradcam(name, model, tmp_path):
    result = explain(model, CAT, name, target="height")
    assert "votes-unavailable" in [diagnostic.code for diagnostic in result.diagnostics]
    assert result.caption.endswith(f" by gradcam in place of {name}")
    assert f" by gradcam in place of {name}, saliency" in repr(compare(model, CAT, [name, "saliency"], target="height"))
    result.save(tmp_path / "why.html")
    report = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert f"<h2>Method: gradcam in place of {name}</h2>" in report
    assert METHODS["gradcam"].papers[0].title in report
    assert METHODS[name].papers[0].title not in report
    assert np.allclose(result.map, explain(model, CAT, "gradcam", target="height").map, atol=1e-6 * result.map.max())


@pytest.mark.parametrize("name", ["gradcam", "occlusion", "input-x-gradient", "deeplift", "kernel-shap"])
def test_what_lowers_a_value_is_the_negative_of_what_raises_it(name, model):
    options = {"samples": 150} if name == "kernel-shap" else {}
    rise, fall = (
        explain(model, CAT, name, target=target, sign="signed", **options) for target in ("height", "output:1:down")
    )
    assert np.allclose(rise.map, -fall.map, atol=1e-5 * abs(rise.map).max())
    assert (rise.target.direction, fall.target.direction) == ("up", "down")
    assert rise.target.value == fall.target.value


def test_methods_that_compare_classes_say_so(model):
    for name in COMPARES_CLASSES:
        with pytest.raises(UnsuitableModelError, match="class probabilities"):
            explain(model, CAT, name)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (0, 0),
        (np.int64(2), 2),
        ("1", 1),
        ("output:1", 1),
        ("output:1:up", 1),
        ("output:1:down", ~1),
        ("HEIGHT:down", ~1),
        ("age:down", 2),  # a label
        ("age:down:down", ~2),
    ],
)
def test_values_are_named_by_place_or_label(name, number):
    assert Values(LABELS, UNITS).target(name) == number


@pytest.mark.parametrize("name", [3, -1, "output:3", "output:-1", "hight", "output:", True, 1.5, "output:1:left"])
def test_there_is_no_such_value(name):
    with pytest.raises(TargetError, match=r"outputs 0 to 2|no value .*(There are|Near matches)"):
        Values(LABELS, UNITS).target(name)


def test_a_contrast_is_the_difference_of_two_values(model, module):
    both = explain(model, CAT, "input-x-gradient", target=1, against=0, sign="signed")
    maps = [explain(model, CAT, "input-x-gradient", target=index, sign="signed").map for index in (1, 0)]
    assert np.allclose(both.map, maps[0] - maps[1], atol=1e-5 * abs(maps[0]).max())
    fall = explain(model, CAT, "input-x-gradient", target="output:1:down", against=0, sign="signed")
    assert np.allclose(fall.map, -both.map, atol=1e-5 * abs(both.map).max())  # what lowers the lead
    with pytest.raises(TargetError, match="contrasted with itself"):
        explain(model, CAT, target=1, against="output:1:down")
    with pytest.raises(TargetError, match="direction of its target"):
        explain(model, CAT, target=1, against="output:0:down")


def test_the_lead_of_a_value_is_said_to_be_lowered(model):
    options = {"sign": "absolute", "proof": True}
    rise, fall = (
        explain(model, CAT, "gradcam", target=target, against="age", **options).proof
        for target in ("height", "output:1:down")
    )
    assert fall.sentence == rise.sentence
    assert fall.faithfulness == replace(rise.faithfulness, score=-rise.faithfulness.score)


def test_a_network_may_return_one_number_for_each_picture():
    model = wrap_model(nets.seeded(OneValue), ["age"], input_size=32, head="value", units="years")
    results = compare(model, CAT, ["gradcam", "occlusion"])
    assert {result.target.unit for result in results} == {"years"}
    with pytest.raises(TargetError, match="outputs 0 to 0"):
        explain(model, CAT, target=1)


def test_bare_modules_and_strange_outputs_are_refused():
    with pytest.raises(ModelOutputError, match=r"\(2, 3, 4\)"):
        Values().outputs(torch.zeros(2, 3, 4))
    with pytest.raises(ModelOutputError, match="none"):
        Values().outputs({})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head": "value", "units": ["cm"]}, "1 unit is given for 3 values"),
        ({"units": ["cm"] * 3}, "Only values have units"),
        ({"head": "value", "labels": ["age"]}, "3 values, but 1 label is given"),
    ],
)
def test_units_that_do_not_suit_are_refused(options, reason, module):
    with pytest.raises(ModelError, match=reason):
        wrap_model(module, **{"input_size": 32, **options})


def test_units_are_declared_for_each_value(folder, tmp_path):
    with pytest.raises(ModelsFileError, match="1 unit is given for 3 values"):
        own_specs(declare(tmp_path, **DECLARED | {"units": ["cm"]}))


def test_edits_change_values(model):
    edit = {"op": "zero", "layer": "conv"}
    effect = intervene(model, CAT, [edit], target="height")
    assert effect.score_change == effect.after.target.value - effect.before.target.value != 0
    assert effect.probability_change is None
    assert effect.panel()
    effects = sweep_channels(model, CAT, edit, target="height").channels
    assert {channel.probability for channel in effects} == {channel.probability_change for channel in effects} == {None}


def test_answers_say_value_and_never_probability(client, ask, model):
    expected = explain(model, CAT, target="height").target
    response = ask(target="output:1:down", format="json")
    (explanation,) = response.json["explanations"]
    assert explanation["target"] == {
        "index": 1,
        "label": "height",
        "value": pytest.approx(expected.value, rel=1e-3),
        "unit": "cm",
        "direction": "down",
    }
    assert set(response.json["predictions"][0]) == {"index", "label", "value", "unit"}
    assert response.json["model"]["head"] == client.get("/models/patient").json["head"] == "value"
    assert "probability" not in response.text
    assert response.headers["X-SeeWhy-Target"] == "output:1:down"
    assert "X-SeeWhy-Probability" not in response.headers
    assert [part["target"]["label"] for part in ask(top=2, format="json").json["explanations"]] == LABELS[:2]
    assert ask().status_code == 200
    assert b"seewhy_explained_probability_count" not in client.get("/metrics").data


@pytest.mark.parametrize(
    ("query", "field"), [({"target": "output:3"}, "target"), ({"target": 1, "against": 1}, "against")]
)
def test_wrong_values_are_the_clients_mistake(query, field, ask):
    response = ask(**query)
    assert (response.status_code, response.json["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize(
    ("route", "options"),
    [
        ("intervene", {"edits": '[{"op": "zero", "layer": "conv"}]'}),
        ("trace", {}),
        ("capture", {"layer": "conv", "kind": "grad_output"}),
    ],
)
def test_hooks_of_networks_of_values_are_reached_over_http(route, options, ask):
    response = ask(f"/hooks/{route}", target="height", format="json", **options)
    assert response.json["target"]["unit"] == "cm"
    if route == "intervene":
        assert response.json["difference"]["probability"] is None
        assert response.json["after"]["target"]["value"] != response.json["before"]["target"]["value"]


def test_compatible_servers_give_values(client, ask):
    image = base64.b64encode(CAT.read_bytes()).decode()
    v1 = {"instances": [image], "parameters": {"output": "values"}}
    (values,) = client.post("/v1/models/patient:predict", json=v1).json["predictions"]
    assert len(values) == 3
    predictions = ask("/predict").json["predictions"]
    labelled = client.post("/v1/models/patient:predict", json={"instances": [image]})
    assert (labelled.status_code, labelled.json) == (200, {"predictions": [predictions]})
    for output in ("probabilities", "logits"):
        body = {"instances": [image], "parameters": {"output": output}}
        assert client.post("/v1/models/patient:predict", json=body).status_code == 400
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}
    answer = client.post("/v2/models/patient/infer", json={"inputs": [tensor]}).json
    assert [output["name"] for output in answer["outputs"]] == ["values", "indices", "classes"]
    assert answer["outputs"][0]["data"] == pytest.approx(values)
    assert client.get("/v2/models/patient").json["outputs"][0]["name"] == "values"
    explained = client.post("/v2/models/patient/explain", json={"inputs": [tensor]}).json
    assert {output["name"] for output in explained["outputs"]} >= {"values", "heatmaps", "targets"}
    torchserve = ask("/predictions/patient").json
    assert torchserve == {label: pytest.approx(value, rel=1e-4) for label, value in zip(LABELS, values, strict=True)}


def test_the_command_line_prints_values(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEWHY_MODELS", str(folder / "models.toml"))
    printed = CliRunner().invoke(main, ["predict", str(CAT), "--model", "patient"])
    assert printed.exit_code == 0
    assert " years " in printed.output
    assert "%" not in printed.output
    summary = tmp_path / "rows.jsonl"
    arguments = ["explain", str(CAT), "--model", "patient", "--target", "height:down", "--summary", str(summary)]
    explained = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "cat.png")])
    assert explained.exit_code == 0, explained.output
    row = json.loads(summary.read_text())
    assert (row["target"], row["probability"], row["logit"]) == ("output:1:down", None, None)
    assert isinstance(row["value"], float)


def test_a_sigmoid_at_the_end_is_no_fault_of_a_network_of_values(module):
    model = wrap_model(nn.Sequential(module, nn.Sigmoid()), LABELS, input_size=32, head="value")
    assert 0 <= explain(model, CAT).target.value <= 1
