"""The similarity of two pictures, over HTTP and on the command line."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from seewhy.app.answers import schemas
from seewhy.app.pipeline.options import MEDIA_TYPES
from seewhy.explainers import similar
from tests import nets
from tests.app.conftest import EXAMPLES, encoded
from tests.app.serving import declare
from tests.app.test_errors import refused

CAT, COFFEE = EXAMPLES / "cat.png", EXAMPLES / "coffee.png"


@pytest.fixture(scope="session")
def coffee():
    """The coffee, so small that the client keeps a form with it in memory."""
    with Image.open(COFFEE) as picture:
        return encoded(picture.convert("RGB").resize((300, 200)), "JPEG")


@pytest.fixture
def ask(post, cat, coffee):
    """Post a picture, and another as its reference."""

    def send(picture=cat, reference=coffee, headers=None, **fields):
        return post(picture, "/similar", headers, reference=(io.BytesIO(reference), "reference"), **fields)

    return send


@pytest.fixture(scope="module")
def expected(lite0, cat, coffee):
    return similar(lite0, cat, coffee, top=3)


def answered(response):
    assert response.status_code == 200, response.get_data(as_text=True)
    return response


def test_the_document_is_what_python_finds(ask, expected):
    answer = answered(ask(format="json", top=3)).get_json()
    schemas.SimilarAnswer.model_validate(answer)
    assert answer["score"] == pytest.approx(expected.score, abs=1e-4)
    assert (answer["embedding"], answer["layer"], answer["exact"]) == ("classifier", "bn2", True)
    for side, values in zip(("image", "reference"), expected.maps, strict=True):
        np.testing.assert_allclose(answer[side]["map"], values, atol=1e-5)
        assert np.sum(answer[side]["map"]) == pytest.approx(answer["score"], abs=1e-6)
    assert [pair["image"] for pair in answer["pairs"]] == [list(pair.image) for pair in expected.pairs]
    assert [pair["reference"] for pair in answer["pairs"]] == [list(pair.reference) for pair in expected.pairs]
    assert [pair["contribution"] for pair in answer["pairs"]] == pytest.approx(
        [pair.contribution for pair in expected.pairs], abs=1e-6
    )
    assert answer["image"]["shape"] == [300, 451]
    assert answer["model"]["name"] == "efficientnet_lite0"
    assert answer["diagnostics"] == []
    drawing = base64.b64decode(answer["drawing"].removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(drawing)).size == expected.overlay(max_side=2048).size


def test_arrays_are_those_of_python(ask, expected):
    response = answered(ask(format="npz", top=3))
    assert response.mimetype == MEDIA_TYPES["npz"]
    arrays = expected.arrays()
    with np.load(io.BytesIO(response.data)) as file:
        assert set(file) == set(arrays)
        for name, values in arrays.items():
            np.testing.assert_allclose(file[name], values, atol=1e-4)


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_a_drawing_is_that_of_python(ask, expected, pixels, form):
    response = ask(format=form, top=3, colormap="viridis", alpha=0.3, scale="robust")
    assert response.mimetype == MEDIA_TYPES[form]
    drawing = expected.overlay(max_side=2048, colormap="viridis", alpha=0.3, scale="robust")
    assert np.abs(pixels(response) - np.asarray(drawing)).mean() < (1 if form == "png" else 4)


def test_headers_tell_score_model_and_layer(ask, expected):
    response = answered(ask())
    assert response.mimetype == "image/png"
    facts = {name: response.headers[f"X-SeeWhy-{name}"] for name in ("Model", "Layers", "Cost")}
    assert facts == {"Model": "efficientnet_lite0", "Layers": "bn2", "Cost": "2"}
    assert float(response.headers["X-SeeWhy-Score"]) == pytest.approx(expected.score, abs=1e-4)
    assert "X-SeeWhy-Target" not in response.headers
    assert response.headers["Vary"] == "Accept"
    stages = [part.partition(";")[0] for part in response.headers["Server-Timing"].split(", ")]
    assert stages == ["decode", "queue", "compare", "render", "encode"]


def test_an_etag_is_of_both_pictures_and_saves_the_work(ask, cat, coffee):
    tag = answered(ask()).headers["ETag"]
    again = ask(headers={"If-None-Match": tag})
    assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag)
    variants = [ask(coffee, coffee), ask(coffee, cat), ask(top=2), ask(format="webp")]
    assert tag not in [answered(variant).headers["ETag"] for variant in variants]


def test_json_carries_both_pictures(client, cat, coffee, ask):
    body = {"image": base64.b64encode(cat).decode(), "reference": base64.b64encode(coffee).decode(), "top": 2}
    answer = answered(client.post("/similar?format=json", json=body)).get_json()
    form = ask(top=2, format="json").get_json()
    assert answer["pairs"] == form["pairs"]
    assert answer["score"] == form["score"]


def test_a_turned_picture_and_a_small_one_are_compared_in_their_own_coordinates(ask, cat):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    with Image.open(io.BytesIO(cat)) as picture:
        turned = encoded(picture.convert("RGB"), "JPEG", exif=exif)
        small = encoded(picture.convert("RGB").resize((45, 30)))
    answer = answered(ask(turned, small, format="json")).get_json()
    assert (answer["image"]["shape"], answer["reference"]["shape"]) == ([451, 300], [30, 45])
    for pair in answer["pairs"]:
        assert pair["image"][2] <= 300
        assert pair["reference"][2] <= 45


def test_what_is_missing_is_named(post, client, cat, coffee):
    assert refused(post(cat, "/similar")) == (400, "malformed-request", ["reference"])
    raw = client.post("/similar", data=cat, content_type="image/png")
    assert refused(raw) == (400, "malformed-request", ["reference"])
    alone = client.post("/similar", json={"image": base64.b64encode(cat).decode()})
    assert refused(alone) == (400, "malformed-request", ["reference"])
    data = {"reference": (io.BytesIO(coffee), "reference")}
    assert client.post("/similar", data=data, content_type="multipart/form-data").status_code == 400
    assert refused(post(cat, "/similar", reference="text")) == (422, "bad-option", ["reference"])
    assert refused(post(cat, "/similar", other=(io.BytesIO(coffee), "x"))) == (422, "bad-option", ["other"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reference": b"no picture"}, (415, "unreadable-picture", ["reference"])),
        ({"reference": b""}, (415, "unreadable-picture", ["reference"])),
        ({"picture": b"no picture"}, (415, "unreadable-picture", ["image"])),
        ({"model": "efficientnet_lite9"}, (422, "unknown-model", ["model"])),
        ({"top": 0}, (422, "bad-option", ["top"])),
        ({"top": 101}, (422, "bad-option", ["top"])),
        ({"format": "svg"}, (422, "bad-option", ["format"])),
        ({"colormap": "nope"}, (422, "bad-option", ["colormap"])),
        ({"target": "tabby"}, (422, "bad-option", ["target"])),
    ],
)
def test_what_is_wrong_is_named(ask, fields, expected):
    assert refused(ask(**fields)) == expected


def test_pictures_over_the_limits_are_refused_by_name(app_of, cat, coffee):
    for settings, reference, form, fault in (
        ({"max_pixels": 100_000}, cat, "png", (413, "picture-too-large", ["reference"])),
        ({"max_values": 1000}, coffee, "npz", (413, "answer-too-large", [])),
        ({"max_json_values": 90}, coffee, "json", (413, "answer-too-large", [])),
    ):
        data = {"image": (io.BytesIO(coffee), "x"), "reference": (io.BytesIO(reference), "x"), "format": form}
        assert refused(app_of(**settings).test_client().post("/similar", data=data)) == fault


class Flat(nn.Sequential):
    """Reads the pixels, and no layer of cells."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))


class Headless(nn.Sequential):
    """Its outputs are averages of a convolution, without a linear head."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 3, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("kind", [Flat, Headless])
def test_networks_without_cells_are_refused_and_those_without_a_head_compared(kind, app_of, tmp_path, cat, coffee):
    torch.save(nets.seeded(kind).state_dict(), tmp_path / "w.pth")
    app = app_of(models=declare(tmp_path, f"{__name__}:{kind.__name__}"), default_model="mine")
    data = {"image": (io.BytesIO(cat), "cat"), "reference": (io.BytesIO(coffee), "coffee"), "format": "json"}
    response = app.test_client().post("/similar", data=data)
    if kind is Flat:
        assert refused(response) == (422, "unsuitable-model", ["model"])
        assert "No layer has cells of the picture" in response.get_json()["detail"]
    else:
        answer = answered(response).get_json()
        assert (answer["embedding"], answer["layer"], answer["exact"]) == (None, "0", True)


def test_openapi_requires_both_pictures(client):
    route = client.get("/openapi.json").get_json()["paths"]["/similar"]["post"]
    content = route["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    for body in content.values():
        assert body["schema"]["required"] == ["image", "reference"]
    assert set(content["application/json"]["example"]) == {"image", "reference"}
    names = {parameter["name"] for parameter in route["parameters"]}
    proof = {"proof", "proof_area", "proof_fill"}
    assert names == {"model", "view", "colormap", "alpha", "scale", "top", "format"} | proof
    assert "304" in route["responses"]


@pytest.mark.slow
def test_each_map_has_its_proof_beside_those_of_earlier_pictures(ask, lite0, cat, coffee):
    response = answered(ask(format="json", proof="true"))
    answer = response.get_json()
    for side, proof in zip(("image", "reference"), similar(lite0, cat, coffee, proof=True).proof, strict=True):
        assert answer[side]["proof"]["faithfulness"]["score"] == pytest.approx(proof.faithfulness.score, abs=0.02)
        tried = answer[side]["proof"]["cost"]["forwards"] - proof.cost.forwards
        assert tried in (0, 2)  # the map of another picture, if this one has had none
    assert response.headers["X-SeeWhy-Proof"].count("score=") == 2
    assert "ETag" not in response.headers  # grades depend on earlier requests
    half = answered(ask(format="json", proof="true", proof_area="0.5"))
    assert half.get_json()["image"]["proof"]["cost"]["forwards"] == 3
    assert "ETag" in half.headers


def test_the_command_writes_every_format(run, tmp_path, lite0):
    expected = similar(lite0, CAT, COFFEE, top=3)
    out = tmp_path / "out.json"
    result = run("similar", CAT, COFFEE, "-o", out, "--top", 3)
    assert result.exit_code == 0, result.output
    assert result.output == f"{CAT}: cosine similarity 0.088 with {COFFEE} -> {out}\n"
    answer = json.loads(out.read_text())
    assert [pair["image"] for pair in answer["pairs"]] == [list(pair.image) for pair in expected.pairs]
    result = run("similar", CAT, COFFEE, "-o", tmp_path / "out.npz", "--proof")
    lines = [line.partition(": With the marked quarter blurred")[0] for line in result.output.splitlines()]
    assert lines[1:3] == [f"  {CAT}, not graded", f"  {COFFEE}, not graded"]
    assert lines[3:] == ["  Only the service grades such proofs, with scores from earlier pictures."]
    assert "so far" not in result.output  # no further picture comes
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["contributions"].shape == (5,)
    assert run("similar", CAT, COFFEE, "-o", tmp_path / "out.webp", "--view", "side-by-side").exit_code == 0
    with Image.open(tmp_path / "out.webp") as drawing:
        assert drawing.format == "WEBP"
    folder = f"{tmp_path}/folder/"
    assert run("similar", CAT, COFFEE, "-o", folder).exit_code == 0
    assert (tmp_path / "folder" / "cat.seewhy.png").is_file()


def test_one_of_the_two_may_be_the_standard_input(run):
    result = run("similar", CAT, "-", "-o", "-", "--format", "json", input=COFFEE.read_bytes())
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["score"] == pytest.approx(0.088, abs=1e-3)
    assert run("similar", "-", "-").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([CAT], 2, "Missing argument 'REFERENCE'"),
        ([CAT, EXAMPLES / "nothing.png"], 2, "does not exist"),
        ([EXAMPLES / "nothing.png", CAT], 2, "does not exist"),
        ([CAT, EXAMPLES], 2, "is a directory"),
        ([CAT, COFFEE, "--top", "0"], 2, "top"),
        ([CAT, COFFEE, "--model", "efficientnet_lite9"], 2, "efficientnet_lite0"),
        ([CAT, COFFEE, "--model", "resnet50"], 1, "SEEWHY_WEIGHTS_DIR"),
        ([CAT, COFFEE, "--colormap", "viridjs"], 2, "viridis"),
        ([CAT, EXAMPLES / "notebook.ipynb"], 1, "notebook.ipynb: This is not a readable picture"),
    ],
)
def test_mistakes_are_one_line_not_a_traceback(run, tmp_path, arguments, status, message):
    result = run("similar", *arguments, "-o", tmp_path / "o.png")
    assert result.exit_code == status, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "o.png").exists()
