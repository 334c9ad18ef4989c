"""No option reads files of the server, no weights run code, and no error reveals internals."""

import base64
import builtins
import io
import os
import pickle
import re
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image

from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions, ExplainOptions, PredictOptions, SimilarOptions, TraceOptions
from seewhy.app.pipeline.parse import parse
from seewhy.models import Registry
from tests.app.conftest import encoded
from tests.grids import few
from tools.hostile import pictures

PLACES = [
    "file:///etc/passwd",
    "/etc/passwd",
    "../../../../etc/passwd",
    "C:\\Windows\\win.ini",
    "http://169.254.169.254/latest/meta-data/",
    "https://example.org/cat.png",
    "data:text/plain;base64,cm9vdA==",
    "\\\\server\\share\\cat.png",
    "|id",
    "hf_hub:timm/resnet50",
    "local-dir:/etc",
    "/etc/passwd\0.png",
]

SHORT = ("file:///etc/passwd", "../../../../etc/passwd", "https://example.org/cat.png", "/etc/passwd\0.png")
"""The places of `make test`."""

ROUTES = {
    "/explain": ExplainOptions,
    "/predict": PredictOptions,
    "/similar": SimilarOptions,
    "/hooks/trace": TraceOptions,
    "/hooks/capture": CaptureOptions,
    "/hooks/intervene": InterveneOptions,
}

INSIDE = re.compile(
    r"Traceback|File \"|site-packages|\.py\b|0x[0-9a-f]{6}|/(home|root|tmp|usr|work|opt|var)/"
    r"|\b[a-z_]+\.[a-z_]+Error\b|object at|<class"
)
"""What would tell of the server: paths, tracebacks, addresses, names of classes."""


@pytest.fixture(scope="module")
def small():
    return encoded(Image.new("RGB", (20, 10), (200, 30, 30)))


@pytest.fixture
def shut(client, small, monkeypatch):
    """Once the model is loaded, let nothing be opened: neither a file nor a connection."""
    assert client.post("/explain", data=small, content_type="image/png").status_code == 200
    assert client.get("/openapi.json").status_code == 200
    opened = []

    def refuse(*args, **_):
        opened.append(args)
        raise AssertionError(f"opened {args}")

    for module, name in [(builtins, "open"), (io, "open"), (os, "open"), (socket, "socket"), (Path, "open")]:
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return opened


def string_options(client, path):
    described = client.get("/openapi.json").get_json()["paths"][path]["post"]["parameters"]
    return [parameter["name"] for parameter in described]


@pytest.mark.parametrize("places", few([SHORT, tuple(PLACES)], short=[SHORT]), ids=len)
@pytest.mark.parametrize("path", ROUTES)
def test_no_option_reads_a_path_or_an_address(client, small, shut, path, places):
    image = base64.b64encode(small).decode()
    needed = {"layer": "bn2"} if path == "/hooks/capture" else {}
    if path == "/similar":
        needed = {"reference": image}
    if path == "/hooks/intervene":
        needed = {"edits": [{"op": "zero", "layer": "bn2"}]}
    for name in string_options(client, path):
        for place in places:
            response = client.post(path, json={"image": image, **needed, name: place})
            assert 400 <= response.status_code < 500, (name, place, response.text)
            assert "root:" not in response.text
    assert shut == []


@pytest.mark.parametrize("place", few(PLACES, SHORT))
@pytest.mark.parametrize("member", ["image", "other"])
def test_no_picture_is_fetched(client, small, shut, place, member):
    image = base64.b64encode(small).decode()
    body = {"image": image, "edits": [{"op": "swap", "layer": "bn2"}], member: place}
    response = client.post("/hooks/intervene", json=body)
    assert response.status_code in (415, 422), response.text
    if member == "image":
        for path in ("/explain", "/predict"):
            assert client.post(path, json={"image": place}).status_code in (415, 422)
        assert client.post("/similar", json={"image": image, "reference": place}).status_code in (415, 422)
    assert shut == []


@pytest.mark.parametrize("place", few([place for place in PLACES if "\0" not in place], SHORT))
def test_no_edit_and_no_resource_reads_a_path(client, small, shut, place):
    image = base64.b64encode(small).decode()
    edit = {"op": "zero", "layer": "bn2"}
    for name in ("layer", "op", "at", "parameter", "channels"):
        response = client.post("/hooks/intervene", json={"image": image, "edits": [{**edit, name: place}]})
        assert response.status_code == 422
    for path in (f"/models/{place}", f"/models/{place}/layers", f"/models?source={place}", f"/static/{place}"):
        response = client.get(path)
        assert 300 <= response.status_code < 500, path
        assert "root:" not in response.text
    assert shut == []


def test_a_picture_that_names_files_opens_none(client, shut):
    for file in pictures.foreign_files():
        assert client.post("/predict", data=file.content, content_type="image/svg+xml").status_code != 500
    assert shut == []


class Payload:
    """What a malicious checkpoint is: a call, hidden in what looks like a tensor."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("kind", ["torch", "legacy", "pickle", "named safetensors"])
def test_weights_run_no_code(tmp_path, small, app_of, kind):
    mark = str(tmp_path / "code-ran")
    suffix = "safetensors" if kind == "named safetensors" else "pth"
    file = tmp_path / f"mine.{suffix}"
    content = {"conv.weight": torch.zeros(1), "payload": Payload(mark)}
    if kind == "torch" or kind == "named safetensors":
        torch.save(content, file)
    elif kind == "legacy":
        torch.save(content, file, _use_new_zipfile_serialization=False)
    else:
        file.write_bytes(pickle.dumps(content))
    declared = f'[models.mine]\narchitecture = "squeezenet1_1"\nweights = "{file.name}"\nlabels = ["a", "b"]\n'
    (tmp_path / "models.toml").write_text(declared)
    client = app_of(models=tmp_path / "models.toml", weights_dir=tmp_path).test_client()
    response = client.post("/predict?model=mine", data=small, content_type="image/png")
    assert response.status_code == 503
    assert "never run" in response.get_json()["detail"]
    assert str(tmp_path) not in response.text
    assert not Path(mark).exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert Path(mark).exists()  # the payload is one


def test_malicious_weights_in_the_folder_run_no_code(tmp_path, small, app_of):
    mark = str(tmp_path / "code-ran")
    spec = Registry(tmp_path).spec("squeezenet1_1")
    torch.save({"payload": Payload(mark)}, tmp_path / spec.weights.file_names[0])
    if not spec.weights.file_names[0].endswith((".pth", ".pt")):
        torch.save({"payload": Payload(mark)}, tmp_path / "squeezenet1_1.pth")
    response = (
        app_of(weights_dir=tmp_path)
        .test_client()
        .post("/predict?model=squeezenet1_1", data=small, content_type="image/png")
    )
    assert response.status_code == 503
    assert not Path(mark).exists()
    assert str(tmp_path) not in response.text


VALUES = ["/etc/passwd", "a" * 5000, "x", "", "-1", "1e999", "nan", "null", "[]", "{}", "%00", "é", "\ud7ff"]


def provoked(client, small, path):
    """Every error that requests of a route can provoke without harm, by what was sent."""
    image = base64.b64encode(small).decode()
    send = {"data": small, "content_type": "image/png"}
    for name in [*ROUTES[path].model_fields, "sign", "smooth", "samples", "baseline", "none"]:
        for value in VALUES:
            yield client.post(path, query_string={name: value}, **send)
        yield client.post(path, json={"image": image, name: {"a": VALUES[0]}})
        yield client.post(path, json={"image": image, name: [VALUES[0], 7, None]})
    for content in (b"", b"{", b"[]", small[:40], b"\xff" * 9):
        for kind in ("image/png", "application/json", "multipart/form-data; boundary=x", "text/plain", ""):
            yield client.post(path, data=content, content_type=kind)
    yield client.post(path, headers={"Accept": "text/turtle"}, **send)
    yield client.open(path, method="PATCH")


def provoked_elsewhere(client):
    """Errors of other routes, and of pictures that cannot be read."""
    for path in (
        "/nowhere",
        "/models/none",
        "/models/none/layers",
        "/models?source=x",
        "/static/../app.py",
        "/docs/assets/x",
    ):
        yield client.get(path)
    for picture in [*pictures.foreign_files(), *pictures.exif(), *pictures.directories()]:
        if picture.answers != {200}:
            yield client.post("/predict", data=picture.content, content_type="image/png")


@pytest.mark.parametrize("path", few(["elsewhere", *ROUTES], short=["/predict"]))
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_no_error_tells_of_the_inside(client, small, path):
    refusals = 0
    for response in provoked_elsewhere(client) if path == "elsewhere" else provoked(client, small, path):
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            refusals += 1
            assert response.mimetype == "application/problem+json"
            text = response.text.replace("/etc/passwd", "")
            assert not INSIDE.search(text), text
            assert "Werkzeug" not in response.headers.get("Server", "")
    assert refusals > (10 if path == "elsewhere" else 50)


def test_names_of_fields_never_reach_python(client, small):
    image = base64.b64encode(small).decode()
    for name in (
        "__class__",
        "__init__",
        "model_config",
        "model_fields",
        "self",
        "schema",
        "model_extra",
        "method_options",
    ):
        for path in ROUTES:
            pictures = {"image": image} | ({"reference": image} if path == "/similar" else {})
            response = client.post(path, json={**pictures, name: "x"})
            assert response.status_code == 422, (path, name)
        with pytest.raises(Exception, match=name):
            parse(PredictOptions, {name: "x"})
