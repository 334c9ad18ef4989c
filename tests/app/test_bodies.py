"""Bodies of requests on every route: compressed ones, and JSON that would take much memory."""

import base64
import gzip
import io
import json
import tracemalloc
import zlib

import pytest

from seewhy.app.errors import MalformedRequestError
from seewhy.app.http import bodies

MODEL = "efficientnet_lite0"


@pytest.fixture
def bodies_of(cat):
    text = base64.b64encode(cat).decode()
    return {
        "/predict": (json.dumps({"image": text}).encode(), "application/json"),
        "/predict?top=5": (cat, "image/png"),
        f"/v1/models/{MODEL}:predict": (json.dumps({"instances": [text]}).encode(), "application/json"),
        f"/v2/models/{MODEL}/infer": (
            json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}]}).encode(),
            "application/json",
        ),
        f"/predictions/{MODEL}": (cat, "application/octet-stream"),
    }


def test_bodies_may_be_compressed_on_every_route(client, bodies_of):
    for path, (body, kind) in bodies_of.items():
        for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("identity", body)):
            headers = {"Content-Encoding": encoding}
            response = client.post(path, data=packed, content_type=kind, headers=headers)
            assert response.status_code == 200, (path, encoding, response.get_data(as_text=True))
            assert "tiger cat" in response.get_data(as_text=True)


def test_what_is_not_whole_is_told(client, bodies_of):
    bomb = gzip.compress(bytes(33 * 2**20))
    for path, (body, kind) in bodies_of.items():
        packed = gzip.compress(body)
        for content, encoding, status, message in (
            (packed[:-20], "gzip", (400,), "is truncated"),
            (packed + packed, "gzip", (400,), "has data after its end"),
            (body, "gzip", (400,), "is not gzip"),
            (body, "br", (400, 415), "gzip or deflate"),
            (bomb, "gzip", (413,), "too large"),
        ):
            response = client.post(path, data=content, content_type=kind, headers={"Content-Encoding": encoding})
            assert response.status_code in status, path
            assert message in response.get_data(as_text=True), path


def test_a_bomb_is_blown_up_to_the_limit_alone(client):
    compressor = zlib.compressobj(9)
    bomb = b"".join(compressor.compress(bytes(2**20)) for _ in range(200)) + compressor.flush()
    tracemalloc.start()
    try:
        headers = {"Content-Encoding": "deflate"}
        assert client.post("/predict", data=bomb, content_type="image/png", headers=headers).status_code == 413
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_told_by_name(client, number):
    for path in ("/predict", f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer", f"/predictions/{MODEL}"):
        body = f'{{"image": "x", "instances": [{number}], "top": {number}}}'
        response = client.post(path, data=body, content_type="application/json")
        assert response.status_code == 400, path
        assert f"The body contains {number}, which is not JSON" in response.get_data(as_text=True), path


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"[[[]]],", b'"",'])
def test_tiny_parts_are_counted_before_they_cost_memory(client, piece, monkeypatch):
    monkeypatch.setattr(bodies, "loads", lambda *_, **__: pytest.fail("parsed"))
    many = b'{"instances": [' + piece * 1_000_000 + b"[]]}"
    for path in ("/explain", f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer", f"/predictions/{MODEL}"):
        response = client.post(path, data=io.BytesIO(many), content_type="application/json")
        assert response.status_code == 413, path
        assert "one request may have 1,000,000" in response.get_data(as_text=True)


@pytest.mark.parametrize("text", [b"9" * 5000, b"[" * 100_000], ids=["long", "deep"])
def test_what_python_cannot_read_is_told_in_plain_words(text):
    message = "The body has a number that is too long, or lists nested too deeply."
    with pytest.raises(MalformedRequestError, match=f"^{message}$"):
        bodies.parse_json(text)
