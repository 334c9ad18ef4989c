"""Object detection over HTTP and on the command line: boxes, and why there is or is not one."""

import base64
import io
import json
from functools import partial

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from seewhy import Client, ModelError, detect, explain, wrap_model
from seewhy.app import create_app
from seewhy.app.cli import main
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import MemoryBudget
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.pipeline.parse import parse
from seewhy.app.settings import Settings
from seewhy.models import Registry
from seewhy.models.errors import ModelsFileError
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, declaration, declare, live
from tests.explainers.detectors import LABELS, SIDE, WINDOWS, Windows, detector
from tests.nets import Net, seeded

CAT, OWN = EXAMPLES / "cat.png", ["dog", "cup", "tree"]


def ssd():
    """An architecture that the models file names."""
    return detector("SSD")


KeypointRCNN = partial(detector, "Keypoint R-CNN")


def windows():
    """Another one, with a function that reads its boxes."""
    module = Windows()
    module.box_head = WINDOWS
    return module


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detectors")
    torch.save(ssd().state_dict(), folder / "w.pth")
    torch.save(windows().state_dict(), folder / "own.pth")
    torch.save(seeded(Net).state_dict(), folder / "tiny.pth")
    tables = [
        declaration("street", f"{__name__}:ssd", labels=LABELS, input_size=None, head="detection"),
        declaration("tiny", weights="tiny.pth", input_size=24),
        declaration("own", f"{__name__}:windows", weights="own.pth", labels=OWN, input_size=SIDE, head="detection"),
        declaration("headless", weights="tiny.pth", input_size=24, head="detection"),
        declaration("undeclared", f"{__name__}:ssd", labels=LABELS),
    ]
    (folder / "models.toml").write_text("".join(tables))
    return folder / "models.toml"


@pytest.fixture(scope="module")
def client(models):
    with application(models=models, default_model="street") as app:
        yield app.test_client()


@pytest.fixture(scope="module")
def model(models):
    return Registry(models_file=models).load("street")


def post(client, route, **fields):
    return client.post(route, data={"image": (io.BytesIO(CAT.read_bytes()), "cat.png"), **fields})


def test_boxes_are_those_of_python(client, model):
    answer = post(client, "/detect")
    assert answer.status_code == 200
    document = answer.json
    assert document["model"]["head"] == "detection"
    boxes = detect(model, CAT)
    assert [box["index"] for box in document["boxes"]] == list(range(len(boxes)))
    for box, expected in zip(document["boxes"], boxes, strict=True):
        assert set(box) == {"index", "box", "label", "score"}
        assert box["label"] == expected.label
        assert box["score"] == pytest.approx(expected.score, abs=1e-2)
        assert box["box"] == pytest.approx(expected.box, abs=3)
    ranked = post(client, "/predict", top="3").json["predictions"]
    assert [row["number"] for row in ranked] == [0, 1, 2]
    assert ranked[0]["box"] == pytest.approx(document["boxes"][0]["box"])


def test_a_box_is_explained_as_in_python(client, model):
    answer = post(client, "/explain", target="box:2", attribute="x1", method="odam", format="json", proof="true")
    assert answer.status_code == 200, answer.json
    (explanation,) = answer.json["explanations"]
    expected = explain(model, CAT, "odam", target="box:2", attribute="x1", proof=True)
    target = explanation["target"]
    assert (target["number"], target["attribute"], target["label"]) == (2, "x1", expected.target.label)
    assert target["value"] == pytest.approx(expected.target.value, abs=1)
    assert target["box"] == pytest.approx(expected.target.box, abs=1)
    assert explanation["heatmap"]["max"] == pytest.approx(float(expected.raw_heatmap.max()), rel=0.05)
    faithfulness = explanation["proof"]["faithfulness"]
    assert faithfulness["value"] == pytest.approx(expected.proof.faithfulness.value, abs=1)
    assert faithfulness["score"] == pytest.approx(expected.proof.faithfulness.score, abs=0.05)
    score = post(client, "/explain", target="box:2", proof="true", format="json").json["explanations"][0]
    assert score["proof"]["faithfulness"]["probability"] == pytest.approx(score["target"]["probability"], abs=1e-3)
    picture = post(client, "/explain", target="box:2", attribute="x1")
    assert picture.headers["X-SeeWhy-Target"] == "box:2:x1"
    assert picture.mimetype == "image/png"


def test_a_class_is_a_panel_of_its_boxes(client):
    boxes = post(client, "/detect").json["boxes"]
    label = boxes[1]["label"]
    expected = [f"box:{box['index']}" for box in boxes if box["label"] == label][:16]
    assert len(expected) > 1
    answer = post(client, "/explain", target=f"label:{label}")
    assert answer.headers["X-SeeWhy-Target"].split(", ") == expected
    limited = post(client, "/explain", target=f"label:{label}", method="odam,gradcam,hirescam,layercam")
    assert limited.headers["X-SeeWhy-Target"].split(", ") == expected[:4]  # of 16 maps in all
    surest = post(client, "/explain", top="3", attribute="y2")
    assert surest.headers["X-SeeWhy-Target"] == "box:0:y2, box:1:y2, box:2:y2"


def test_a_region_says_why_there_is_no_box(client, model):
    answer = post(client, "/explain", target="region:200,100,300,200", label="dog", format="json").json
    (explanation,) = answer["explanations"]
    expected = explain(model, CAT, target="region:200,100,300,200", label="dog")
    assert explanation["target"]["label"] == "dog"
    assert explanation["target"]["logit"] == pytest.approx(expected.target.logit, abs=0.05)


def test_the_default_method_is_that_of_boxes(client, model):
    assert post(client, "/explain").headers["X-SeeWhy-Method"] == "odam"
    assert explain(model, CAT).method == "odam"
    assert Registry().spec("fasterrcnn_resnet50_fpn").task.default_method == "odam"


def test_arrays_have_the_explained_boxes(client):
    answer = post(client, "/explain", target=["box:0", "box:3"], format="npz")
    with np.load(io.BytesIO(answer.data)) as arrays:
        assert arrays["boxes"].shape == (2, 4)
        assert arrays["targets"].tolist() == ["box:0", "box:3"]
        assert "logits" not in arrays


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"target": "box:99"}, "target", "There is no box:99. It finds box:0 ("),
        ({"target": "box:0,0,400,3"}, "target", "There is no box at box:0,0,400,3: the nearest is box:"),
        ({"target": "label:dgo"}, "target", "Near matches: dog."),
        ({"target": "region:1,2,3"}, "target", "four numbers"),
        ({"target": "box:0", "attribute": "masks"}, "attribute", "There is no attribute 'masks'"),
        ({"target": "box:0", "attribute": "mask"}, "attribute", "This detector has no mask; it has score,"),
        ({"target": "region:10,10,300,200", "label": "dgo"}, "label", "Near matches: dog."),
        ({"target": "box:0", "against": "box:1"}, "against", "is not a class to contrast"),
    ],
)
def test_wrong_targets_are_the_clients_mistake(fields, field, reason, client):
    answer = post(client, "/explain", **fields)
    assert (answer.status_code, answer.json["errors"][0]["field"]) == (422, field)
    assert reason in answer.json["detail"]


def test_other_models_show_no_boxes(client):
    answer = post(client, "/detect", model="tiny")
    assert (answer.status_code, answer.json["errors"][0]["field"]) == (422, "model")
    assert answer.json["type"].endswith("bad-option"), "as of /segment"
    assert "is not a detector" in answer.json["detail"]
    answer = post(client, "/explain", model="tiny", attribute="x1")
    assert (answer.status_code, answer.json["errors"][0]["field"]) == (422, "attribute")


def test_hooks_and_layers_of_a_detector(client):
    layers = {layer["path"]: layer for layer in client.get("/models/street/layers").json["layers"]}
    assert [path for path, layer in layers.items() if layer["default"]] == ["backbone.features", "backbone.extra.0"]
    traced = post(client, "/hooks/trace", target="box:1:x1").json
    assert (traced["target"]["number"], traced["target"]["attribute"]) == (1, "x1")
    captured = post(client, "/hooks/capture", layer="backbone.features", kind="grad_output", target="box:1")
    assert captured.status_code == 200
    edits = json.dumps([{"op": "zero", "layer": "backbone.features"}])
    effect = post(client, "/hooks/intervene", edits=edits, target="box:0", format="json")
    assert effect.status_code == 200, effect.json
    assert effect.json["before"]["target"]["number"] == 0


def test_candidates_of_a_picture_count_once(client, monkeypatch):
    service = client.application.extensions["seewhy"]
    request = Account(MemoryBudget(10**8))
    monkeypatch.setattr("seewhy.app.pipeline.ticket.account", lambda: request)
    options = parse(ExplainOptions, {"target": ["box:0", "box:1", "box:2"]})
    ticket = service.ask([CAT.read_bytes()], [options])
    outputs = [outcome.result[0].outputs for outcome in ticket.result()[0]]
    assert len({part.data_ptr() for part in outputs}) == 1
    assert request.holdings == outputs[0].nbytes > 0


@pytest.mark.slow
def test_hooks_of_every_part_of_a_detector(tmp_path):
    """Every part is traced, captured and edited over HTTP; those that an explanation does not run are refused."""
    module = KeypointRCNN()  # which has parts of each sort
    torch.save(module.state_dict(), tmp_path / "w.pth")
    options = {"labels": LABELS[:2], "input_size": None, "head": "detection"}
    models = declare(tmp_path, f"{__name__}:KeypointRCNN", ["street"], **options)
    app = create_app(Settings(models=models, default_model="street"))
    client = app.test_client()
    containers = {path for path, part in module.named_modules() if isinstance(part, nn.ModuleList | nn.ModuleDict)}
    parts = {path for path, _ in module.named_modules()} - containers
    idle = {path for path in parts if path in ("rpn", "roi_heads") or "keypoint" in path}
    traced = post(client, "/hooks/trace", layer="*").json
    assert set(traced["summary"]["not_run"]) == containers | idle
    assert {event["path"] for event in traced["events"]} >= parts - idle
    captured = post(client, "/hooks/capture", layer="*", kind=["output", "grad_output"]).json
    assert {tensor["layer"] for tensor in captured["tensors"]} >= parts - idle - {"", "transform"}
    assert {layer["path"] for layer in client.get("/models/street/layers").json["layers"]} == parts - idle
    convolutions = [path for path, part in module.named_modules() if isinstance(part, nn.Conv2d) and path not in idle]
    for path in convolutions[:: len(convolutions) // 4]:
        edits = json.dumps([{"op": "scale", "value": 0.5, "layer": path}])
        effect = post(client, "/hooks/intervene", edits=edits, format="json")
        assert effect.status_code == 200, effect.json
        assert {(part["edit"], part["layer"]) for part in effect.json["applied"]} == {(0, path)}
    for path in idle & {"rpn", "roi_heads.keypoint_head"}:
        layer, edits = {"layer": path}, {"edits": json.dumps([{"op": "zero", "layer": path}])}
        for route, fields in (("trace", layer), ("capture", layer), ("intervene", edits)):
            refused = post(client, f"/hooks/{route}", **fields)
            assert refused.status_code == 422
            assert f"'{path}' never runs for this picture" in refused.json["detail"]
    app.extensions["seewhy"].models.stop()


@pytest.mark.parametrize(
    ("target", "maps"),
    [
        ("box:2", 1),
        ("label:{label}", None),
        ("region:200,100,300,200:dog", 1),
        ("box:1:x1", 1),
        ("box:99", 0),
        ("label:dgo", 0),
        ("box:0,0,400,3", 0),
        ("region:9000,0,9001,1", 0),
    ],
)
def test_other_servers_routes_explain_boxes(client, model, target, maps):
    """An answer of one map has that of a class's surest box; what cannot be asked is the client's mistake."""
    boxes = detect(model, CAT)
    label = boxes[1].label
    maps = sum(box.label == label for box in boxes) if maps is None else maps
    picture, target = base64.b64encode(CAT.read_bytes()).decode(), target.format(label=label)
    parameters = {"target": target, "method": "gradcam"}
    first = client.post("/v1/models/street:explain", json={"instances": [picture], "parameters": parameters})
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [picture]}
    body = {"inputs": [tensor], "parameters": parameters, "outputs": [{"name": "maps"}, {"name": "targets"}]}
    second = client.post("/v2/models/street/explain", json=body)
    third = client.post(f"/explanations/street?method=gradcam&target={target}", data=CAT.read_bytes())
    usual = client.post(f"/explanations/street?target={target}&steps=2", data=CAT.read_bytes())
    assert [answer.status_code for answer in (first, second, third, usual)] == [200 if maps else 400] * 4, usual.json
    if maps:
        assert len(first.json["explanations"][0]["explanations"]) == maps
        assert [output["shape"][:2] for output in second.json["outputs"]] == [[1, maps]] * 2
        assert np.shape(third.json) == (1, SIDE, SIDE)
        assert np.shape(usual.json) == (3, SIDE, SIDE)


def test_the_command_shows_and_explains_boxes(models, model, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEWHY_MODELS", str(models))

    def run(command, *options, status=0):
        result = CliRunner().invoke(main, [command, str(CAT), "--model", "street", *options])
        assert result.exit_code == status, result.output
        return result.output

    (first, *_) = detect(model, CAT)
    line = run("detect").splitlines()[1].split()
    assert line[1:3] == ["box:0", first.label]
    assert [float(edge) for edge in line[3].split(",")] == pytest.approx(first.box, abs=2)
    answer = json.loads(run("detect", "--format", "json"))
    assert (answer["picture"], answer["model"]["name"]) == (str(CAT), "street")
    assert answer["boxes"][0]["label"] == first.label
    options = ("-o", str(tmp_path / "out.json"), "--target", "box:1")
    assert f"cat.png: {detect(model, CAT)[1].label} (box:1) " in run(
        "explain", *options, "--attribute", "y1", "--method", "odam"
    )
    target = json.loads((tmp_path / "out.json").read_text())["explanations"][0]["target"]
    assert (target["number"], target["attribute"]) == (1, "y1")
    assert "This detector has no objectness" in run("explain", *options, "--attribute", "objectness", status=2)
    proofs = run("explain", "-o", str(tmp_path / "all.png"), "--target", f"label:{first.label}", "--proof")
    assert f"odam for {first.label} (box:0), not graded: " in proofs
    listed = CliRunner().invoke(main, ["models"]).output
    assert [line.split()[2] for line in listed.splitlines() if line.startswith("street ")] == ["-"]


def test_the_size_of_a_detectors_input_is_known_once_it_is_loaded(models):
    with application(models=models, default_model="own") as app:
        client = app.test_client()
        listed = {row["name"]: row["input_size"] for row in client.get("/models?source=own").json["models"]}
        assert (listed["street"], listed["own"]) == (None, [SIDE, SIDE])
        post(client, "/detect", model="street")
        assert client.get("/models/street").json["input_size"] == [SIDE, SIDE]


def test_a_declared_detector_of_ones_own(client, models):
    assert client.get("/models/own").json["head"] == "detection"
    assert client.get("/models/own/layers").status_code == 200
    boxes = post(client, "/detect", model="own").json["boxes"]
    expected = detect(wrap_model(windows(), OWN, SIDE), CAT)
    assert [box["label"] for box in boxes[:3]] == [box.label for box in expected[:3]]
    answer = post(client, "/explain", model="own", target="box:0", attribute="objectness", method="saliency")
    assert answer.headers["X-SeeWhy-Target"] == "box:0:objectness"
    with pytest.raises(ModelError, match="the module has no `box_head`, which a detector needs"):
        Registry(models_file=models).load("headless")
    with pytest.raises(ModelError, match='declare head = "detection"'):
        Registry(models_file=models).load("undeclared")


def test_a_client_detects_as_the_library_does(models):
    with application(models=models, default_model="street") as app, live(app) as url:
        there = Client(url).detect(CAT)
    here = detect(wrap_model(ssd(), LABELS, head="detection"), CAT)
    assert [(type(box), box.index, box.label) for box in there] == [(type(box), box.index, box.label) for box in here]
    for one, other in zip(there, here, strict=True):
        assert one.box == pytest.approx(other.box, abs=1)
        assert one.score == pytest.approx(other.score, abs=1e-3)


def test_a_custom_detector_needs_the_size_of_its_input(tmp_path):
    models = declare(tmp_path, f"{__name__}:windows", ["mine"], labels=list(OWN), input_size=None, head="detection")
    with pytest.raises(ModelsFileError, match=r"\[models.mine\], input_size: A value is required; give the side or"):
        Registry(models_file=models).load("mine", None)
