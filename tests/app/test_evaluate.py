"""Metrics of methods on a picture, over HTTP."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.scheduler import Pace
from seewhy.explainers import evaluate
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.trust.metrics.randomisation import MPRT
from tests.app.conftest import encoded
from tests.app.test_errors import problem

QUICK = "sparseness,average-drop"


@pytest.fixture
def ask(post, cat):
    """Post the cat to /evaluate, and return the document."""

    def send(**fields):
        response = post(cat, "/evaluate", **{"metrics": QUICK, **fields})
        assert response.status_code == 200, response.get_data(as_text=True)
        return response.get_json()

    return send


def mask_of(box, size):
    pixels = np.zeros(size[::-1], dtype=np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 255
    return encoded(Image.fromarray(pixels), "PNG")


def test_the_values_are_those_of_python(ask, cat, lite0):
    document = ask(method="gradcam,layercam", target="tabby")
    table = evaluate(lite0, [io.BytesIO(cat)], ["gradcam", "layercam"], QUICK.split(","), "tabby")
    assert [row["name"] for row in document["methods"]] == list(table.methods)
    assert [row["control"] for row in document["methods"]] == [False, False, True, True, True]
    for row in document["methods"]:
        for column in ("sparseness", "average-drop"):
            assert row["values"][column] == pytest.approx(table[row["name"], column].mean, abs=2e-3)
    assert document["target"]["label"] == "tabby"
    assert document["metrics"][0] == {
        "name": "sparseness",
        "metric": "sparseness",
        "aspect": "complexity",
        "better": "higher",
    }
    assert document["model"]["name"] == "efficientnet_lite0"
    assert document["timings_ms"].keys() >= {"decode", "evaluate"}


def test_an_undefined_value_is_null(ask):
    document = ask(method="gradcam", target="giant panda", metrics="max-sensitivity", **{"max-sensitivity.samples": 1})
    values = {row["name"]: row["values"]["max-sensitivity"] for row in document["methods"]}
    assert values["gradcam"] is None  # its map is blank
    assert values["edges"] > 0
    (cell,) = [row for row in document["methods"] if row["name"] == "gradcam"]
    assert not cell.get("reasons")


def test_options_belong_to_methods_and_to_metrics(ask):
    plain = ask(metrics="insertion", **{"insertion.steps": "2"}, controls="false")
    fine = ask(metrics="insertion", **{"insertion.steps": "3"}, controls="false", smooth="tta")
    assert [row["name"] for row in plain["methods"]] == ["gradcam"]
    assert fine["methods"][0]["options"]["smooth"] == "tta"
    assert plain["methods"][0]["values"] != fine["methods"][0]["values"]


def test_a_mask_says_where_the_target_lies(ask, cat):
    size = Image.open(io.BytesIO(cat)).size
    everywhere = mask_of((0, 0, *size), size)
    document = ask(metrics="energy-in-box", controls="false", truth=(io.BytesIO(everywhere), "truth.png"))
    assert document["methods"][0]["values"]["energy-in-box"] == pytest.approx(1)


def test_a_metric_that_cannot_measure_a_method_says_why(ask, monkeypatch):
    def score(_, subject):
        raise UnsupportedModuleError("It cannot be copied.")

    monkeypatch.setattr(MPRT, "score", score)
    (row,) = ask(metrics="sparseness,mprt", controls="false")["methods"]
    assert row["values"]["mprt"] is None
    assert row["values"]["sparseness"] > 0
    assert row["reasons"] == {"mprt": "It cannot be copied."}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        (
            {"metrics": "gridpg,difull"},
            "metrics",
            "gridpg, difull: this metric needs several pictures; use `seewhy evaluate",
        ),
        ({"metrics": "pointing-game"}, "truth", "where the targets lie"),
        ({"metrics": "insertoin"}, "metrics", "Near matches: insertion"),
        ({"metrics": "road", "road.imputaton": "exact"}, "road.imputaton", "Near matches: imputation"),
        ({"metrics": "road", "insertion.steps": "4"}, "insertion.steps", "not measured"),
        ({"metrics": "road", "road.noise": "loud"}, "road.noise", "It must be a number"),
        ({"method": "gradcma"}, "method", "Near matches: gradcam"),
        ({"smoht": "tta"}, "smoht", "Near matches: smooth"),
        ({"target": "tabyb"}, "target", "Near matches: tabby"),
        ({"layer": "blocks.60"}, "layer", "blocks.6"),
        ({"truth": (io.BytesIO(b"no picture"), "truth.png")}, "truth", ""),
        ({"truth": (io.BytesIO(mask_of((0, 0, 5, 5), (20, 20))), "truth.png")}, "truth", "same size"),
    ],
)
def test_what_cannot_be_measured_is_refused(post, cat, fields, field, message):
    response = post(cat, "/evaluate", **{"metrics": QUICK, **fields})
    document = response.get_json()
    assert response.status_code in (415, 422), document
    assert [error["field"] for error in document["errors"]] == [field]
    assert message in json.dumps(document["errors"])


def test_the_cost_is_counted_and_refused_at_once(post, cat, service, monkeypatch):
    pace = Pace()
    pace.learn(Passes(1), 1.0)
    monkeypatch.setattr(service, "deadline", lambda: Deadline.after(60))
    monkeypatch.setattr(service.models.engine, "pace", lambda _: pace)
    response = post(cat, "/evaluate", metrics="sensitivity-n", method="layercam", **{"sensitivity-n.masks": "500"})
    detail = problem(response, 422)["detail"]
    assert "506 passes through efficientnet_lite0 (layercam), at least 506 s" in detail
    assert "Use fewer metrics or a cheaper method" in detail


def test_the_document_of_routes_describes_it(client):
    document = client.get("/openapi.json").get_json()
    operation = document["paths"]["/evaluate"]["post"]
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert {"model", "method", "metrics", "target", "layer", "controls", "steps"} <= names
    assert "truth" in operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert "EvaluateAnswer" in document["components"]["schemas"]
