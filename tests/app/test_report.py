"""Reports: their contents; they load and run nothing; and the command in a report repeats its maps."""

import hashlib
import io
import json
import re
import shlex
from datetime import datetime
from html import unescape
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

from seewhy.app.answers.report import command
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.settings import Settings
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.percent import percent
from seewhy.explainers.results.report import figures
from seewhy.explainers.trust.proof import Measurement, Proof, Shape, WarningCode
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import WARNINGS
from tests import nets
from tests.app.conftest import EXAMPLES, encoded
from tests.app.serving import declare

CAT = EXAMPLES / "cat.png"


def ask(client, form, **fields):
    return client.post("/explain", data={"image": (io.BytesIO(CAT.read_bytes()), "cat.png"), "format": form, **fields})


def record_of(page):
    (text,) = re.findall(r'<script type="application/ld\+json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_report_states_what_was_explained_by_what_and_loads_and_runs_nothing(client):
    response = ask(client, "report", target=["282", "tabby"], method="gradcam")
    assert response.mimetype == "text/html"
    assert response.headers["X-SeeWhy-Method"] == "gradcam"
    linked = record_of(response.text)
    record = linked["record"]
    assert (linked["@type"], linked["about"]["sha256"]) == ("Report", record["picture"]["sha256"])
    assert record["picture"]["sha256"] == hashlib.sha256(CAT.read_bytes()).hexdigest()
    assert record["model"]["sha256"] == linked["isBasedOn"]["identifier"].removeprefix("sha256:")
    with Image.open(CAT) as picture:
        assert (record["picture"]["width"], record["picture"]["height"]) == picture.size
    assert [part["target"]["index"] for part in record["explanations"]] == [282, 281]
    assert record["methods"][0]["name"] == "gradcam"
    assert {"seewhy", "torch"} <= record["versions"].keys()
    assert not {"overlay", "timings_ms"} & {*record, *record["explanations"][0]}
    assert f"<td>{record['device']} in float32 with OpenVINO</td>" in response.text
    assert record["accelerator"] == "openvino"
    created = datetime.fromisoformat(record["created"])
    assert f"Created on {created.day} {created:%B %Y, %H:%M} UTC, by SeeWhy" in response.text
    assert "<math" in response.text
    assert "Selvaraju" in response.text
    assert response.text.count('<img src="data:image/png;base64,') == 3
    assert response.text.count('<img class="bar" src="data:image/png;base64,') == 2
    for part in record["explanations"]:
        assert (
            f"<p>Bright: evidence for '{part['target']['label']}'. The bar ends at the heatmap's highest"
            in unescape(response.text)
        )
        assert f"<span>0</span><span>{part['heatmap']['max']:.3g}</span>" in response.text
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; img-src data:;")
    assert not re.search(r'(src|href)="(?!data:|https://)', response.text)
    assert not re.search(r"<(link|iframe|object|script(?! type=\"application/ld\+json\"))", response.text)
    assert re.findall(r"@import|url\(", response.text) == []


def test_a_report_gives_the_proof_in_words_and_in_numbers(client):
    response = ask(client, "report", proof="true")
    record = record_of(response.text)["record"]
    proof = record["explanations"][0]["proof"]
    assert f"<strong>Proof: {proof['grade']}.</strong> {escape(proof['sentence'])}" in response.text
    assert proof["faithfulness"]["area"] == 0.25
    assert "The marked part is where the map is highest, 25% of what the model sees." in response.text
    assert "--proof=true" in record["command"]


@pytest.mark.parametrize(
    ("method", "fields", "sentence"),
    [
        ("gradcam", {"against": "tabby"}, "Bright: evidence for 'tiger cat' rather than 'tabby'."),
        ("gradcam", {"sign": "signed"}, "Left: evidence against 'tiger cat'; right: evidence for it."),
        (
            "gradcam",
            {"sign": "signed", "against": "tabby"},
            "Left: evidence for 'tabby'; right: evidence for 'tiger cat'.",
        ),
        ("gradcam", {"sign": "absolute"}, "Bright: matters for 'tiger cat', for or against it."),
        ("eigencam", {}, "Bright: what the model reacts to, whether it is 'tiger cat' or not."),
        ("random", {}, "A control: its colours say nothing about the model."),
    ],
)
def test_a_report_says_what_the_colours_mean(client, method, fields, sentence):
    text = unescape(ask(client, "report", target="tiger cat", method=method, **fields).text)
    whose = "largest value, whatever its sign" if fields.get("sign") == "signed" else "highest value"
    assert f"<p>{sentence} The bar ends at the heatmap's {whose}, in units of the method.</p>" in text
    beyond = unescape(ask(client, "report", target="tiger cat", method=method, scale="robust", **fields).text)
    assert f"<p>{sentence} Values beyond the ends of the bar have the colours of the ends.</p>" in beyond


def rows_of(page, heading):
    (section,) = re.findall(rf"<h2>{heading}.*?</section>", page, re.DOTALL)
    rows = re.findall(r'<th scope="row">(.*?)</th><td(?: colspan="2")?>(.*?)</td>', section, re.DOTALL)
    return {unescape(name): unescape(text) for name, text in rows}


def test_a_report_has_tables_of_figures_and_warnings_and_its_json_ld_too(client):
    page = ask(client, "report", proof="full", target="giant panda", method="gradcam", sign="signed").text
    linked = record_of(page)
    (explanation,), (part,) = linked["record"]["explanations"], linked["hasPart"]
    proof = explanation["proof"]
    rows = rows_of(page, "Proof: giant panda")
    measured = {row["name"]: row["value"] for row in part["variableMeasured"]}
    expected = {
        "Probability with the whole picture": (proof["faithfulness"]["probability"], "%"),
        "Probability with only the marked part": (proof["faithfulness"]["kept"], "%"),
        "Probability without the marked part": (proof["faithfulness"]["dropped"], "%"),
        "Probability without the same shape, rotated by 180°": (proof["faithfulness"]["turned_dropped"], "%"),
        "Score": (proof["faithfulness"]["score"], ".2f"),
        "Rotated and mirrored copies that it beats": (proof["copies"]["beaten"], ".0%"),
        "Comparison maps that it beats": (proof["calibration"]["beats"], ".1%"),
        "Gini coefficient of the map": (proof["shape"]["gini"], ".2f"),
        "Forward passes of the proof": (proof["cost"]["forwards"], "d"),
    }
    assert rows["Grade"] == proof["grade"]
    for name, (value, form) in expected.items():
        text = percent(value) if form == "%" else format(value, form)
        assert (rows[name], measured[name]) == (text, pytest.approx(value)), name
    assert f"{rows['Gini coefficient of the map']}</td><td>0 if the map is even" in page
    assert f"{rows['False alarms at 95%']}</td><td>share of comparison maps that beat 95%" in page
    assert part["abstract"] == proof["sentence"]
    notes = {note["code"]: note["message"] for note in explanation["diagnostics"]}
    comments = {comment["name"]: comment["text"] for comment in part["comment"]}
    assert comments.keys() == {*notes, *proof["warnings"]} >= {"improbable-target"}
    for code, text in comments.items():
        kind = "Warning" if code in proof["warnings"] else "Note"
        assert f'<th scope="row">{kind}</th><td>{escape(text)}</td>' in page
        assert text == notes.get(code, text)


def test_a_report_without_a_proof_has_its_notes_alone(client):
    page = ask(client, "report", target="giant panda", method="gradcam").text
    assert "below chance" in rows_of(page, "Notes: giant panda")["Note"]
    assert "variableMeasured" not in record_of(page)["hasPart"][0]
    assert "<h2>Notes" not in ask(client, "report", method="gradcam").text


def test_figures_of_a_value_are_in_its_units():
    measured = Measurement(0.25, "blur", None, 31.25, 30.0, 12.5, None, 10.0, -0.001)
    sanity = Sanity(-0.001, 0.2, 0.95, 8)
    proof = Proof(None, "", measured, None, None, sanity, Shape(None, 0.5, None), None, (), Passes(2))
    assert [(name, text) for name, _, text, _ in figures(proof)] == [
        ("Share of the picture that is marked", "25%"),
        ("Value with the whole picture", "31.25"),
        ("Value with only the marked part", "30"),
        ("Value without the marked part", "12.5"),
        ("Value with everything hidden", "10"),
        ("Score", "0.00"),
        ("Correlation with the map for shuffled classes", "0.00"),
        ("Correlation with the map of a network with random weights", "0.20"),
        ("Correlation with the map for an unlikely class", "0.95"),
        ("Share of the picture that the model does not see", "50%"),
        ("Forward passes of the proof", "2"),
    ]


def test_each_warning_of_proofs_is_a_sentence_the_same_on_the_page():
    assert WARNINGS.keys() == {*get_args(WarningCode)}
    script = (EXAMPLES.parent / "app" / "web" / "js" / "proof.js").read_text()
    texts = dict(re.findall(r'^  "([a-z-]+)": "(.*)",$', script, re.MULTILINE))
    assert len(texts) == 4
    assert texts.items() <= {code: text.replace("`proof_fill`", "fill") for code, text in WARNINGS.items()}.items()


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "gradcam", "top": "2", "proof": "full"},
        pytest.param(
            {"method": "layercam,gradcam", "layer": "blocks.4", "target": "tabby", "against": "tiger cat"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"method": "integrated-gradients", "steps": "3", "sign": "signed", "target": "282", "scale": "0,1"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_command_of_a_report_repeats_its_maps(client, run, tmp_path, monkeypatch, fields):
    record = record_of(ask(client, "report", **fields).text)["record"]
    words = shlex.split(record["command"])
    assert words[:2] == ["seewhy", "explain"]
    picture = tmp_path / "the picture.png"
    picture.write_bytes(CAT.read_bytes())
    monkeypatch.chdir(tmp_path)
    result = run(*(picture if word == "PICTURE" else word for word in words[1:]))
    assert result.exit_code == 0, result.output
    answer = ask(client, "npz", **fields)
    with np.load("maps.npz") as file:
        repeated = dict(file)
    for name, values in np.load(io.BytesIO(answer.data)).items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(repeated[name], values, atol=1e-4 * np.abs(values).max(), err_msg=name)
        elif name != "proofs":  # whose numbers are rounded too
            assert repeated[name].tolist() == values.tolist()


def test_a_command_names_the_mask_the_device_the_precision_and_the_models_file():
    spec = SimpleNamespace(calibrations=())
    found = ("SEEWHY_MODELS=MODELS",)
    model = SimpleNamespace(name="net", device=torch.device("cuda"), environment=found, calibrations=(), spec=spec)
    result = SimpleNamespace(model=model, methods=[(SimpleNamespace(name="gradcam"), None)])
    words = command(result, ExplainOptions(), True, Settings(precision="bfloat16")).split()
    assert words[:4] == ["SEEWHY_PRECISION=bfloat16", "SEEWHY_MODELS=MODELS", "seewhy", "explain"]
    assert words[-4:] == ["--mask", "MASK", "--device=cuda", "--output=maps.npz"]
    model.calibrations = (object(),)
    assert "--proof-calibration=SCORES" in command(result, ExplainOptions(), True, Settings())
    spec.calibrations = ("scores.json",)  # of the models file
    assert "SCORES" not in command(result, ExplainOptions(), True, Settings())


def test_labels_are_text_in_a_report(app_of, tmp_path):
    label = "</script><script>alert(1)</script>"
    torch.save(nets.seeded(nets.Net).state_dict(), tmp_path / "w.pth")
    client = app_of(models=declare(tmp_path, labels=[label, "b", "c"])).test_client()
    picture = encoded(Image.new("RGB", (32, 32), "red"))
    response = client.post(
        "/explain", data={"image": (io.BytesIO(picture), "x.png"), "model": "mine", "target": "0", "format": "report"}
    )
    assert response.status_code == 200
    assert "alert(1)</script>" not in response.text
    assert record_of(response.text)["record"]["explanations"][0]["target"]["label"] == label


@pytest.mark.parametrize("name", ["part 7 \u00e9.png", "<b>x</b>.png", "a" * 300])
def test_a_report_names_the_picture_as_it_was_sent(client, name):
    def send(name):
        data = {"image": (io.BytesIO(CAT.read_bytes()), name), "format": "report"}
        return client.post("/explain", data=data)

    first, other = send(name), send("other.png")
    assert record_of(first.text)["record"]["picture"]["name"] == name[:255]
    assert f"<figcaption>{escape(name[:255])}, 451 \u00d7 300 pixels</figcaption>" in first.text
    assert first.headers["ETag"] != other.headers["ETag"]
    plain = client.post("/explain?format=report", data=CAT.read_bytes(), content_type="image/png")
    assert "name" not in record_of(plain.text)["record"]["picture"]


def test_the_command_line_writes_reports(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explain", CAT, "--report")
    assert result.exit_code == 0, result.output
    record = record_of((tmp_path / "cat.seewhy.html").read_text())["record"]
    assert (record["model"]["name"], record["picture"]["name"]) == ("efficientnet_lite0", "cat.png")
    result = run("explain", CAT, "-o", "why.html")
    assert result.exit_code == 0, result.output
    assert "<h2>Record</h2>" in (tmp_path / "why.html").read_text()
    run("explain", CAT, "--method", "votes-detail", "-o", "votes.html")
    text = (tmp_path / "votes.html").read_text()
    assert all(title in text for title in ("LayerCAM: Exploring", "A Simple Saliency Method", "Refine your CAM"))
    result = run("explain", CAT, "--report", "--format", "png")
    assert (result.exit_code, "not both" in result.output) == (2, True)
    result = run("explain", CAT, "--report", "why.html")
    assert (result.exit_code, "--report takes no file; write -o why.html." in result.output) == (2, True)
