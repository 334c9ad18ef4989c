"""TorchServe's routes."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.grids import few

MODEL = "efficientnet_lite0"


def refused(response, status, kind):
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/json"
    body = response.get_json()
    assert set(body) == {"code", "type", "message"}
    assert (body["code"], body["type"]) == (status, kind)
    return body["message"]


CALLS = [(method, version) for method in ("post", "put") for version in ("", "/1.0", "/1")]


@pytest.mark.parametrize("call", few(CALLS, short=[("post", ""), ("put", "/1.0")]), ids="".join)
def test_predictions_in_each_way(client, cat, call):
    method, version = call
    send, text = getattr(client, method), base64.b64encode(cat).decode()
    url = f"/predictions/{MODEL}{version}"
    for response in (
        send(url, data=cat),
        send(url, data=cat, content_type="application/octet-stream"),
        send(url, data=cat, content_type="image/png"),
        send(url, data={"data": (io.BytesIO(cat), "cat.png")}),
        send(url, data={"body": (io.BytesIO(cat), "cat.png")}),
        send(url, data={"data": text}, content_type="multipart/form-data"),
        send(url, data={"data": text}),
        send(url, json={"data": text}),
        send(url, json={"body": {"b64": text}}),
        send(url, json=text),
    ):
        assert response.status_code == 200, response.get_data(as_text=True)
        document = response.get_json()
        assert list(document) == ["tiger cat", "Egyptian cat", "tabby", "lynx", "window screen"]
        assert document["tiger cat"] == pytest.approx(0.3928, abs=1e-3)


def test_options_stand_in_the_query_the_form_and_the_object(client, cat):
    url, text = f"/predictions/{MODEL}", base64.b64encode(cat).decode()
    for response in (
        client.post(f"{url}?top=2", data=cat),
        client.post(url, data={"data": (io.BytesIO(cat), "cat.png"), "top": "2"}),
        client.post(url, json={"data": text, "top": 2}),
    ):
        assert list(response.get_json()) == ["tiger cat", "Egyptian cat"]


def test_explanations_are_those_of_one_class_and_add_up(client, post, cat):
    body = {"data": base64.b64encode(cat).decode(), "target": 281}
    values = np.array(client.post(f"/explanations/{MODEL}", json=body).get_json())
    assert values.shape == (3, 224, 224)
    fields = {"method": "integrated-gradients", "steps": "15", "target": "281", "format": "npz"}
    with np.load(io.BytesIO(post(cat, **fields).data)) as expected:
        np.testing.assert_allclose(values.sum(axis=0), expected["maps"][0], atol=1e-3 * np.abs(expected["maps"]).max())


def test_explanations_of_another_method_have_one_channel(client, cat):
    values = np.array(client.post(f"/explanations/{MODEL}?method=gradcam", data=cat).get_json())
    assert values.shape == (1, 224, 224)
    assert values.min() >= 0
    positive = np.array(client.post(f"/explanations/{MODEL}?sign=positive&steps=2", data=cat).get_json())
    assert positive.shape == (1, 224, 224)
    assert positive.min() >= 0


def test_a_picture_where_accept_asks_for_one(client, cat, pixels, post):
    url = f"/explanations/{MODEL}?method=gradcam&target=tabby"
    for kind in ("png", "jpeg", "webp"):
        response = client.post(url, data=cat, headers={"Accept": f"image/{kind}"})
        assert response.mimetype == f"image/{kind}"
        assert Image.open(io.BytesIO(response.data)).size == (451, 300)
    expected = pixels(post(cat, method="gradcam", target="tabby"))
    result = pixels(client.post(url, data=cat, headers={"Accept": "image/png"}))
    assert np.abs(result - expected).max() <= 2
    assert client.post(url, data=cat, headers={"Accept": "*/*"}).mimetype == "application/json"
    refused(client.post(url, data=cat, headers={"Accept": "text/html"}), 400, "BadRequestException")


def test_unknown_models_versions_paths_and_methods(client, cat):
    for route in ("predictions", "explanations"):
        message = refused(client.post(f"/{route}/efficientnet_lite00", data=cat), 404, "ModelNotFoundException")
        assert "Near matches: efficientnet_lite0" in message
        refused(client.post(f"/{route}/nonesuch/1.0", data=cat), 404, "ModelNotFoundException")
        message = refused(client.post(f"/{route}/{MODEL}/2.0", data=cat), 404, "ModelVersionNotFoundException")
        assert "Model version: 2.0 does not exist for model: efficientnet_lite0" in message
        refused(client.post(f"/{route}/", data=cat), 404, "ResourceNotFoundException")
        refused(client.get(f"/{route}/{MODEL}"), 405, "MethodNotAllowedException")
        response = client.post(f"/{route}/timm/resnet50", data=cat)
        assert "timm/resnet50" in refused(response, 503, "ServiceUnavailableException")
        refused(client.post(f"/{route}/timm/resnet50/1.0", data=cat), 503, "ServiceUnavailableException")


HOSTILE = [
    ({"data": b""}, "empty"),
    ({"data": b"no picture"}, "not a readable picture"),
    ({"data": {}}, "empty"),
    ({"data": {"picture": "x"}}, "form field data"),
    ({"data": {"data": ["AAAA", "AAAA"]}}, "Send one picture"),
    ({"data": {"data": "AAAA", "body": "AAAA"}}, "Send one picture"),
    ({"data": {"data": "?"}}, "not valid base64"),
    ({"data": {"data": "AAAA", "format": "png"}}, "format"),
    ({"data": {"data": "AAAA", "model": "resnet18"}}, "The path names the model"),
    ({"data": {"data": "AAAA", "tob": "3"}}, "tob"),
    ({"json": {}}, "member data"),
    ({"json": {"data": "AAAA", "body": "AAAA"}}, "member data"),
    ({"json": {"data": None}}, "must be base64"),
    ({"json": {"data": [[1, 2], [3]]}}, "only numbers"),
    ({"json": {"data": [[[1.5]]]}}, "normalised input"),
    ({"json": 7}, "must be base64"),
    ({"json": True}, "must be base64"),
    ({"json": {"data": "AAAA", "top": {}}}, "top"),
    ({"data": b"{", "content_type": "application/json"}, "not JSON"),
    ({"data": b"\xff\xd8\xff\xe0", "content_type": "application/x-www-form-urlencoded"}, "curl --data-binary"),
    ({"data": b"--x\r\n", "content_type": "multipart/form-data; boundary=x"}, "Send one picture"),
    ({"data": b"x", "content_type": "multipart/form-data"}, "Send one picture"),
    ({"data": b"x", "query_string": {"top": "0"}}, "top"),
    ({"data": b"x", "query_string": {"range": "7"}}, "range"),
]


@pytest.mark.parametrize(("arguments", "message"), HOSTILE)
def test_a_mistake_is_told(client, arguments, message):
    route = ("predictions", "explanations")[len(message) % 2]  # which read requests alike
    assert message in refused(client.post(f"/{route}/{MODEL}", **arguments), 400, "BadRequestException")


def test_too_large_a_body(cat, app_of):
    response = app_of(max_upload_bytes=1000).test_client().post(f"/predictions/{MODEL}", data=cat)
    refused(response, 413, "BadRequestException")


def test_an_answer_has_one_map(client, cat):
    for query in ("top=2", "target=1&target=2", "method=gradcam,saliency"):
        message = refused(client.post(f"/explanations/{MODEL}?{query}", data=cat), 400, "BadRequestException")
        assert "a single map" in message
    response = client.post(f"/explanations/{MODEL}?method=gradcam&top=2", data=cat, headers={"Accept": "image/png"})
    assert response.mimetype == "image/png"


@pytest.mark.parametrize("accept", ["application/json", "image/png"])
def test_a_proof_is_refused_and_not_dropped(client, cat, accept):
    url = f"/explanations/{MODEL}?method=gradcam&proof=true"
    assert "no place for a proof" in refused(
        client.post(url, data=cat, headers={"Accept": accept}), 400, "BadRequestException"
    )


def test_a_large_picture_may_come_as_text(client, cat):
    large = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(large, "PNG")
    text = base64.b64encode(large.getvalue()).decode()
    assert len(text) > 1_000_000
    body = f'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n{text}\r\n--x--\r\n'
    response = client.post(f"/predictions/{MODEL}", data=body, content_type="multipart/form-data; boundary=x")
    assert response.status_code == 200


def test_a_file_of_a_form_is_not_copied(client, cat, monkeypatch):
    class File(io.BytesIO):
        def read(self, *_):
            pytest.fail("copied")

    monkeypatch.setattr("seewhy.app.http.uploads.InMemoryRequest._get_file_stream", lambda *_, **__: File())
    assert client.post(f"/predictions/{MODEL}", data={"data": (io.BytesIO(cat), "cat.png")}).status_code == 200
