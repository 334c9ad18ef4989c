"""KServe's V1 protocol."""

import base64

import numpy as np
import pytest

from seewhy.app.answers import schemas

MODEL = "efficientnet_lite0"


@pytest.fixture
def text(cat):
    return base64.b64encode(cat).decode()


@pytest.fixture
def ask(client):
    def run(verb, body, name=MODEL):
        return client.post(f"/v1/models/{name}:{verb}", json=body)

    return run


def refused(response, status=400):
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/json"
    body = response.get_json()
    assert set(body) == {"error"}
    return body["error"]


def test_models_at_hand_are_ready_and_those_without_weights_are_not(client):
    assert MODEL in client.get("/v1/models").get_json()["models"]
    assert "resnet50" not in client.get("/v1/models").get_json()["models"]
    assert client.get(f"/v1/models/{MODEL}").get_json() == {"name": MODEL, "ready": True}
    response = client.get("/v1/models/resnet50")
    assert "SEEWHY_WEIGHTS_DIR" in refused(response, 503)
    assert int(response.headers["Retry-After"]) > 0


def test_predictions_are_those_of_predict(ask, text, post, cat):
    expected = post(cat, "/predict", top="3").get_json()["predictions"]
    predictions = ask("predict", {"instances": [text], "parameters": {"top": 3}}).get_json()["predictions"]
    assert [prediction["index"] for prediction in predictions[0]] == [prediction["index"] for prediction in expected]
    assert predictions[0][0]["probability"] == pytest.approx(expected[0]["probability"], abs=1e-5)
    numbers = ask("predict", {"instances": [text], "parameters": {"output": "probabilities"}}).get_json()
    assert numbers["predictions"][0][282] == pytest.approx(expected[0]["probability"], abs=1e-5)
    assert sum(numbers["predictions"][0]) == pytest.approx(1, abs=1e-5)


def test_explanations_are_those_of_explain(ask, text, post, cat):
    parameters = {"method": "gradcam", "target": ["tabby", "lynx"], "values": True, "view": "heatmap"}
    expected = post(cat, format="json", **parameters).get_json()
    body = ask("explain", {"instances": [text, {"b64": text}], "parameters": parameters}).get_json()
    assert set(body) == {"explanations"}
    for answer in body["explanations"]:
        schemas.ExplainAnswer.model_validate(answer)
        assert [explanation["target"]["label"] for explanation in answer["explanations"]] == ["tabby", "lynx"]
        for explanation, reference in zip(answer["explanations"], expected["explanations"], strict=True):
            np.testing.assert_allclose(explanation["heatmap"]["values"], reference["heatmap"]["values"], atol=1e-3)
        assert answer["explanations"][0]["overlay"].startswith("data:image/png")


def test_each_picture_has_its_own_best_classes(ask, text, coffee):
    second = base64.b64encode(coffee).decode()
    parameters = {"top": 2, "proof": True}
    explanations = ask("explain", {"instances": [text, second], "parameters": parameters}).get_json()["explanations"]
    proofs = [[explanation["proof"] for explanation in answer["explanations"]] for answer in explanations]
    labels = [[explanation["target"]["label"] for explanation in answer["explanations"]] for answer in explanations]
    assert labels == [["tiger cat", "Egyptian cat"], ["espresso", "cup"]]
    assert "'Egyptian cat'" in proofs[0][1]["sentence"]
    assert "'cup'" in proofs[1][1]["sentence"]


def test_an_instance_may_name_its_class(ask, text, coffee):
    """As KServe's examples of TorchServe do, which send the same to both verbs."""
    second = base64.b64encode(coffee).decode()
    body = {"instances": [{"data": text, "target": 281}, {"data": second, "target": ["cup"]}, {"data": text}]}
    explanations = ask("explain", body).get_json()["explanations"]
    assert [answer["explanations"][0]["target"]["label"] for answer in explanations] == ["tabby", "cup", "tiger cat"]
    explanations = ask("predict", body | {"parameters": {"top": 1}}).get_json()["predictions"]
    assert [explanation[0]["label"] for explanation in explanations] == ["tiger cat", "espresso", "tiger cat"]
    for parameters in ({"target": "lynx"}, {"top": 2}):
        assert "in one place" in refused(ask("explain", body | {"parameters": parameters}))
    for target, message in (("tabbi", "tabby"), ({}, "target"), (1000, "0 to 999")):
        assert message in refused(ask("explain", {"instances": [{"data": text, "target": target}]}))
    bad = {"data": base64.b64encode(b"no picture").decode(), "target": 1}
    assert refused(ask("explain", {"instances": [{"data": text}, bad]})).startswith("Picture 2 of 2")


def test_an_input_is_explained_in_its_own_coordinates(ask):
    pixels = np.linspace(-1, 1, 3 * 224 * 224).reshape(3, 224, 224).tolist()
    body = ask("explain", {"instances": [pixels], "parameters": {"values": True}}).get_json()
    assert body["explanations"][0]["explanations"][0]["heatmap"]["shape"] == [224, 224]


def test_null_parameters_are_none(ask, text):
    body = {"instances": [text], "parameters": None, "signature_name": None}
    assert ask("predict", body).get_json()["predictions"][0][0]["label"] == "tiger cat"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "instances"),
        ({"instances": []}, "There is no picture"),
        ({"instances": None}, "instances"),
        ({"instances": "text"}, "instances"),
        ({"instances": {"b64": "AA=="}}, "instances"),
        ({"instances": [None]}, "instances[0] must be base64"),
        ({"instances": ["?"]}, "instances[0] is not valid base64"),
        ({"instances": [""]}, "empty"),
        ({"instances": ["AAAA"]}, "not a readable picture"),
        ({"instances": [[[0, 1], [2]]]}, "instances[0] must contain only numbers"),
        ({"instances": [[[[0.5]]]]}, "instances[0] has the shape"),
        ({"instances": ["AAAA"], "parameters": []}, "parameters"),
        ({"instances": ["AAAA"], "parameters": {"model": "x"}}, "The path names the model"),
        ({"instances": ["AAAA"], "parameters": {"format": "png"}}, "format"),
        ({"instances": ["AAAA"], "parameters": {"range": "bytes"}}, "range"),
        ({"instances": ["AAAA"], "parameters": {"top": "many"}}, "top"),
        ({"instances": ["AAAA"], "paramters": {}}, "Near matches: parameters"),
        ([], "JSON object"),
        (7, "JSON object"),
        ("text", "JSON object"),
    ],
)
def test_a_mistake_is_told(ask, body, message):
    assert message in refused(ask(("predict", "explain")[len(message) % 2], body))  # which read requests alike


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b'{"instances": [[[[NaN, 0, 0]]]]}',
        b'{"instances": [[[[1' + b"0" * 5000 + b", 0, 0]]]]}",
        b'{"instances": ["\\ud800"]}',
        b'{"\\ud800": 1, "instances": []}',
    ],
)
@pytest.mark.parametrize(
    ("verb", "kind"),
    [("predict", "application/json"), ("explain", "application/x-www-form-urlencoded"), ("predict", None)],
)
def test_a_broken_body_is_told(client, verb, body, kind):
    refused(client.post(f"/v1/models/{MODEL}:{verb}", data=body, content_type=kind))


def test_unknown_models_paths_and_verbs(client, ask, text):
    assert "Near matches: efficientnet_lite0" in refused(
        ask("predict", {"instances": [text]}, "efficientnet_lite00"), 404
    )
    refused(client.get("/v1/models/nonesuch"), 404)
    refused(client.get("/v1/nonesuch"), 404)
    response = client.get(f"/v1/models/{MODEL}:predict")
    refused(response, 405)
    assert response.headers["Allow"] == "OPTIONS, POST"
    refused(ask("classify", {"examples": []}), 404)  # a verb that is not served
    response = client.delete("/v1/models")
    refused(response, 405)
    assert "GET" in response.headers["Allow"]


def test_bad_options_of_a_method_are_told(ask, text):
    for parameters, message in [
        ({"method": "grad-cam"}, "gradcam"),
        ({"target": "tabbi"}, "tabby"),
        ({"layer": "nonesuch"}, "layer"),
        ({"samples": 3}, "samples"),
        ({"top": 3, "target": 1}, "not both"),
        ({"steps": 1e9, "method": "integrated-gradients"}, "steps"),
    ]:
        assert message in refused(ask("explain", {"instances": [text], "parameters": parameters}))


def test_limits_are_told(text, app_of):
    client = app_of(max_instances=2, max_json_values=150_000).test_client()
    body = {"instances": [text] * 3}
    assert "3 pictures are more than the 2" in refused(client.post(f"/v1/models/{MODEL}:predict", json=body), 413)
    body = {"instances": [text] * 2, "parameters": {"values": True}}  # each alone is allowed
    assert "values" in refused(client.post(f"/v1/models/{MODEL}:explain", json=body), 413)


def test_our_own_routes_keep_their_errors(client):
    assert client.get("/models/nonesuch").mimetype == "application/problem+json"
    assert client.get("/v12/models").mimetype == "application/problem+json"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
        ("text/html", "text/html"),
        (None, "text/html"),
    ],
)
def test_the_live_probe_and_the_page_share_a_path(client, accept, kind):
    response = client.get("/", headers={"Accept": accept} if accept else {})
    assert (response.status_code, response.mimetype) == (200, kind)
    assert "Accept" in response.headers["Vary"]
    if kind == "application/json":
        assert response.get_json() == {"status": "alive"}
    response.close()
