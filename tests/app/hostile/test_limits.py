"""Each limit at its edge and one beyond, and JSON that is valid but absurd."""

import base64
import importlib
import io
import json
import socket
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from werkzeug.test import EnvironBuilder, run_wsgi_app

from seewhy.app.pipeline.validation import MAX_FAULTS, MAX_VALUES
from seewhy.explainers.inspection.edits import MAX_EDITS
from tests.app.conftest import encoded
from tests.app.test_errors import faults, problem
from tests.grids import few
from tests.waiting import GUARD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small():
    return encoded(Image.new("RGB", (20, 10), (200, 30, 30)))


@pytest.fixture
def limited(app_of):
    """Make clients of services with other settings."""
    return lambda **settings: app_of(**settings).test_client()


def form(picture, fields=(), edge=b"edge"):
    """The body of a multipart form, as it goes over the wire."""
    parts = [b'Content-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + picture]
    parts += [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields]
    return b"".join(b"--" + edge + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + edge + b"--\r\n"


FORM = "multipart/form-data; boundary=edge"


BODIES = {
    "image/png": lambda picture: picture,
    FORM: form,
    "application/json": lambda picture: json.dumps({"image": base64.b64encode(picture).decode()}).encode(),
}


@pytest.mark.parametrize("kind", few(BODIES, short=[FORM]))
def test_bytes_of_a_body(limited, small, kind):
    content = BODIES[kind](small)
    assert limited(max_upload_bytes=len(content)).post("/predict", data=content, content_type=kind).status_code == 200
    over = limited(max_upload_bytes=len(content) - 1).post("/predict", data=content, content_type=kind)
    assert "SEEWHY_MAX_UPLOAD_BYTES" in problem(over, 413)["detail"]


def test_a_body_of_unstated_length(limited, small):
    app = limited(max_upload_bytes=len(small) + 1).application
    for more, status in [(b"", 200), (b"mo", 413)]:
        builder = EnvironBuilder(
            "/predict", method="POST", input_stream=io.BytesIO(small + more), content_type="image/png"
        )
        environ = {**builder.get_environ(), "wsgi.input_terminated": True}
        del environ["CONTENT_LENGTH"]
        _, answered, _ = run_wsgi_app(app, environ)
        assert int(answered.split()[0]) == status


def test_pixels_of_a_picture(limited, small):
    assert limited(max_pixels=200).post("/predict", data=small, content_type="image/png").status_code == 200
    over = limited(max_pixels=199).post("/predict", data=small, content_type="image/png")
    document = problem(over, 413)
    assert "20×10" in document["detail"]
    assert faults(document) == {"image"}


def test_parts_of_a_form(client, small):
    # werkzeug's, 1000: the picture is one of them.
    for count, status in [(999, 422), (1000, 413)]:
        body = form(small, [("top", "1")] * count)
        document = problem(client.post("/predict", data=body, content_type=FORM), status)
        assert (faults(document) == {"top"}) if status == 422 else ("too many fields" in document["detail"])


def test_bytes_of_the_texts_in_a_form(client, small):
    # werkzeug's, 500 kB.
    for count, status in [(500_000, 422), (500_001, 413)]:
        body = problem(client.post("/predict", data=form(small, [("model", "m" * count)]), content_type=FORM), status)
        assert len(body["detail"]) < 1000
        assert ("more than 500,000 bytes" in body["detail"]) is (status == 413)
    assert "Send the picture as a file" in body["detail"]
    assert "SEEWHY_MAX_UPLOAD_BYTES" not in body["detail"]  # which is none of its limits


def test_options_and_their_values(client, small):
    image = base64.b64encode(small).decode()
    for count, message in [(MAX_VALUES, "no such option"), (MAX_VALUES + 1, "options; ")]:
        options = {f"o{number}": 1 for number in range(count)}
        document = problem(client.post("/predict", json={"image": image, **options}), 422)
        assert message in document["detail"]
        assert len(document.get("errors", ())) <= MAX_FAULTS
    for count, message in [(MAX_VALUES, "classes"), (MAX_VALUES + 1, "values; ")]:
        document = problem(client.post("/explain", json={"image": image, "target": [1] * count}), 422)
        assert message in document["detail"]


def test_targets(limited, small):
    client = limited(max_targets=2)
    for count, status in [(2, 200), (3, 422)]:
        query = "&".join(f"target={index}" for index in range(count))
        response = client.post(f"/explain?format=npz&{query}", data=small, content_type="image/png")
        assert response.status_code == status
    assert faults(problem(client.post("/explain?top=3", data=small, content_type="image/png"), 422)) == {"top"}
    assert client.post("/explain?top=2&format=npz", data=small, content_type="image/png").status_code == 200


def test_layers(limited, small):
    client = limited(max_layers=2)
    for path in ("/explain", "/hooks/trace", "/hooks/capture"):
        two = client.post(f"{path}?layer=bn2&layer=blocks.6", data=small, content_type="image/png")
        assert two.status_code == 200
        three = client.post(f"{path}?layer=bn2&layer=bn2&layer=blocks.6", data=small, content_type="image/png")
        assert faults(problem(three, 422)) == {"layer"}


@pytest.mark.parametrize(
    ("path", "option", "most"), [("/explain", "top", 16), ("/predict", "top", 1000), ("/hooks/capture", "top", 100)]
)
def test_numbers_at_their_bounds(client, small, path, option, most):
    send = {"data": small, "content_type": "image/png"}
    extra = "&layer=bn2&format=png" if path == "/hooks/capture" else "&format=npz" if path == "/explain" else ""
    assert client.post(f"{path}?{option}={most}{extra}", **send).status_code == 200
    for value in (most + 1, 0, -1, 10**400):
        assert faults(problem(client.post(f"{path}?{option}={value}{extra}", **send), 422)) == {option}


def test_samples_at_their_bounds(client, small):
    methods = client.get("/methods").get_json()["methods"]
    tried = 0
    for method in methods:
        for name, schema in method["options"].items():
            if schema.get("type") in ("integer", "number"):
                assert {"maximum", "exclusiveMaximum"} & set(schema), (method["name"], name)
            for bound, beyond in (("maximum", 1), ("minimum", -1)):
                if bound in schema:
                    value = schema[bound] + beyond
                    query = {"method": method["name"], name: value}
                    response = client.post("/explain", query_string=query, data=small, content_type="image/png")
                    assert faults(problem(response, 422)) == {name}, query
                    tried += 1
    assert tried > 40


def test_edits(client, small):
    edit = {"op": "zero", "layer": "bn2", "channels": [0]}
    image = base64.b64encode(small).decode()
    for count, status in [(MAX_EDITS, 200), (MAX_EDITS + 1, 422)]:
        response = client.post("/hooks/intervene", json={"image": image, "edits": [edit] * count})
        assert response.status_code == status, response.text


def json_with(image, value, name="top"):
    return f'{{"image": "{image}", "{name}": {value}}}'.encode()


ABSURD = {
    "a million brackets": "[" * 10**6 + "]" * 10**6,
    "a million objects": '{"a":' * 10**6 + "1" + "}" * 10**6,
    "900 brackets": "[" * 900 + "]" * 900,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "minus Infinity": "-Infinity",
    "1e400": "1e400",
    "10 to the 400": "1" + "0" * 400,
    "10 to the 5000": "1" + "0" * 5000,
    "minus 10 to the 5000": "-1" + "0" * 5000,
    "two to the 63": str(2**63),
    "a lone surrogate": '"\\ud800"',
    "a NUL": '"\\u0000"',
    "true": "true",
    "an object": "{}",
    "a list of all": '[null, true, {}, [], 1.5, "x", NaN]',
    "a million numbers": "[" + "1," * 10**6 + "1]",
}


@pytest.mark.parametrize(
    "name",
    few(
        ["top", "target", "alpha", "model", "method", "layer", "scale", "samples", "against"],
        short=["top", "target", "alpha"],
    ),
)
@pytest.mark.parametrize("case", ABSURD)
def test_absurd_json_is_refused(client, small, case, name):
    image = base64.b64encode(small).decode()
    response = client.post("/explain", data=json_with(image, ABSURD[case], name), content_type="application/json")
    if (case, name) in (("true", "top"), ("true", "alpha")):
        assert response.status_code == 200  # which is 1, as a form has it
        return
    if response.status_code in (400, 413):  # what is no JSON, or too much of it
        assert case.startswith("a million") or any(part in ABSURD[case] for part in ("0" * 5000, "NaN", "Infinity"))
        return
    assert any(field.startswith(name) for field in faults(problem(response, 422)))
    assert len(response.data) < 20_000


@pytest.mark.parametrize("case", ABSURD)
@pytest.mark.parametrize("place", few(["edits", "an edit", "channels", "value", "layer"], short=["edits", "channels"]))
def test_absurd_edits_are_refused(client, small, case, place):
    image, value = base64.b64encode(small).decode(), ABSURD[case]
    edits = {
        "edits": value,
        "an edit": f"[{value}]",
        "channels": f'[{{"op": "zero", "layer": "bn2", "channels": {value}}}]',
        "value": f'[{{"op": "add", "layer": "bn2", "value": {value}}}]',
        "layer": f'[{{"op": "zero", "layer": {value}}}]',
    }[place]
    send = {"data": json_with(image, edits, "edits"), "content_type": "application/json"}
    response = client.post("/hooks/intervene", **send)
    if (place, case) in (("value", "two to the 63"),):
        assert response.status_code in (200, 422), response.text
        return
    assert response.status_code in (400, 413, 422), response.text
    text = client.post("/hooks/intervene", data=form(small, [("edits", edits)]), content_type=FORM)
    assert text.status_code in (413, 422), text.text
    for answer in (response, text):
        assert len(answer.data) < 20_000


def test_a_key_twice_is_refused(client, small):
    image = base64.b64encode(small).decode()
    body = f'{{"image": "{image}", "top": 1, "top": 2}}'
    assert faults(problem(client.post("/predict", data=body, content_type="application/json"), 422)) == {"top"}
    edits = '[{"op": "zero", "layer": "bn2", "layer": "bn1"}]'
    for send in (
        {"data": json_with(image, edits, "edits"), "content_type": "application/json"},
        {"data": form(small, [("edits", edits)]), "content_type": FORM},
    ):
        document = problem(client.post("/hooks/intervene", **send), 422)
        assert faults(document) & {"edits", "layer"}
        assert "repeated" in document["detail"]


@pytest.mark.parametrize("body", [b"", b"null", b"1", b'"x"', b"[]", b"\xff\xfe", b"\xef\xbb\xbf{}", b"{", b"{}{}"])
def test_json_that_is_no_object(client, body):
    problem(client.post("/explain", data=body, content_type="application/json"), 400)


def test_frames_beyond_the_first_are_not_read(client):
    many = [Image.new("RGB", (9, 9), (level, 0, 0)) for level in (250, 0, 0)]
    results = {}
    for count in (1, 3):
        content = encoded(many[0], "GIF", save_all=True, append_images=many[1:count])
        response = client.post("/explain?format=npz", data=content, content_type="image/gif")
        with np.load(io.BytesIO(response.data)) as arrays:
            results[count] = arrays["logits"]
    assert np.array_equal(results[1], results[3])


PLUGINS = {"GIF": "Gif", "WEBP": "WebP", "PNG": "Png", "TIFF": "Tiff", "MPO": "Mpo"}


@pytest.mark.parametrize("kind", PLUGINS)
def test_of_many_frames_one_is_decoded(client, kind, monkeypatch):
    looked = []
    plugin = importlib.import_module(f"PIL.{PLUGINS[kind]}ImagePlugin")
    opened = getattr(plugin, f"{PLUGINS[kind]}ImageFile")
    seek = opened.seek
    monkeypatch.setattr(opened, "seek", lambda image, frame: (looked.append(frame), seek(image, frame)))
    many = [Image.new("RGB", (9, 9), (level, 0, 0)) for level in (250, 0, 0)]
    content = encoded(many[0], kind, save_all=True, append_images=many[1:])
    assert client.post("/predict", data=content, content_type="image/x").status_code == 200
    assert not any(looked)


def raw(url, request):
    """What gunicorn answers to these very bytes, its first line."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=GUARD) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz?" + b"x" * (4094 - 22) + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"200"),
        (b"GET /healthz?" + b"x" * 4094 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"414"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X-A: 1\r\n" * 99 + b"\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X-A: 1\r\n" * 100 + b"\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: " + b"x" * 8000 + b"\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: " + b"x" * 8200 + b"\r\n\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nA\0B: 1\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
    ],
    ids=lambda value: value[-40:].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_lines_and_headers_at_gunicorns_limits(url, request_, status):
    assert raw(url, request_).split()[1] == status
