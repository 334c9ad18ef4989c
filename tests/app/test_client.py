"""The client of a service has the library's interface, its results and its errors, and imports no PyTorch."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from werkzeug import Request, Response

from seewhy import (
    Client,
    ExplainerError,
    ServiceError,
    capture,
    compare,
    detect,
    evaluate,
    explain,
    intervene,
    list_methods,
    list_models,
    predict,
    read_picture,
    segment,
    similar,
    sweep_channels,
    trace,
)
from seewhy.app.client.connection import UnreachableError, exception_of
from seewhy.app.client.results import RemotePrediction
from seewhy.app.errors import (
    KINDS,
    RETRY_AFTER,
    KeyRequiredError,
    NotFoundError,
    OutOfMemoryError,
    OverloadedError,
    kind_of,
)
from seewhy.app.http.keys import new_key
from seewhy.app.pipeline.jobs import Deadline
from seewhy.explainers.errors import (
    LayerError,
    OptionError,
    TargetError,
    UnreadablePictureError,
    UnsuitableModelError,
)
from seewhy.explainers.tasks.detected import BoxPrediction
from seewhy.explainers.tasks.segmentation import RegionPrediction
from seewhy.explainers.tasks.values import ValuePrediction
from seewhy.models import ModelError
from tests.app.conftest import EXAMPLES
from tests.app.serving import live
from tests.app.test_report import record_of
from tests.waiting import GUARD

CAT = EXAMPLES / "cat.png"


@pytest.fixture(scope="module")
def address(app):
    with live(app) as url:
        yield url


@pytest.fixture(scope="module")
def client(address):
    return Client(f"{address}/")


@pytest.fixture(scope="module")
def model(service):
    return service.models.model(None, Deadline.after(GUARD))


def test_an_explanation_is_that_of_the_library(client, model, tmp_path):
    there = client.explain(CAT, "layercam", target="tabby", against="tiger cat", sign="signed", layer="bn2")
    here = explain(model, CAT, "layercam", target="tabby", against="tiger cat", sign="signed", layer="bn2")
    np.testing.assert_allclose(there.heatmap, here.heatmap, atol=1e-4)
    np.testing.assert_allclose(there.raw_heatmap, here.raw_heatmap, atol=1e-4 * np.abs(here.raw_heatmap).max())
    assert repr(there) == repr(here).replace("Explanation", "RemoteExplanation")
    assert (there.method, there.layers, there.signed) == (here.method, here.layers, here.signed)
    assert there.target.logit == pytest.approx(here.target.logit, abs=1e-3)
    assert there.predictions[0].label == here.predictions[0].label == "tiger cat"
    assert [vars(remark) for remark in there.diagnostics] == [vars(remark) for remark in here.diagnostics]
    assert there.model.sha256 == model.sha256
    differences = np.asarray(there.overlay(view="side-by-side"), int) - np.asarray(here.overlay(view="side-by-side"))
    assert np.abs(differences).max() <= 1
    with Image.open(there.save(tmp_path / "cat.png")) as drawing:
        assert drawing.size == (451, 300)
    arrays = here.arrays()
    with np.load(there.save(tmp_path / "cat.npz")) as file:
        assert file.files == [*arrays]
        np.testing.assert_allclose(file["logits"], arrays["logits"], atol=1e-3)
        assert file["targets"].tolist() == [281]
    document = json.loads(there.save(tmp_path / "cat.json").read_text())
    expected = here.document()
    assert document.keys() - {"timings_ms"} == expected.keys()
    assert document["methods"] == expected["methods"]
    (part,), (other,) = document["explanations"], expected["explanations"]
    assert part.keys() == other.keys()
    assert part["heatmap"].keys() == other["heatmap"].keys()
    pages = [result.save(tmp_path / "cat.html").read_text() for result in (there, here)]
    pictures = [record_of(page)["record"]["picture"] for page in pages]
    assert {"name": "cat.png", **pictures[0]} == pictures[1]  # the client sends bytes without a name
    assert there._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"use \.png, \.jpg, \.jpeg, \.webp, \.json, \.npz, \.html"):
        there.save(tmp_path / "cat.txt")


def test_a_proof_comes_with_an_explanation(client, model):
    there, here = (ask(CAT, proof=True).proof for ask in (client.explain, lambda *a, **k: explain(model, *a, **k)))
    assert (there.grade, there.verdict, there.sentence) == (here.grade, here.verdict, here.sentence)
    assert repr(there) == f"RemoteProof({here.verdict}: {here.sentence})"
    there.grade, there.warnings = "not supported", ("fill-hides-little",)
    assert there.verdict == "inconclusive"
    assert there.faithfulness.kept == pytest.approx(here.faithfulness.kept, abs=1e-3)


@pytest.mark.parametrize(
    "form", ["path", "text", "bytes", "file", "PIL", "array"], ids=lambda form: f"a picture as {form}"
)
def test_pictures_are_sent_in_each_form_of_the_library(client, form):
    picture = Image.open(CAT).convert("RGB")
    forms = {
        "path": CAT,
        "text": str(CAT),
        "bytes": CAT.read_bytes(),
        "file": io.BytesIO(CAT.read_bytes()),
        "PIL": picture,
        "array": np.asarray(picture),
    }
    (best,) = client.predict(forms[form], top=1)
    assert best.label == "tiger cat"
    assert best.probability == pytest.approx(0.3928, abs=1e-3)


def test_several_targets_make_a_list(client, model):
    rows = client.explain(CAT, target=["tabby", np.int64(282)])
    assert [row.target.label for row in rows] == ["tabby", "tiger cat"]
    assert [row.target.label for row in client.explain(CAT, top=2)] == ["tiger cat", "Egyptian cat"]
    assert len(client.explain(CAT, target=["tabby"])) == 1
    again = ["tabby", 281, "tabby"]  # a list is answered in full, whatever names what
    rows = client.explain(CAT, target=again)
    assert len(rows) == len(explain(model, CAT, target=again)) == 3
    assert [row.arrays()["targets"].tolist() for row in rows] == [[281]] * 3
    for row in client.explain(CAT, top=2):
        assert row.arrays()["targets"].tolist() == [row.target.index]


def test_a_comparison_is_that_of_the_library(client, model, tmp_path):
    there = client.compare(CAT, ["gradcam", "saliency"], target="tabby")
    here = compare(model, CAT, ["gradcam", "saliency"], target="tabby")
    assert there.methods == here.methods
    assert there.agreement == pytest.approx(here.agreement, abs=1e-3)
    assert repr(there) == repr(here).replace("Comparison", "RemoteComparison")
    assert there.overlay().size == here.overlay().size
    assert there.document()["agreement"][0]["methods"] == ["gradcam", "saliency"]
    assert [*there.arrays()] == [*here.arrays()]
    assert record_of(there.save(tmp_path / "both.html").read_text())["record"]["methods"] == here.document()["methods"]


def test_predictions_models_and_methods(client, model):
    assert [row.label for row in client.predict(CAT, top=3)] == [row.label for row in predict(model, CAT, top=3)]
    assert [*client.models()] == list_models()
    assert {row["source"] for row in client.models(source="embedded").values()} == {"embedded"}
    assert [*client.methods()] == list_methods()
    assert client.methods()["gradcam"]["cost"] == {"forwards": "1", "backwards": "1"}


ROCKET = EXAMPLES / "rocket.png"


def test_a_likeness_is_that_of_the_library(client, model, tmp_path):
    there, here = client.similar(CAT, ROCKET, 3), similar(model, CAT, ROCKET, 3)
    assert there.score == pytest.approx(here.score, abs=1e-3)
    assert repr(there) == repr(here).replace("Likeness", "RemoteLikeness")
    assert [remark.code for remark in there.diagnostics] == [remark.code for remark in here.diagnostics]
    for ours, theirs in zip(here.heatmaps, there.heatmaps, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=2e-3)
    assert there.pairs[0].image == pytest.approx(here.pairs[0].image)
    assert there.overlay().size == here.overlay().size
    assert [*there.arrays()] == [*here.arrays()]
    document = json.loads(there.save(tmp_path / "alike.json").read_text())
    assert document.keys() >= here.document().keys()
    proofs = client.similar(CAT, ROCKET, proof=True).proof, similar(model, CAT, ROCKET, proof=True).proof
    kept, expected = ([proof.faithfulness.kept for proof in side] for side in proofs)
    assert kept == pytest.approx(expected, abs=1e-2)


def test_an_evaluation_is_that_of_the_library(client, model):
    metrics = ["sparseness", "pointing-game", "deletion"]
    asked = {"methods": ["gradcam", "saliency"], "metrics": metrics, "sign": "positive", "deletion.steps": 1}
    pictures, masks = [(CAT, "tabby"), ROCKET], []
    for path in (CAT, ROCKET):
        width, height = read_picture(path).size
        masks.append(np.zeros((height, width), bool))
        masks[-1][60:220, 100:300] = True
    there, here = client.evaluate(pictures, masks=masks, **asked), evaluate(model, pictures, masks=masks, **asked)
    assert (there.methods, there.controls, there.columns) == (here.methods, here.controls, here.columns)
    assert there.pictures == here.pictures
    assert there.values.keys() == here.values.keys()
    for key, values in here.values.items():
        np.testing.assert_allclose(there.values[key], values, atol=0.02, err_msg=key)
    assert there["gradcam", "sparseness"].count == 2
    assert there.notes == here.notes != []
    with pytest.raises(OptionError, match="pictures is 2, but the number of masks is 1"):
        client.evaluate(pictures, masks=masks[:1])
    with pytest.raises(OptionError, match="list of pictures is empty"):
        client.evaluate([])
    with pytest.raises(OptionError, match="There is no metric 'sparsness'"):
        client.evaluate([CAT], metrics="sparsness")


def test_hooks_are_asked_about_as_in_the_library(client, model, tmp_path):
    edit = {"layer": "bn2", "op": "zero", "channels": [3, 112]}
    pairs = [
        (client.trace(CAT, "tabby", ["blocks.6", "bn2"]), trace(model, CAT, "tabby", ("blocks.6", "bn2"))),
        (client.capture(CAT, "bn2", ["output"], "tabby"), capture(model, CAT, "bn2", ["output"], "tabby")),
        (client.intervene(CAT, [edit], "tabby"), intervene(model, CAT, [edit], "tabby")),
    ]
    for there, here in pairs:
        assert repr(there) == f"Remote{here!r}"
    (traced, expected), (captured, arrays), (edited, both) = pairs
    assert [event.path for event in traced.events] == [event.path for event in expected.events]
    assert traced.summary.vanishing == expected.summary.vanishing
    assert traced.save(tmp_path / "trace.svg").read_bytes().startswith(b"<?xml")
    assert captured.tensors[0].statistics.mean == pytest.approx(arrays.tensors[0].statistics.mean, abs=1e-3)
    np.testing.assert_allclose(captured.arrays["bn2/output/0"], arrays.arrays["bn2/output/0"], atol=0.05)
    with Image.open(captured.save(tmp_path / "maps.webp", top=2)) as sheet:
        assert sheet.format == "WEBP"
    assert edited.score_change == pytest.approx(both.score_change, abs=1e-3)
    assert edited.probability_change == pytest.approx(both.probability_change, abs=1e-3)
    with Image.open(io.BytesIO(edited._repr_png_())) as panel:
        assert panel.size == both.panel().size
    assert json.loads(edited.save(tmp_path / "edited.json").read_text())["edits"][0]["channels"] == [3, 112]
    swept, here = client.sweep_channels(CAT, edit, "tabby"), sweep_channels(model, CAT, edit, "tabby")
    assert [row.channel for row in swept.channels] == [row.channel for row in here.channels]
    assert swept.channels[0].score_change == pytest.approx(here.channels[0].score_change, abs=1e-3)
    assert repr(swept).startswith("RemoteSweep(2 channels of 'bn2'; target 281: -")
    with pytest.raises(OptionError, match=r"'.csv' is not an output format; use \.png, \.jpg, \.jpeg, \.webp, \.json"):
        swept.save(tmp_path / "channels.csv")
    with pytest.raises(OptionError, match="There is no op 'zeero'"):
        client.intervene(CAT, [{**edit, "op": "zeero"}])


def test_what_a_classifier_cannot_do_is_said_as_in_the_library(client, model):
    for there, here in ((client.detect, detect), (client.segment, segment)):
        with pytest.raises(OptionError) as ours:
            here(model, CAT)
        with pytest.raises(OptionError) as theirs:
            there(CAT)
        assert str(theirs.value) == str(ours.value)


MISTAKES = [
    ({"method": "gradcan"}, OptionError),
    ({"method": "gradcam", "samples": 3}, OptionError),
    ({"method": "smoothgrad", "samples": 0}, OptionError),
    ({"target": "tabbi"}, TargetError),
    ({"target": 1000}, TargetError),
    ({"layer": "blocks.66"}, LayerError),
    ({"method": "legrad"}, UnsuitableModelError),
    ({"target": "pixel:3,4"}, TargetError),
    ({"picture": b"no picture"}, UnreadablePictureError),
    ({"picture": "https://example.org/cat.png"}, UnreadablePictureError),
    ({"picture": 7}, UnreadablePictureError),
]
"""Arguments of `explain` with the error that both raise."""


@pytest.mark.parametrize(("arguments", "kind"), MISTAKES)
def test_errors_are_those_of_the_library(client, model, arguments, kind):
    arguments = {"picture": CAT, **arguments}
    with pytest.raises(ExplainerError) as here:
        explain(model, **arguments)
    with pytest.raises(kind) as there:
        client.explain(**arguments)
    assert (type(there.value), str(there.value)) == (kind, str(here.value))
    fields = {OptionError: here.value.field, TargetError: "target", LayerError: "layer", UnsuitableModelError: "method"}
    assert there.value.field in (fields.get(kind, "image"), None if kind is UnreadablePictureError else ...)


def test_errors_of_models_and_of_requests(client, address):
    with pytest.raises(ModelError, match="Near matches: resnet50"):
        client.explain(CAT, model="resnet5O")
    with pytest.raises(FileNotFoundError):
        client.explain("nowhere.png")
    with pytest.raises(OptionError, match=r"No method has an option 'format'.* result\.save\(path\), whose suffix"):
        client.explain(CAT, format="png")
    for name in ("colormap", "colourmap"):
        with pytest.raises(OptionError, match=rf"'{name}'\. .* result\.save\(path, colormap=\.\.\.\)\.") as caught:
            client.explain(CAT, **{name: "viridis"})
        assert caught.value.field == name
        with pytest.raises(OptionError, match=r"save\(path, colormap=\.\.\.\)"):
            client.intervene(CAT, [{"op": "zero", "layer": "bn2"}], **{name: "viridis"})
    with pytest.raises(OptionError, match="Near matches: samples"):
        client.explain(CAT, method="smoothgrad", sampels=3)
    with pytest.raises(TargetError, match="by their names and masks"):
        client.explain(CAT, target=lambda logits: logits)
    with pytest.raises(LayerError, match="by their dotted paths"):
        client.explain(CAT, layer=object())
    with pytest.raises(NotFoundError, match="does not exist"):
        Client(f"{address}/elsewhere").methods()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        Client("http://127.0.0.1:1").methods()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        Client("http://127.0.0.1:1/é").methods()
    with pytest.raises(OptionError, match="not a service address"):
        Client("localhost:8000")
    with pytest.raises(OptionError, match="can be written as JSON"):
        client.explain(CAT, "smoothgrad", samples=object())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed_so_that_keys_stay(status):
    visits = []

    @Request.application
    def other(request):
        visits.append(request.method)
        return Response('{"methods": [], "predictions": []}')

    with live(other) as there, live(Response(status=status, headers={"Location": there})) as url:
        client = Client(url, key="secret")
        for ask in (client.methods, lambda: client.predict(b"picture")):
            with pytest.raises(UnreachableError, match=f"redirect to {there}"):
                ask()
    assert visits == []


PROBLEM = {"type": "urn:seewhy:problem:overloaded", "detail": "Try again."}
FOREIGN = {
    "an object": Response("{}"),
    "a list": Response("[]"),
    "rows of another form": Response('{"methods": ["a"], "models": {"a": 1}, "predictions": [1]}'),
    "no JSON": Response("<html>"),
    "no text": Response(b"\xff"),
    "nothing": Response(status=204),
    "an error that is no JSON": Response("<html>", 502),
    "a broken problem": Response("{", 503, mimetype="application/problem+json"),
    "a problem of another service": Response('{"title": "No."}', 503, mimetype="application/problem+json"),
    "a problem whose type is a number": Response('{"type": 7, "detail": "No."}', 503),
    "a problem of another type": Response('{"type": "about:blank", "detail": "No."}', 503),
    "a broken redirect": Response(status=302, headers={"Location": "http://[/"}),
    "half a body": Response("{", headers={"Content-Length": "9"}),
    "half an error": Response("{", 503, {"Content-Length": "9"}, mimetype="application/problem+json"),
}


@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_service_is_named_so(answer):
    with live(answer) as url:
        client = Client(url)
        asks = (client.models, client.methods, lambda: client.predict(b"picture"), lambda: client.explain(b"picture"))
        for ask in (*asks, lambda: client.compare(b"picture", ["gradcam"])):
            with pytest.raises(UnreachableError, match=f"{url} (answered|cannot be reached)"):
                ask()


def test_a_date_to_retry_after_is_passed_over():
    error = exception_of(PROBLEM, retry_after="Wed, 21 Oct 2026 07:28:00 GMT")
    assert error.retry_after == RETRY_AFTER


@pytest.mark.parametrize("key", ["secret\n", "sécret", "ключ"])
def test_keys_that_no_header_can_carry_are_refused(key):
    with pytest.raises(OptionError, match="API key") as caught:
        Client("http://127.0.0.1:1", key=key)
    assert caught.value.field == "key"
    assert key not in str(caught.value)


def test_options_may_be_scalars_of_numpy(client):
    two, three = np.int64(2), np.int64(3)
    numbers = {"top": two, "against": np.int64(0), "samples": three, "noise": np.float32(0.25)}
    rows = client.explain(CAT, "smoothgrad", **numbers)
    assert [row.target.label for row in rows] == ["tiger cat", "Egyptian cat"]
    assert rows[0].against.index == 0
    assert len(client.predict(CAT, top=two)) == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("overloaded", OverloadedError),
        ("out-of-memory", OutOfMemoryError),
        ("bad-edit", OptionError),
        ("model-failed", ExplainerError),
        ("method-not-allowed", ServiceError),
        ("of-the-future", ServiceError),
    ],
)
def test_a_problem_has_an_exception(code, kind):
    error = exception_of({"type": f"urn:seewhy:problem:{code}", "detail": "Try again."}, retry_after="7")
    assert type(error) is kind
    assert str(error) == "Try again."
    assert getattr(error, "retry_after", 7) == 7


def test_each_kind_of_problem_becomes_an_exception_of_its_code():
    for code in {kind.code for kind in KINDS.values()} - {"bad-edit"}:  # which is one of options
        fault = {"field": "layer", "message": "No."}
        error = exception_of({"type": f"urn:seewhy:problem:{code}", "detail": "No.", "errors": [fault]})
        assert kind_of(error).code == code
        if not isinstance(error, OverloadedError | ModelError):  # which are about no field
            assert error.field == "layer"


def test_a_key_is_sent(app_of, tmp_path):
    secret, line = new_key("alice")
    (tmp_path / "keys.toml").write_text(line)
    with live(app_of(api_keys=tmp_path / "keys.toml")) as url:
        assert "gradcam" in Client(url, key=secret).methods()
        with pytest.raises(KeyRequiredError, match="Authorization: Bearer KEY"):
            Client(url).methods()


def test_predictions_of_each_task_are_named_and_read_as_in_the_library():
    for prediction in (
        ValuePrediction(1, "age", 41.23, "years"),
        ValuePrediction(1, "age", 41.23, direction="down"),
        RegionPrediction(3, "cat", 0.2, 1.5),
        BoxPrediction(2, "dog", 4, 0.9, 2.0, (1.0, 2.0, 3.0, 4.0), "score", 2.0),
        BoxPrediction(2, "dog", None, 0.0002, 2.0, (1.0, 2.0, 3.0, 4.0), "x1", 1.0),
    ):
        there = RemotePrediction(vars(prediction))
        assert (there.name, there.text, there.probability) == (prediction.name, prediction.text, prediction.probability)


PROGRAM = """
import sys
from seewhy import Client

url, picture, folder = sys.argv[1:]
client = Client(url)
result = client.explain(picture, "gradcam")
for suffix in ("png", "npz", "json", "html"):
    result.save(f"{folder}/out.{suffix}")
result._repr_png_()
client.compare(picture, ["gradcam", "saliency"]).save(f"{folder}/both.png")
client.predict(picture), client.methods(), client.models("embedded")
client.trace(picture, layers="bn2"), client.similar(picture, picture).overlay()
client.evaluate([picture], "random", "sparseness")
print(sorted({"torch", "torchvision", "timm", "flask", "pydantic"} & {*sys.modules}))
"""


def test_it_imports_no_pytorch(address, tmp_path):
    command = [sys.executable, "-c", PROGRAM, address, CAT, tmp_path]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "[]\n"
