"""Segmenters over HTTP and on the command line."""

import base64
import hashlib
import io
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

from seewhy import Client, explain, segment, wrap_model
from seewhy.app.answers import schemas
from seewhy.app.cli import main
from seewhy.app.errors import AnswerTooLargeError
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import MemoryBudget
from seewhy.app.pipeline.decode import Decoder
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.pipeline.parse import parse
from seewhy.explainers.errors import PictureTooLargeError
from seewhy.explainers.imaging.decode import Probe
from tests.app.conftest import EXAMPLES, encoded
from tests.app.serving import application, declaration, live
from tests.app.test_errors import refused
from tests.app.test_report import record_of
from tests.explainers.test_segmentation import CAT, LABELS, SIZE, Segmenter
from tests.grids import few

MASK = np.zeros((300, 451), dtype=bool)
MASK[60:220, 100:300] = True


def png(mask, mode="L"):
    return encoded(Image.fromarray(mask.astype(np.uint8)).convert(mode))


def classifier():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture(scope="module")
def model():
    return wrap_model(Segmenter(), LABELS, input_size=SIZE)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    torch.save(Segmenter().state_dict(), folder / "w.pth")
    torch.save(classifier().state_dict(), folder / "c.pth")
    scene = {"input_size": SIZE, "head": "segmentation", "labels": LABELS}
    (folder / "models.toml").write_text(
        declaration("scene", "tests.explainers.test_segmentation:Segmenter", **scene)
        + declaration("classifier", f"{__name__}:classifier", weights="c.pth", labels=LABELS)
    )
    with application(models=folder / "models.toml", default_model="scene") as app:
        yield app


@pytest.fixture
def ask(client):
    """Post the cat as a multipart form; options are keywords, bytes are files."""

    def send(path="/explain", headers=None, **fields):
        data = {"image": CAT.read_bytes(), **fields}
        files = {name: (io.BytesIO(value), name) if isinstance(value, bytes) else value for name, value in data.items()}
        return client.post(path, data=files, content_type="multipart/form-data", headers=headers)

    return send


@pytest.mark.parametrize("target", few(["pixel:200,150", None], ["pixel:200,150"]))
def test_the_service_answers_as_python_does(target, client, model):
    query = {"format": "json", "method": "hirescam"} | ({"target": target} if target else {})
    body = {"image": (io.BytesIO(CAT.read_bytes()), "cat.png"), **query}
    answer = client.post("/explain", data=body).json
    expected = explain(model, CAT, "hirescam", target=target)
    (explanation,) = answer["explanations"]
    assert explanation["target"] == {
        "index": expected.target.index,
        "label": expected.target.label,
        "area": pytest.approx(expected.target.area, abs=0.01),
        "logit": pytest.approx(expected.target.logit, rel=1e-2),
    }
    assert set(answer["predictions"][0]) == {"index", "label", "area"}
    assert explanation["heatmap"]["max"] == pytest.approx(float(expected.raw_heatmap.max()), rel=0.05)


def test_an_uploaded_mask_is_the_region(ask, client, model):
    answer = ask(format="json", mask=png(MASK), proof="true").json
    expected = explain(model, CAT, target=MASK, proof=True)
    (explanation,) = answer["explanations"]
    assert answer["method"]["name"] == expected.method == "hirescam"
    assert explanation["target"]["index"] == expected.target.index
    assert explanation["target"]["logit"] == pytest.approx(expected.target.logit, rel=1e-2)
    assert explanation["outside"] == pytest.approx(expected.outside, abs=0.01)
    assert explanation["heatmap"]["max"] == pytest.approx(float(expected.raw_heatmap.max()), rel=0.05)
    faithfulness = explanation["proof"]["faithfulness"]
    assert faithfulness["probability"] == pytest.approx(expected.proof.faithfulness.probability, abs=0.01)
    assert faithfulness["score"] == pytest.approx(expected.proof.faithfulness.score, abs=0.05)
    body = {"image": base64.b64encode(CAT.read_bytes()).decode(), "mask": base64.b64encode(png(MASK)).decode()}
    again = client.post("/explain?format=json", json=body).json["explanations"][0]
    assert again["target"] == explanation["target"]


def test_the_client_sends_a_mask(app, model):
    with live(app) as url:
        there = Client(url).explain(CAT, target=MASK)
    here = explain(model, CAT, target=MASK)
    assert there.caption == here.caption
    assert there.outside == pytest.approx(here.outside, abs=1e-3)
    np.testing.assert_allclose(there.heatmap, here.heatmap, atol=2e-2)


@pytest.mark.parametrize("region", few(["region", "border", "picture"], ["border"]))
@pytest.mark.parametrize("fields", [{}, {"target": "pixel:200,150"}, {"mask": png(MASK), "target": "cup"}])
def test_the_option_region_is_the_suffix_of_python(region, fields, ask, model):
    target = ask(format="json", region=region, **fields).json["explanations"][0]["target"]
    name = f"{fields.get('target', '')}:{region}"
    asked = model.task.target(name, MASK) if "mask" in fields else name
    expected = explain(model, CAT, target=asked).target
    assert (target["index"], target["label"]) == (expected.index, expected.label)
    assert target["area"] == pytest.approx(expected.area, abs=0.01)
    assert target["logit"] == pytest.approx(expected.logit, rel=1e-2)


def test_a_report_has_the_digest_of_its_mask(ask):
    page = ask(format="report", mask=png(MASK)).text
    record = record_of(page)["record"]
    assert record["mask"] == {"sha256": hashlib.sha256(png(MASK)).hexdigest(), "bytes": len(png(MASK))}
    assert record["mask"]["sha256"] != record["picture"]["sha256"]
    assert f"<code>{record['mask']['sha256']}</code>" in page
    assert "--mask MASK" in record["command"]
    without = ask(format="report").text
    assert "mask" not in record_of(without)["record"]
    assert "Mask, SHA-256" not in without


def coloured(mask):
    """Return masks of several kinds of files, all of the same region."""
    grey = Image.fromarray(mask.astype(np.uint8))
    indexed = grey.copy()
    indexed.putpalette([255, 255, 255, 0, 0, 0])  # the index counts, not the colour
    deep = Image.fromarray(mask.astype(np.uint16))  # of which the high byte is zero
    whole = Image.merge("LA", (Image.new("L", grey.size, 255), Image.fromarray(255 * mask.astype(np.uint8))))
    colour = Image.merge("RGB", (grey, grey.point(lambda _: 0), grey.point(lambda _: 0)))
    images = {"indexed.png": indexed, "deep.png": deep, "bits.png": grey.point(lambda v: 255 * v).convert("1")}
    images |= {"alpha.png": whole, "colour.png": colour, "rgba.png": whole.convert("RGBA")}
    files = {name: encoded(image) for name, image in images.items()}
    return files | {"int.tiff": encoded(Image.fromarray(mask.astype(np.int32)), "TIFF"), "b.bmp": encoded(grey, "BMP")}


MASKS = coloured(MASK)
LEFT = np.zeros_like(MASK)
LEFT[:, :10] = True  # which the crop cuts away


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_all_kinds_are_read_sample_by_sample(name):
    assert np.array_equal(Probe(MASKS[name]).decode_mask(), MASK)


@pytest.mark.parametrize(
    ("mask", "fault", "words"),
    [
        (png(np.zeros_like(MASK)), (422, "bad-target", ["mask"]), "is empty"),
        (png(LEFT), (422, "bad-target", ["mask"]), "sees nothing of the mask"),
        (png(MASK[:100]), (422, "bad-target", ["mask"]), "451x100 pixels, but the upright picture has 451x300"),
        (b"no picture", (415, "unreadable-picture", ["mask"]), "use a JPEG, PNG"),
        (b"", (415, "unreadable-picture", ["mask"]), "is empty"),
        (png(MASK)[:-40], (415, "unreadable-picture", ["mask"]), "use the complete file"),
        (encoded(Image.fromarray(255 * MASK.astype(np.uint8)), "JPEG"), (415, "unreadable-picture", ["mask"]), "a PNG"),
        (encoded(Image.new("1", (9000, 9000))), (413, "picture-too-large", ["mask"]), "81,000,000"),
    ],
)
def test_a_bad_mask_is_the_clients_mistake(mask, fault, words, ask):
    response = ask(mask=mask)
    assert refused(response) == fault
    assert words in response.json["detail"]


def test_the_memory_of_a_mask_is_counted(monkeypatch):
    budget = MemoryBudget(10**7)
    request = Account(budget)
    monkeypatch.setattr("seewhy.app.pipeline.decode.account", lambda: request)
    mask = Decoder(max_pixels=10**6, max_side=100).mask(png(MASK), Deadline.after(60))
    assert np.array_equal(mask, MASK)
    assert request.holdings == MASK.size  # a byte for each pixel
    with pytest.raises(PictureTooLargeError):
        Decoder(max_pixels=10**5, max_side=100).mask(png(MASK), Deadline.after(60))
    monkeypatch.setattr("seewhy.app.pipeline.decode.account", lambda: Account(MemoryBudget(10**6)))
    with pytest.raises(PictureTooLargeError, match="SEEWHY_MEMORY_BYTES"):  # it takes 16 times as much for a while
        Decoder(max_pixels=10**6, max_side=100).mask(png(MASK), Deadline.after(60))
    request.close()


def test_what_a_segmenter_returns_counts_until_it_is_read(app, monkeypatch):
    service, each = app.extensions["seewhy"], 4 * len(LABELS) * SIZE[0] * SIZE[1]
    request = Account(MemoryBudget(10**8))
    monkeypatch.setattr("seewhy.app.pipeline.ticket.account", lambda: request)
    options = parse(ExplainOptions, {"target": ["ground", "cat", "cup"], "method": "gradcam,saliency"})
    ticket = service.ask([CAT.read_bytes()], [options])
    outcomes = ticket.result()[0]
    assert {part.outputs.numel() * 4 for outcome in outcomes for part in outcome.result} == {each}
    assert each < request.holdings <= 2 * 3 * each
    (result,) = service.present(ticket)
    assert request.holdings == result.outputs.nbytes == each
    rows = service.classify([CAT.read_bytes()] * 2, "scene")
    assert [row.outputs.base.untyped_storage().nbytes() for row in rows] == [each] * 2  # and not those of their batch
    request = Account(MemoryBudget(each - 1))
    with pytest.raises(AnswerTooLargeError, match="The model's output would take"):
        service.classify([CAT.read_bytes()], "scene")
    assert request.holdings == 0


@pytest.mark.parametrize("blank", ["", (io.BytesIO(), "")], ids=["text", "file"])
def test_a_blank_field_is_no_mask(client, blank):
    fields = {"image": (io.BytesIO(CAT.read_bytes()), "cat.png"), "format": "json"}
    response = client.post("/explain", data={**fields, "mask": blank})
    assert response.status_code == 200, response.get_data(as_text=True)
    fields["image"] = (io.BytesIO(CAT.read_bytes()), "cat.png")
    response = client.post("/explain", data={**fields, "mask": "cat.png"})
    assert refused(response) == (422, "bad-option", ["mask"])


def test_a_mask_is_no_text_of_a_query(client):
    response = client.post("/explain?mask=cat.png", data=CAT.read_bytes(), content_type="image/png")
    assert refused(response) == (422, "bad-option", ["mask"])
    assert "a file of a form, or base64 in JSON" in response.json["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"target": "pixel:0,150"}, "target"),
        ({"target": "dog"}, "target"),
        ({"region": "edge"}, "region"),
        ({"region": "border", "top": 2}, "top"),
        ({"mask": png(MASK), "top": 2}, "top"),
        ({"mask": png(MASK), "target": "pixel:200,150"}, "target"),
        ({"mask": "text"}, "mask"),
        ({"target": "cat:border", "region": "border"}, "target"),
        ({"mask": png(MASK), "reference": png(MASK)}, "reference"),
    ],
)
def test_wrong_options_and_those_that_do_not_go_together_are_refused(fields, field, ask):
    status, _, fields_at_fault = refused(ask(**fields))
    assert (status, fields_at_fault) == (422, [field])


def test_classifiers_have_no_regions(ask):
    for fields in ({"region": "border"}, {"mask": png(MASK)}):
        response = ask(model="classifier", **fields)
        assert refused(response) == (422, "bad-option", [*fields])
        assert "name a segmenter" in response.json["detail"]


def test_the_etag_is_of_the_mask_and_the_region_too(ask):
    first = ask(mask=png(MASK))
    assert first.status_code == 200
    tag = first.headers["ETag"]
    assert ask(headers={"If-None-Match": tag}, mask=png(MASK)).status_code == 304
    others = [ask(), ask(mask=png(~MASK)), ask(mask=png(MASK), region="border"), ask(region="border")]
    tags = [other.headers["ETag"] for other in others]
    assert len({tag, *tags}) == 5


def test_a_stream_takes_a_mask(ask, model):
    response = ask(headers={"Accept": "text/event-stream"}, mask=png(MASK), target="cup")
    event = response.get_data(as_text=True).rpartition("event: answer\n")[2]
    answer = json.loads(event.split("data: ", 1)[1].split("\n")[0])
    expected = explain(model, CAT, target=model.task.target("cup", MASK))
    assert answer["explanations"][0]["target"]["logit"] == pytest.approx(expected.target.logit, rel=1e-2)


@pytest.fixture
def command(app, monkeypatch, tmp_path):
    """Run the command in this process, with the segmenter as its default model."""
    monkeypatch.setenv("SEEWHY_MODELS", str(app.extensions["seewhy"].settings.models))
    monkeypatch.setenv("SEEWHY_DEFAULT_MODEL", "scene")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_takes_a_mask_and_a_region(command, tmp_path, model):
    (tmp_path / "mask.png").write_bytes(png(MASK))
    result = command("explain", CAT, "--mask", "mask.png", "--target", "cup", "--region", "border", "-o", "cat.json")
    assert result.exit_code == 0, result.output
    expected = explain(model, CAT, target=model.task.target("cup:border", MASK))
    assert "cup on" in result.output
    assert "by hirescam" in result.output
    target = json.loads((tmp_path / "cat.json").read_text())["explanations"][0]["target"]
    assert target["logit"] == pytest.approx(expected.target.logit, rel=1e-2)


def test_the_command_names_a_bad_mask_and_goes_on(command, tmp_path):
    coffee = EXAMPLES / "coffee.png"
    with Image.open(coffee) as picture:
        size = picture.size
    (tmp_path / "mask.png").write_bytes(png(np.ones(size[::-1], dtype=bool)))
    result = command("explain", CAT, coffee, "--mask", "mask.png", "-o", "out/")
    assert result.exit_code == 1
    assert "cat.png: The mask has" in result.output
    assert "coffee.png: " in result.output
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["coffee.seewhy.png"]
    (tmp_path / "mask.png").write_bytes(b"nothing")
    result = command("explain", CAT, "--mask", "mask.png")
    assert result.exit_code == 1
    assert "cat.png: The mask: This is not a readable picture" in result.output


def test_segments_are_those_of_python(ask, model):
    answer = ask("/segment", format="json").json
    expected = segment(model, CAT)
    schemas.SegmentsAnswer.model_validate(answer)
    assert answer["classes"] == [
        {"index": row.index, "label": row.label, "area": pytest.approx(row.area, abs=0.01)} for row in expected.classes
    ]
    assert (answer["shape"], answer["void"]) == ([300, 451], 255)
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"].partition(",")[2]))))
    assert (mask == expected.mask).mean() > 0.98
    assert np.array_equal(mask == 255, expected.mask == 255)
    with np.load(io.BytesIO(ask("/segment", format="npz").data)) as arrays:
        assert np.array_equal(arrays["mask"], mask)
        assert arrays["indices"].tolist() == [row["index"] for row in answer["classes"]]
    grey = ask("/segment", view="mask")
    assert grey.mimetype == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(grey.data))), mask)


@pytest.mark.parametrize(
    "accept", few(["image/webp", "application/json", "image/png", "application/x-npz"], ["image/png"])
)
def test_the_format_of_segments_is_negotiated(accept, ask):
    response = ask("/segment", headers={"Accept": accept})
    assert (response.status_code, response.mimetype) == (200, accept)
    assert response.headers["Vary"] == "Accept"
    assert response.headers["X-SeeWhy-Model"] == "scene"
    labels = response.headers["X-SeeWhy-Label"].split(", ")
    assert set(labels) <= set(LABELS)
    if accept == "image/png":
        assert Image.open(io.BytesIO(response.data)).size == (451, 324)  # a line of a legend below


def test_segments_have_an_etag(ask):
    tag = ask("/segment").headers["ETag"]
    assert ask("/segment", headers={"If-None-Match": tag}).status_code == 304
    others = [ask("/segment", alpha=0.3), ask("/segment", view="mask"), ask("/segment", format="json")]
    assert len({tag, *(other.headers["ETag"] for other in others)}) == 4


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"model": "classifier"}, (422, "bad-option", ["model"])),
        ({"model": "nobody"}, (422, "unknown-model", ["model"])),
        ({"view": "heatmap"}, (422, "bad-option", ["view"])),
        ({"alpha": 2}, (422, "bad-option", ["alpha"])),
        ({"view": "mask", "format": "jpeg"}, (422, "bad-option", ["format"])),
        ({"target": "cat"}, (422, "bad-option", ["target"])),
        ({"image": b"nothing"}, (415, "unreadable-picture", ["image"])),
    ],
)
def test_what_cannot_be_segmented_is_the_clients_mistake(fields, fault, ask):
    assert refused(ask("/segment", **fields)) == fault


def test_the_command_segments(command, tmp_path, model):
    result = command("segment", CAT, "-o", "cat.json")
    assert result.exit_code == 0, result.output
    expected = segment(model, CAT)
    document = json.loads((tmp_path / "cat.json").read_text())
    assert [row["label"] for row in document["classes"]] == [row.label for row in expected.classes]
    assert f"cat.png: {expected.classes[0].label} on " in result.output
    result = command("segment", CAT, EXAMPLES / "coffee.png", "--view", "mask", "-o", "masks/")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "masks" / "cat.seewhy.png") as mask:
        assert (np.asarray(mask) == expected.mask).mean() > 0.98
    result = command("segment", CAT, "--view", "mask", "-o", "cat.jpg")
    assert (result.exit_code, "change the indices" in result.output) == (2, True)
    result = command("segment", CAT, "--model", "classifier")
    assert (result.exit_code, "use one, such as" in result.output) == (2, True)


def test_the_context_of_a_region_is_asked_of_segmenters_alone(ask):
    fields = {"method": "grid-saliency", "steps": 3, "format": "json"}
    answer = ask(mask=png(MASK), **fields)
    assert answer.json["method"]["options"]["cells"] == 8
    assert answer.headers["X-SeeWhy-Cost"] == "1"  # seven passes of a small input
    response = ask(model="classifier", **fields)
    assert refused(response) == (422, "unsuitable-model", ["method"])
    assert "needs a segmenter" in response.json["detail"]


def posted(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code < 500, response.get_data(as_text=True)
    return response


PICTURES = [base64.b64encode((EXAMPLES / name).read_bytes()).decode() for name in ("cat.png", "coffee.png")]


def test_kserves_first_protocol_gives_areas_and_explains(client, model):
    predictions = posted(client, "/v1/models/scene:predict", instances=PICTURES).json["predictions"]
    assert [row["label"] for row in predictions[0]] == [row.label for row in segment(model, CAT).classes]
    assert set(predictions[1][0]) == {"index", "label", "area"}
    for output in ("probabilities", "logits", "values"):
        parameters = {"output": output}
        response = posted(client, "/v1/models/scene:predict", instances=PICTURES, parameters=parameters)
        assert (response.status_code, "its head is 'segmentation'" in response.json["error"]) == (400, True)
    body = {"instances": [{"b64": PICTURES[0], "target": "pixel:200,150"}], "parameters": {"region": "border"}}
    (explanation,) = posted(client, "/v1/models/scene:explain", **body).json["explanations"][0]["explanations"]
    expected = explain(model, CAT, target="pixel:200,150:border")
    assert explanation["target"]["logit"] == pytest.approx(expected.target.logit, rel=1e-2)
    assert explanation["method"] == "hirescam"
    body["instances"] = [{"b64": PICTURES[0], "target": "pixel:0,0"}]
    assert posted(client, "/v1/models/scene:explain", **body).status_code == 400


def of_v2(client, verb, outputs=(), pictures=PICTURES, **parameters):
    """Return the outputs of the V2 protocol by name."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(pictures)], "data": pictures}
    body = {"inputs": [tensor], "parameters": parameters, "outputs": [{"name": name} for name in outputs]}
    response = posted(client, f"/v2/models/scene/{verb}", **body)
    assert response.status_code == 200, response.get_data(as_text=True)
    tensors = response.json["outputs"]
    return {tensor["name"]: np.array(tensor["data"]).reshape(tensor["shape"]) for tensor in tensors}, tensors


def test_the_second_protocol_gives_masks_and_areas(client, model):
    outputs, tensors = of_v2(client, "infer")
    metadata = client.get("/v2/models/scene").json["outputs"]
    assert [(row["name"], row["datatype"]) for row in tensors] == [("masks", "UINT8"), ("areas", "FP32")]
    assert [(row["name"], row["datatype"]) for row in metadata] == [("masks", "UINT8"), ("areas", "FP32")]
    assert outputs["masks"].shape == (2, *SIZE)
    assert (outputs["masks"][0] == segment(model, CAT).map).mean() > 0.98
    assert outputs["areas"].shape == (2, 4)
    assert outputs["areas"].sum(axis=1) == pytest.approx([1, 1])
    assert outputs["areas"][0, 1] == pytest.approx((outputs["masks"][0] == 1).mean())
    named = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": PICTURES[:1]}]}
    named["outputs"] = [{"name": "probabilities"}]
    response = posted(client, "/v2/models/scene/infer", **named)
    assert (response.status_code, "masks, areas" in response.json["error"]) == (400, True)


def test_the_second_protocol_explains_regions(client, model):
    outputs, _ = of_v2(client, "explain", pictures=PICTURES[:1], target=["label:cup:picture", "pixel:200,150"])
    assert set(outputs) == {"heatmaps", "maps", "targets", "labels", "methods"}
    assert outputs["heatmaps"].shape == (1, 2, 300, 451)
    assert set(outputs["methods"].flat) == {"hirescam"}
    assert outputs["labels"][0, 0] == "cup"
    several, _ = of_v2(client, "explain", ["maps", "labels"])
    assert several["maps"].shape[:2] == (2, 1)


def test_torchserves_routes_give_areas_and_explain(client, model):
    picture = CAT.read_bytes()
    areas = client.post("/predictions/scene", data=picture).json
    assert areas == {row.label: pytest.approx(row.area, abs=0.01) for row in segment(model, CAT).classes}
    maps = np.array(client.post("/explanations/scene", data=picture).json)
    assert maps.shape == (3, *SIZE)
    maps = np.array(client.post("/explanations/scene?method=hirescam&target=pixel:200,150", data=picture).json)
    assert maps.shape == (1, *SIZE)
    response = client.post("/explanations/scene?target=dog", data=picture)
    assert (response.status_code, "no class 'dog'" in response.json["message"]) == (400, True)
    drawn = client.post("/explanations/scene?region=border", data=picture, headers={"Accept": "image/png"})
    assert drawn.mimetype == "image/png"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("trace", {"target": "pixel:200,150"}),
        ("capture", {"layer": "encoder.2", "kind": ["output", "grad_output"], "format": "json"}),
        ("intervene", {"edits": '[{"op": "zero", "layer": "encoder.2"}]', "target": ":border"}),
        ("intervene", {"edits": '[{"op": "zero", "layer": "encoder.2"}]', "each_channel": "true"}),
    ],
)
def test_the_routes_about_hooks_see_segmenters(path, fields, ask):
    response = ask(f"/hooks/{path}", **fields)
    assert response.status_code == 200, response.get_data(as_text=True)
    assert set(response.json["target"]) == {"index", "label", "area", "logit"}
    response = ask(f"/hooks/{path}", **fields | {"target": "pixel:0,0"})
    assert refused(response) == (422, "bad-target", ["target"])


def test_a_client_segments_as_the_library_does(app, model, tmp_path):
    with live(app) as url:
        there, here = Client(url).segment(CAT, model="scene"), segment(model, CAT)
    assert repr(there) == repr(here)
    assert there.mask.dtype == here.mask.dtype
    assert (there.mask != here.mask).mean() < 0.001
    assert [row.index for row in there.classes] == [row.index for row in here.classes]
    assert there.overlay().size == here.overlay().size
    with np.load(there.save(tmp_path / "scene.npz")) as file:
        assert file.files == [*here.arrays()]
    assert there.document().keys() == here.document().keys()
