"""Python's `save` writes what the command line writes."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import squeezenet1_1

from seewhy import compare, explain, explain_many, intervene, load_model
from seewhy.explainers.errors import OptionError
from tests.app.conftest import EXAMPLES
from tests.app.serving import declare
from tests.app.test_report import record_of

CAT = EXAMPLES / "cat.png"


def command_of(page):
    """Return the words of a report's command, without the picture."""
    return sorted(shlex.split(record_of(page)["record"]["command"]))


@pytest.fixture(params=[(["layercam"], {"target": "tabby", "proof": "full"}), (["gradcam", "saliency"], {})])
def files(request, lite0, run, tmp_path):
    """Return the files of the command line and of Python by suffix."""
    methods, question = request.param
    result = (
        explain(lite0, CAT, *methods, **question) if len(methods) == 1 else compare(lite0, CAT, methods, **question)
    )
    flags = [f"--{name}={value}" for name, value in {"method": ",".join(methods), **question}.items()]
    pairs = {}
    for suffix, further in ((".json", ["--values", "true"]), (".npz", []), (".html", [])):
        there = tmp_path / f"there{suffix}"
        answer = run("explain", CAT, *flags, *further, "-o", there)
        assert answer.exit_code == 0, answer.output
        pairs[suffix] = there, result.save(tmp_path / f"here{suffix}")
    return pairs


def assert_alike(here, there, place=""):
    assert type(here) is type(there), place
    if isinstance(there, dict):
        assert here.keys() == there.keys(), place
        for name in there:
            assert_alike(here[name], there[name], f"{place}/{name}")
    elif isinstance(there, list):
        assert len(here) == len(there), place
        for number, part in enumerate(there):
            assert_alike(here[number], part, f"{place}/{number}")
    elif isinstance(there, float):
        assert here == pytest.approx(there, abs=2e-3), place
    elif not place.endswith(("overlay", "created", "command", "sentence")):
        assert here == there, place


def test_files_are_those_of_the_command_line(files):
    (there, here) = (json.loads(path.read_text()) for path in files[".json"])
    del there["timings_ms"]
    assert_alike(here, there)

    with np.load(files[".npz"][0]) as there, np.load(files[".npz"][1]) as here:
        assert here.files == there.files
        for name in there.files:
            if there[name].dtype.kind == "f":
                np.testing.assert_allclose(here[name], there[name], atol=2e-3 * np.abs(there[name]).max(), err_msg=name)
            elif name != "proofs":  # whose numbers are rounded too
                assert here[name].tolist() == there[name].tolist()

    there, here = (path.read_text() for path in files[".html"])
    assert re.findall("<h2>.*</h2>", here) == re.findall("<h2>.*</h2>", there)
    assert_alike(record_of(here)["record"], record_of(there)["record"])


def test_the_command_of_a_report_repeats_the_maps(lite0, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = explain(lite0, CAT, "smoothgrad", "tabby", against="tiger cat", samples=2, sign="signed", proof=True)
    words = shlex.split(record_of(result.save("why.html").read_text())["record"]["command"])
    answer = run(*(CAT if word == "PICTURE" else word for word in words[1:]))
    assert answer.exit_code == 0, answer.output
    assert "--option=samples=2" in words
    with np.load("maps.npz") as file:
        np.testing.assert_allclose(file["maps"][0], result.map, atol=1e-3 * np.abs(result.map).max())


@pytest.mark.parametrize("methods", [["layercam"], ["gradcam", "saliency"]], ids=" and ".join)
def test_the_command_of_a_report_names_the_layer_as_the_command_line_does(methods, lite0, run, tmp_path):
    here = compare(lite0, CAT, methods, "tabby", layer="blocks.4").save(tmp_path / "here.html").read_text()
    flags = ["--method", ",".join(methods), "--target=tabby", "--layer=blocks.4"]
    assert run("explain", CAT, *flags, "-o", tmp_path / "there.html").exit_code == 0
    there = command_of((tmp_path / "there.html").read_text())
    words = ["seewhy", "explain", "PICTURE", "--model=efficientnet_lite0", *(f"--method={name}" for name in methods)]
    assert command_of(here) == sorted([*words, "--target=281", "--layer=blocks.4", "--output=maps.npz"])
    assert {word for word in there if word.startswith(("--layer", "--method"))} <= set(command_of(here))


def test_the_command_of_a_report_has_the_precision(lite0, tmp_path):
    result = explain(lite0, CAT)
    origin = replace(result.origin, model=replace(result.origin.model, precision="bfloat16"))
    page = replace(result, origin=origin).save(tmp_path / "why.html").read_text()
    assert "SEEWHY_PRECISION=bfloat16" in command_of(page)


@pytest.mark.slow
def test_the_command_of_a_report_finds_a_custom_model(lite0, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    source = "from functools import partial\nfrom torchvision.models import squeezenet1_1\n"
    (tmp_path / "code" / "our_code.py").write_text(f"{source}net = partial(squeezenet1_1, num_classes=3)")
    monkeypatch.syspath_prepend(tmp_path / "code")
    torch.save(squeezenet1_1(weights=None, num_classes=3).state_dict(), tmp_path / "w.pth")
    monkeypatch.setenv("SEEWHY_MODELS", str(declare(tmp_path, "our_code:net", input_size=64)))
    result = explain(load_model("mine"), CAT)
    monkeypatch.delenv("SEEWHY_MODELS")
    page = result.save(tmp_path / "why.html").read_text()
    told = re.sub("<.*?>", "", page)
    assert "stands for the file with the digest above, MODELS for the models file and FOLDER for the folder of" in told
    command = record_of(page)["record"]["command"]
    path = os.pathsep.join([str(tmp_path / "code"), *sys.path])
    for word, value in {"PICTURE": CAT, "=MODELS": f"={tmp_path / 'models.toml'}", "FOLDER": path}.items():
        command = command.replace(word, str(value))
    command = command.replace(" seewhy ", f" {sys.executable} -m seewhy ")
    answer = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    with np.load(tmp_path / "maps.npz") as file:
        np.testing.assert_allclose(file["maps"][0], result.map, atol=1e-3 * np.abs(result.map).max())
    page = explain(lite0, CAT).save(tmp_path / "why.html").read_text()
    assert not {"MODELS", "FOLDER"} & {*re.findall(r"\w+", page)}


def test_the_command_of_a_report_needs_no_folder_for_a_known_architecture(tmp_path, monkeypatch):
    torch.save(squeezenet1_1(weights=None, num_classes=3).state_dict(), tmp_path / "w.pth")
    monkeypatch.setenv("SEEWHY_MODELS", str(declare(tmp_path, "squeezenet1_1", input_size=64)))
    page = explain(load_model("mine"), CAT).save(tmp_path / "why.html").read_text()
    assert record_of(page)["record"]["command"].startswith("SEEWHY_MODELS=MODELS seewhy ")
    assert "digest above and MODELS for the models file." in re.sub("<.*?>", "", page)


def test_the_command_of_a_comparison_leaves_each_method_its_defaults(lite0, tmp_path):
    methods = ["gradcam", "saliency"]  # whose defaults of `sign` differ
    for options, expected in (({}, []), ({"sign": "absolute"}, ["--option=sign=absolute"])):
        page = compare(lite0, CAT, methods, **options).save(tmp_path / "both.html").read_text()
        words = shlex.split(record_of(page)["record"]["command"])
        assert [word for word in words if word.startswith("--option")] == expected


def test_a_report_says_only_what_it_knows(lite0, tmp_path):
    picture = Image.open(CAT).convert("RGB")
    drawn = explain(lite0, picture, target=lambda logits: logits[:, 281] - logits[:, 282])
    page = drawn.save(tmp_path / "why.html").read_text()
    record = record_of(page)["record"]
    assert record["picture"] == {"width": 451, "height": 300}
    assert "command" not in record
    for source in (picture, np.asarray(picture), lite0.preprocess(picture)):
        page = explain(lite0, source).save(tmp_path / "why.html").read_text()
        assert "command" not in record_of(page)["record"]
    assert "Picture, SHA-256" not in page
    edited = intervene(lite0, CAT, [{"layer": "bn2", "op": "zero", "channels": [3]}])
    pages = [side.save(tmp_path / "side.html").read_text() for side in (edited.before, edited.after)]
    assert ["command" in record_of(page)["record"] for page in pages] == [True, False]


def test_many_pictures_keep_their_own_logits(lite0):
    pictures = [CAT, EXAMPLES / "rocket.png"]
    for picture, result in zip(pictures, explain_many(lite0, pictures), strict=True):
        np.testing.assert_allclose(result.arrays()["logits"], explain(lite0, picture).arrays()["logits"], atol=0.05)
        assert result.origin.outputs.base.untyped_storage().nbytes() == 4 * 1000  # not those of the batch
        assert result.origin.file.bytes == picture.stat().st_size


def test_the_style_of_a_document_is_fixed(lite0, tmp_path):
    with pytest.raises(OptionError, match=r"A \.html file .* leave 'view' out") as caught:
        explain(lite0, CAT).save(tmp_path / "why.html", view="heatmap")
    assert caught.value.field == "view"
