"""Reports: what they state, that they load and run nothing, and that the command of one repeats its maps."""

import hashlib
import io
import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

from seewhy.app.answers.report import command
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.settings import Settings
from tests import nets
from tests.app.conftest import EXAMPLES, encoded
from tests.app.serving import declare

CAT = EXAMPLES / "cat.png"


def ask(client, form, **fields):
    return client.post("/explain", data={"image": (io.BytesIO(CAT.read_bytes()), "cat.png"), "format": form, **fields})


def record_of(page):
    (text,) = re.findall(r'<script type="application/ld\+json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_report_states_what_was_explained_by_what_and_of_what(client):
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
    assert "<math" in response.text
    assert "Selvaraju" in response.text
    assert response.text.count('<img src="data:image/png;base64,') == 3


def test_a_report_loads_and_runs_nothing(client):
    response = ask(client, "report")
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
    assert "--proof=true" in record["command"]


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


def test_a_command_names_the_mask_the_device_and_the_precision():
    model = SimpleNamespace(name="net", device=torch.device("cuda"))
    result = SimpleNamespace(model=model, methods=[(SimpleNamespace(name="gradcam"), None)])
    words = command(result, ExplainOptions(), True, Settings(precision="bfloat16")).split()
    assert words[:3] == ["SEEWHY_PRECISION=bfloat16", "seewhy", "explain"]
    assert words[-4:] == ["--mask", "MASK", "--device=cuda", "--output=maps.npz"]


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


def test_the_command_line_writes_reports(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explain", CAT, "--report")
    assert result.exit_code == 0, result.output
    assert record_of((tmp_path / "cat.seewhy.html").read_text())["record"]["model"]["name"] == "efficientnet_lite0"
    result = run("explain", CAT, "-o", "why.html")
    assert result.exit_code == 0, result.output
    assert "<h2>Record</h2>" in (tmp_path / "why.html").read_text()
    result = run("explain", CAT, "--report", "--format", "png")
    assert (result.exit_code, "not both" in result.output) == (2, True)
