"""The routes about hooks: their answers, and their errors for bad input."""

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load

from seewhy.app.answers import schemas
from seewhy.app.pipeline import inspection
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.explainers import capture, intervene, sweep_channels
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import contact_sheet, strongest
from tests.app.conftest import EXAMPLES, encoded

with Image.open(EXAMPLES / "coffee.png") as image:
    COFFEE = encoded(image.convert("RGB").resize((300, 200)), "JPEG")
ZERO = [{"layer": "bn2", "op": "zero", "channels": [112, 795]}]


@pytest.fixture
def ask(post):
    """Post to a route about hooks; return the answer's JSON."""

    def send(picture, route, **fields):
        response = post(picture, path=f"/hooks/{route}", **fields)
        assert response.status_code == 200, response.get_data(as_text=True)
        assert response.headers["Vary"] == "Accept"
        assert "decode;dur=" in response.headers["Server-Timing"]
        return response.get_json()

    return send


@pytest.fixture
def refused(post):
    """Post what is refused; return status, code and the fields at fault."""

    def send(picture, route, **fields):
        response = post(picture, path=f"/hooks/{route}", **fields)
        document = response.get_json()
        assert response.mimetype == "application/problem+json"
        code = document["type"].removeprefix("urn:seewhy:problem:")
        return response.status_code, code, [(error["field"], error["message"]) for error in document.get("errors", [])]

    return send


def picture(response):
    assert response.status_code == 200, response.get_data(as_text=True)
    return np.asarray(Image.open(io.BytesIO(response.data)).convert("RGB")).astype(int)


def test_a_trace_is_a_time_line_of_all_leaves(ask, cat, service):
    answer = ask(cat, "trace", target="tabby")
    schemas.TraceAnswer.model_validate(answer)
    module = service.models.engine.loaded("efficientnet_lite0").module
    leaves = {path for path, part in module.named_modules() if not list(part.children())}
    paths = {event["path"] for event in answer["events"]}
    assert paths | set(answer["summary"]["not_run"]) == leaves
    assert answer["target"]["label"] == "tabby"
    assert [event["order"] for event in answer["events"]] == list(range(len(answer["events"])))
    assert {event["kind"] for event in answer["events"]} == {
        "before_forward",
        "after_forward",
        "output_gradient",
        "full_backward",
        "parameter_gradient",
    }
    times = [event["microseconds"] for event in answer["events"]]
    assert times == sorted(times)
    (stem,) = (event for event in answer["events"] if (event["path"], event["kind"]) == ("conv_stem", "after_forward"))
    assert stem["tensors"][0]["name"] == "output"
    assert stem["tensors"][0]["statistics"]["shape"] == [1, 32, 112, 112]


@pytest.mark.slow
def test_a_trace_of_chosen_layers_can_be_drawn(post, cat):
    svg = post(cat, path="/hooks/trace", layer=["blocks.0", "bn*"], format="svg")
    assert svg.mimetype == "image/svg+xml"
    assert ElementTree.fromstring(svg.data).tag.endswith("svg")
    assert "blocks.0" in svg.get_data(as_text=True)
    assert picture(post(cat, path="/hooks/trace", layer="bn2", headers={"Accept": "image/png"})).std() > 10


def test_a_capture_holds_what_python_captures(post, ask, cat, lite0):
    kinds = ["output", "grad_output", "parameter_grad"]
    expected = capture(lite0, cat, ["bn2"], kinds, target="tabby").arrays
    assert set(expected) == {
        "bn2/output/0",
        "bn2/grad_output/0",
        "bn2/parameter_grad/weight",
        "bn2/parameter_grad/bias",
    }
    fields = {"layer": "bn2", "kind": kinds, "target": "tabby"}
    with np.load(io.BytesIO(post(cat, path="/hooks/capture", **fields, format="npz").data)) as arrays:
        npz = dict(arrays)
    for tensors in (npz, load(post(cat, path="/hooks/capture", **fields, format="safetensors").data)):
        assert set(tensors) == set(expected)
        for key, tensor in expected.items():
            np.testing.assert_allclose(tensors[key], tensor.numpy(), rtol=1e-4, atol=1e-5)
    document = ask(cat, "capture", **fields)
    schemas.CaptureAnswer.model_validate(document)
    assert [entry["key"] for entry in document["tensors"]] == list(expected)
    statistics = document["tensors"][0]["statistics"]
    np.testing.assert_allclose(statistics["mean"], expected["bn2/output/0"].mean(), rtol=1e-4)


def test_a_contact_sheet_shows_the_strongest_maps(post, cat, lite0, service):
    captured = capture(lite0, cat, ["bn2"], ["output", "grad_output"], target="tabby")
    upright = Image.open(io.BytesIO(cat)).convert("RGB")
    geometry = lite0.preprocess.geometry(*upright.size)
    maps = strongest(captured, 4, by_effect=True)
    page = contact_sheet(maps, upright, geometry, Style(max_side=service.settings.max_side), by_effect=True)
    fields = {"layer": "bn2", "target": "tabby", "rank": "effect", "top": 4, "format": "png"}
    result = picture(post(cat, path="/hooks/capture", **fields))
    assert np.abs(result - np.asarray(page)).mean() < 1
    sixteen = picture(post(cat, path="/hooks/capture", **fields | {"top": 16})).shape
    assert sixteen[1] == 2 * result.shape[1]
    assert 2 * result.shape[0] - 50 < sixteen[0] < 2 * result.shape[0], "there is one title on each"


def test_an_intervention_answers_as_python_does(ask, cat, lite0):
    answer = ask(cat, "intervene", edits=json.dumps(ZERO), target="tabby")
    schemas.InterveneAnswer.model_validate(answer)
    expected = intervene(lite0, cat, ZERO, target="tabby")
    for side in ("before", "after"):
        target = getattr(expected, side).target
        assert answer[side]["target"]["probability"] == pytest.approx(target.probability, rel=1e-4)
        assert answer[side]["target"]["logit"] == pytest.approx(target.logit, rel=1e-4)
        assert answer[side]["heatmap"]["max"] == pytest.approx(getattr(expected, side).raw_heatmap.max(), rel=1e-3)
    assert answer["difference"]["score"] == pytest.approx(expected.score_change, rel=1e-3)
    assert answer["difference"]["probability"] < 0
    assert answer["applied"][0]["after"]["zeros"] > answer["applied"][0]["before"]["zeros"]
    assert answer["edits"] == [{**ZERO[0], "at": "output", "region": None, "calls": None, "parameter": None}]
    assert answer["panel"].startswith("data:image/png;base64,")


def test_headers_tell_what_an_answer_is_about(post, cat):
    fields = {"edits": json.dumps(ZERO), "target": "espresso"}
    reply = post(cat, path="/hooks/intervene", **fields)
    facts = {name: reply.headers[f"X-SeeWhy-{name}"] for name in ("Model", "Method", "Layers", "Target", "Diagnostics")}
    assert facts == {
        "Model": "efficientnet_lite0",
        "Method": "gradcam",
        "Layers": "bn2",
        "Target": "967",
        "Diagnostics": "improbable-target",
    }
    assert [diagnostic["code"] for diagnostic in reply.get_json()["before"]["diagnostics"]] == ["improbable-target"]
    assert reply.get_json()["target"]["logit"] == reply.get_json()["before"]["target"]["logit"]
    headers = post(cat, path="/hooks/trace", layer="bn2", target="tabby").headers
    assert (headers["X-SeeWhy-Label"], headers["X-SeeWhy-Model"]) == ("tabby", "efficientnet_lite0")
    assert "X-SeeWhy-Method" not in headers


def test_values_of_the_three_heatmaps_share_one_scale(ask, cat):
    answer = ask(cat, "intervene", edits=json.dumps(ZERO), target="tabby", values="true")
    before, after, change = (np.array(answer[key]["heatmap"]["values"]) for key in ("before", "after", "difference"))
    assert before.shape == (300, 451)
    assert max(before.max(), after.max()) == pytest.approx(1)
    np.testing.assert_allclose(after - before, change, atol=1e-6)


def test_edits_arrive_by_all_carriers(client, post, cat):
    swap = [{"layer": "blocks.4", "op": "swap"}]
    encoded = {name: base64.b64encode(content).decode() for name, content in (("image", cat), ("other", COFFEE))}
    form = post(cat, path="/hooks/intervene", edits=json.dumps(swap), other=(io.BytesIO(COFFEE), "coffee.jpg"))
    body = client.post("/hooks/intervene", json={**encoded, "edits": swap})
    assert form.get_json()["after"]["predictions"][0]["label"] == "espresso"
    assert body.get_json()["after"]["predictions"] == form.get_json()["after"]["predictions"]
    raw = client.post("/hooks/intervene", query_string={"edits": json.dumps(ZERO)}, data=cat, content_type="image/png")
    plain = post(cat, path="/hooks/intervene", edits=json.dumps(ZERO))
    logit = plain.get_json()["after"]["target"]["logit"]
    assert raw.get_json()["after"]["target"]["logit"] == pytest.approx(logit, rel=1e-4)


def test_a_panel_has_three_tiles_and_explains_itself_with_any_method(post, cat):
    panel = picture(post(cat, path="/hooks/intervene", edits=json.dumps(ZERO), format="png"))
    assert panel.shape[1] == 3 * 451
    fields = {"edits": json.dumps([{"layer": "conv_stem", "op": "noise", "value": 0.5}]), "method": "saliency"}
    assert picture(post(cat, path="/hooks/intervene", **fields, format="png", sign="signed")).shape == panel.shape


def test_a_sweep_ranks_channels_and_can_be_drawn(ask, post, cat, lite0):
    edit = {"layer": "bn2", "op": "zero", "channels": [*range(0, 1280, 10)]}
    fields = {"edits": json.dumps([edit]), "each_channel": "true", "target": "tabby"}
    answer = ask(cat, "intervene", **fields)
    schemas.SweepAnswer.model_validate(answer)
    expected = sweep_channels(lite0, cat, edit, target="tabby")
    assert [row["channel"] for row in answer["channels"][:10]] == [row.channel for row in expected.channels[:10]]
    changes = [channel["score_change"] for channel in answer["channels"]]
    assert len(changes) == 128
    assert changes == sorted(changes)
    assert abs(changes[0]) > abs(changes[-1])
    sheet = picture(post(cat, path="/hooks/intervene", **fields, format="png", top=4))
    assert sheet.std() > 10


def zero(layer, **members):
    return json.dumps([{"layer": layer, "op": "zero", **members}])


def edit(**members):
    return json.dumps([{"layer": "bn2", "op": "negate"}, {"layer": "bn2", "op": "zero", **members}])


ONE_BY_ONE = {"edits": json.dumps(ZERO), "each_channel": "1"}


@pytest.mark.parametrize(
    ("route", "fields", "status", "field"),
    [
        ("trace", {"layer": "nope"}, 422, "layer"),
        ("trace", {"layer": "blocks.0.0.drop_path"}, 422, "layer"),
        ("trace", {"target": "nope"}, 422, "target"),
        ("trace", {"target": ["tabby", "lynx"]}, 422, "target"),
        ("trace", {"format": "npz"}, 422, "format"),
        ("trace", {"depth": "1"}, 422, "depth"),
        ("capture", {"layer": "bn2.act", "kind": "parameter_grad"}, 422, "layer"),
        ("trace", {"model": "nope"}, 422, "model"),
        ("capture", {}, 422, "layer"),
        ("capture", {"layer": "nope"}, 422, "layer"),
        ("capture", {"layer": "blocks.0.0.drop_path"}, 422, "layer"),
        ("capture", {"layer": ["bn2"] * 17}, 422, "layer"),
        ("capture", {"layer": "bn2", "kind": "weights"}, 422, "kind"),
        ("capture", {"layer": "bn2", "top": "0"}, 422, "top"),
        ("capture", {"layer": "classifier", "format": "png"}, 422, "layer"),
        ("capture", {"layer": "*", "kind": ["input", "output", "grad_input", "grad_output"]}, 413, "layer"),
        ("intervene", {}, 422, "edits"),
        ("intervene", {"edits": json.dumps(ZERO), "layer": "nope"}, 422, "layer"),
        ("intervene", {"edits": json.dumps(ZERO), "method": "nope"}, 422, "method"),
        ("intervene", {"edits": json.dumps(ZERO), "sing": "signed"}, 422, "sing"),
        ("intervene", {"edits": json.dumps(ZERO), "other": "text"}, 422, "other"),
        ("intervene", {"edits": json.dumps(ZERO), "other": (io.BytesIO(COFFEE), "coffee.jpg")}, 422, "other"),
        ("intervene", ONE_BY_ONE | {"other": (io.BytesIO(COFFEE), "coffee.jpg")}, 422, "other"),
        ("intervene", ONE_BY_ONE | {"edits": json.dumps(ZERO * 2)}, 422, "edits"),
        ("intervene", ONE_BY_ONE | {"sign": "signed"}, 422, "sign"),
        ("intervene", ONE_BY_ONE | {"method": "saliency"}, 422, "method"),
        ("intervene", ONE_BY_ONE | {"values": "1"}, 422, "values"),
        ("intervene", ONE_BY_ONE | {"layer": "bn2"}, 422, "layer"),
        ("intervene", ONE_BY_ONE | {"each_channel": "maybe"}, 422, "each_channel"),
        ("intervene", ONE_BY_ONE | {"edits": zero("bn*")}, 422, "edits[0].layer"),
        ("intervene", ONE_BY_ONE | {"edits": zero("classifier"), "format": "png"}, 422, "edits[0].layer"),
        ("intervene", ONE_BY_ONE | {"edits": zero("bn2", at="grad_output")}, 422, "edits[0].at"),
    ],
)
def test_bad_input_is_refused_with_its_field(route, fields, status, field, refused, cat):
    actual, _, faults = refused(cat, route, **fields)
    assert (actual, [place for place, _ in faults]) == (status, [field])


def test_a_capture_without_a_layer_says_what_lists_them(refused, cat):
    message = "A value is required. `seewhy layers NAME` or GET /models/NAME/layers lists the model's layers."
    assert refused(cat, "capture")[2] == [("layer", message)]


@pytest.mark.parametrize(
    ("edits", "field", "message"),
    [
        (json.dumps(ZERO[0]), "edits", "put the single edit in [ ]"),
        ("{", "edits", "not JSON"),
        ('[{"op": "zero", "layer": "bn2",}]', "edits", "It must be a JSON list of edits, but it is not JSON: "),
        ('[\n{"op": "zero", \'layer\': "bn2"}]', "edits", "line 2 column 16"),
        ("[" * 100_000, "edits", "It must be a JSON list of edits."),
        (json.dumps(ZERO * 65), "edits", "64"),
        ("[5]", "edits[0]", ""),
        ('["bn2"]', "edits[0]", '{"op": "zero", "layer": "bn2"}'),
        (
            '[{"op": "zero"}]',
            "edits[0].layer",
            "`seewhy layers NAME` or GET /models/NAME/layers lists the model's layers.",
        ),
        (edit(layer="bn9"), "edits[1].layer", ""),
        (edit(layer="b" * 201), "edits[1].layer", "It is too long; at most 200 characters are allowed."),
        (edit(op="scal", value=2), "edits[1].op", "Near matches: scale."),
        (edit(op="swap"), "edits[1].op", "give it as `other`."),
        (edit(op="scale"), "edits[1].value", "A value is required."),
        (edit(op="scale", value="2"), "edits[1].value", "It must be a number."),
        (edit(op="scale", value=float("nan")), "edits[1].value", ""),
        (edit(op="scale", value=3e38), "edits[1].value", ""),
        (edit(chanels=[1]), "edits[1].chanels", "Near matches: channels"),
        (edit(channels="all"), "edits[1].channels", "It must be a list."),
        (edit(channels=[5000]), "edits[1].channels", ""),
        (edit(region=[1, 2]), "edits[1].region", "top, left, bottom, right"),
    ],
)
def test_a_bad_edit_is_named_by_index_and_field_in_words_that_need_no_python(edits, field, message, refused, cat):
    status, code, [(place, fault)] = refused(cat, "intervene", edits=edits)
    assert (status, place) == (422, field)
    assert code in ("bad-edit", "bad-option")
    assert message in fault
    assert fault.endswith(".")
    assert not fault.startswith(field)


def test_a_form_names_the_model_itself_by_a_point(ask, refused, cat, lite0):
    answer = ask(cat, "capture", layer=".")
    assert [tensor["key"] for tensor in answer["tensors"]] == ["./output/0"]
    traced = ask(cat, "trace", layer=".")
    assert {event["path"] for event in traced["events"]} == {""}
    answer = ask(cat, "intervene", edits='[{"layer": ".", "op": "scale", "value": 2}]')
    assert answer["after"]["target"]["logit"] == pytest.approx(2 * answer["before"]["target"]["logit"], rel=1e-5)
    assert refused(cat, "intervene", edits='[{"layer": ".", "op": "zero", "calls": [1]}]', each_channel="1")[2] == [
        ("edits[0].calls", "The model runs once for this picture; choose a layer and calls that run.")
    ]


def test_a_second_file_is_told_how_to_be_sent(post, cat):
    answer = post(cat, path="/hooks/intervene", edits=(io.BytesIO(b"[]"), "edits.json"))
    assert "'edits=<FILE'" in answer.get_json()["detail"]


def test_what_is_no_picture_is_refused_on_every_route(refused, cat):
    for route, fields in (("trace", {}), ("capture", {"layer": "bn2"}), ("intervene", {"edits": json.dumps(ZERO)})):
        assert refused(b"no picture", route, **fields)[:2] == (415, "unreadable-picture")
    second = {"edits": json.dumps([{"layer": "bn2", "op": "swap"}]), "other": (io.BytesIO(b"no picture"), "x.png")}
    status, _, [(field, _)] = refused(cat, "intervene", **second)
    assert (status, field) == (415, "other")


@pytest.mark.slow
def test_an_intervention_that_takes_too_long_is_given_up_and_the_model_is_free(app_of, cat):
    app = app_of(deadline=3)
    app.extensions["seewhy"].models.model(None, Deadline.after(60))
    many = json.dumps([{"layer": "*", "op": "noise", "value": 0.0}] * 64)
    for path, fields, status in (("/hooks/intervene", {"edits": many}, 504), ("/explain", {}, 200)):
        data = {"image": (io.BytesIO(cat), "cat.png"), **fields}
        assert app.test_client().post(path, data=data).status_code == status


@pytest.mark.parametrize(("route", "fields"), [("trace", {}), ("capture", {"layer": "bn2"})])
def test_what_nobody_waits_for_any_more_does_not_keep_the_model(route, fields, post, cat, monkeypatch):
    work, ends = getattr(inspection, f"{route}_images"), []

    def leave(*args):
        monkeypatch.setattr(Job, "is_wanted", False)
        work(*args)
        ends.append(route)

    monkeypatch.setattr(inspection, f"{route}_images", leave)
    assert post(cat, path=f"/hooks/{route}", **fields).status_code == 504
    assert ends == []


def test_the_limit_of_a_capture_is_a_setting(cat, app_of):
    client = app_of(max_capture_bytes=1280 * 49 * 4).test_client()
    for kinds, status in ((["output"], 200), (["output", "input"], 413)):
        data = {"image": (io.BytesIO(cat), "cat.png"), "layer": "bn2", "kind": kinds}
        assert client.post("/hooks/capture", data=data).status_code == status


def test_interleaved_requests_do_not_touch_each_other(app, cat):
    """Interventions, captures and explanations from many threads: each answer is the one that it gets alone."""

    def send(number):
        picture = (cat, COFFEE)[number % 2]
        data = {"image": (io.BytesIO(picture), "picture"), "target": str(281 + number % 5)}
        kind = number % 4
        if kind == 0:
            data |= {"format": "json"}
            body = app.test_client().post("/explain", data=data).get_json()
            return body["explanations"][0]["target"]["logit"], body["explanations"][0]["heatmap"]["max"]
        if kind == 1:
            data |= {"layer": "bn2", "kind": "grad_output", "format": "npz"}
            with np.load(io.BytesIO(app.test_client().post("/hooks/capture", data=data).data)) as arrays:
                return float(np.abs(arrays["bn2/grad_output/0"]).sum()), float(arrays["bn2/grad_output/0"].max())
        layer, op = ("blocks.3", "negate") if kind == 2 else ("conv_stem", "zero")
        at = "output" if kind == 2 else "grad_output"
        data |= {"edits": json.dumps([{"layer": layer, "op": op, "at": at}])}
        body = app.test_client().post("/hooks/intervene", data=data).get_json()
        return body["before"]["target"]["logit"], body["after"]["target"]["logit"], body["after"]["heatmap"]["max"]

    alone = [send(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(send, range(8)))
    for document, expected in zip(together, alone, strict=True):
        assert document == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("intervene", {"edits": json.dumps(ZERO)}),
        ("intervene", {"edits": json.dumps(ZERO), "each_channel": "1"}),
        ("trace", {}),
        ("capture", {"layer": "bn2"}),
    ],
)
def test_a_contrast_is_refused_with_what_to_do_instead(refused, cat, path, fields):
    status, _, (fault,) = refused(cat, path, **fields, against="tabby")
    instead = "`explain` draws one with `against`. To compare two classes, ask about each with `target`."
    assert (status, fault) == (422, ("against", f"There is no contrast here; {instead}"))
