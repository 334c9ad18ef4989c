import json
import logging
import re
import socket
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy import explain
from seewhy.app.cli import main, picture_answers
from seewhy.app.cli import run as cli_run
from seewhy.app.cli.equations import readable
from seewhy.app.cli.run import open_service, watch
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.server import start
from seewhy.app.settings import Settings
from seewhy.explainers.methods.catalogue import METHODS
from tests.app.conftest import EXAMPLES
from tests.app.serving import declare
from tests.waiting import GUARD


def test_explain_writes_the_overlay(run, tmp_path):
    result = run("explain", EXAMPLES / "cat.png", "-o", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    assert "tiger cat" in result.output
    with Image.open(tmp_path / "out.png") as drawing:
        assert drawing.size == (451, 300)


@pytest.mark.parametrize("name", ["cat.png", "cat.jpg", "cat.webp", "cat.npz"])
def test_the_library_saves_what_the_command_writes(run, tmp_path, service, name):
    model = service.models.model(None, Deadline.after(GUARD))
    library = explain(model, EXAMPLES / "cat.png", "layercam").save(tmp_path / f"library-{name}")
    command = tmp_path / name
    assert run("explain", EXAMPLES / "cat.png", "--method", "layercam", "-o", command).exit_code == 0
    if name.endswith("npz"):
        with np.load(library) as here, np.load(command) as there:
            assert there.keys() >= here.keys() >= {"heatmaps", "maps", "targets", "methods"}
            assert here["targets"].tolist() == there["targets"].tolist()
            for part in ("heatmaps", "maps"):
                np.testing.assert_allclose(here[part], there[part], atol=1e-4 * there[part].max())
        return
    with Image.open(library) as here, Image.open(command) as there:
        assert here.format == there.format == {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}[name.partition(".")[2]]
        assert np.abs(np.asarray(here, int) - np.asarray(there, int)).max() <= 2
    if not name.endswith("png"):
        assert library.stat().st_size == pytest.approx(command.stat().st_size, rel=0.01)


def test_options_of_methods_are_options_of_commands(run, tmp_path):
    out = tmp_path / "out.json"
    line = (
        "--method",
        "integrated-gradients",
        "--steps",
        2,
        "--baseline",
        "given",
        "--sign",
        "signed",
        "--target",
        "tabby",
    )
    result = run("explain", EXAMPLES / "cat.png", "-o", out, *line, "--value", 1, "--value", 2, "--option", "value=3")
    assert result.exit_code == 0, result.output
    answer = json.loads(out.read_text())
    assert answer["explanations"][0]["target"]["label"] == "tabby"
    assert answer["method"]["options"] == {
        "sign": "signed",
        "smooth": "none",
        "steps": 2,
        "baseline": "given",
        "value": [3, 1, 2],
    }


@pytest.mark.parametrize(
    ("options", "members"), [([], set()), (["--values"], {"values"}), (["--values", "map"], {"map"})]
)
def test_values_are_those_of_the_heatmap_or_of_the_map(run, tmp_path, options, members):
    out = tmp_path / "out.json"
    assert run("explain", EXAMPLES / "cat.png", "-o", out, *options).exit_code == 0
    (explanation,) = json.loads(out.read_text())["explanations"]
    assert {"values", "map"} & {name for name, value in explanation["heatmap"].items() if value} == members


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([EXAMPLES / "cat.png", "--model", "resnet50"], "SEEWHY_WEIGHTS_DIR"),
        ([EXAMPLES / "cat.png", "--option", "nonsense"], "NAME=VALUE"),
        (["nowhere.png"], "No such file"),
    ],
)
def test_mistakes_are_one_line_not_a_traceback(run, tmp_path, arguments, message):
    result = run("explain", *arguments, "-o", tmp_path / "o.png")
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "o.png").exists()


def test_a_contrast_with_an_unknown_class_is_about_no_single_picture(run, tmp_path):
    result = run("explain", EXAMPLES, "-o", tmp_path, "--against", "dragon")
    assert (result.exit_code, result.output.count("has no class 'dragon'")) == (2, 1)
    assert "cat.png" not in result.output


def test_predict(run):
    result = run("predict", EXAMPLES / "coffee.png", "--top", 2)
    assert result.exit_code == 0
    assert "espresso" in result.output
    name, *rows = result.output.strip().splitlines()
    assert (name, len(rows)) == (f"{EXAMPLES / 'coffee.png'} (efficientnet_lite0):", 2)
    assert "espresso" in run("predict", "-", input=(EXAMPLES / "coffee.png").read_bytes()).stdout
    other = run("predict", EXAMPLES / "coffee.png", env={"SEEWHY_DEFAULT_MODEL": "mobilenet_v2"})
    assert other.output.startswith(f"{EXAMPLES / 'coffee.png'} (mobilenet_v2):\n")


def test_predictions_as_json_are_a_line_for_each_picture(run, client):
    pictures = [EXAMPLES / "coffee.png", EXAMPLES / "cat.png"]
    result = run("predict", *pictures, "--top", 2, "--format", "json")
    assert result.exit_code == 0
    for line, picture in zip(result.stdout.splitlines(), pictures, strict=True):
        answer = json.loads(line)
        assert answer.pop("picture") == str(picture)
        response = client.post("/predict?top=2", data=picture.read_bytes(), content_type="image/png")
        expected = response.get_json()
        assert answer.keys() == expected.keys()
        assert [row["label"] for row in answer["predictions"]] == [row["label"] for row in expected["predictions"]]


def test_a_quiet_command_prints_errors_and_results_only(run, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_text("no picture")
    result = run("explain", EXAMPLES / "cat.png", bad, "-o", f"{tmp_path}/maps/", "-q")
    assert result.exit_code == 1
    assert (tmp_path / "maps" / "cat.seewhy.png").exists()
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {bad}: ")
    assert "espresso" in run("predict", EXAMPLES / "coffee.png", "-q").stdout
    before = run("-q", "explain", EXAMPLES / "cat.png", "-o", tmp_path / "cat.png")
    assert (before.exit_code, before.output) == (0, "")
    assert run("segment", EXAMPLES / "cat.png", "-q").exit_code == 2  # no segmenter


def test_a_verbose_command_prints_times_to_the_standard_error(run, tmp_path):
    result = run("explain", EXAMPLES / "cat.png", "-o", tmp_path / "cat.png", "-v")
    assert result.stdout.count("\n") == 1
    assert "efficientnet_lite0: weights imagenet, float32 on cpu, loaded in" in result.stderr
    assert re.search(r"cat.png: decode \d+ ms, queue \d+ ms, explain \d+ ms, render \d+ ms", result.stderr)
    before = run("-v", "explain", EXAMPLES / "cat.png", "-o", tmp_path / "cat.png", "-v")
    assert before.stderr.count("loaded in") == 1
    assert run("explain", EXAMPLES / "cat.png", "-o", tmp_path / "cat.png").stderr == ""  # nothing of it remains
    assert not logging.getLogger("seewhy").isEnabledFor(logging.INFO)


class Slow:
    """A ticket whose work takes three glances."""

    def __init__(self):
        self.shares = [None, 0.25, 0.5, 1.0]
        self.share = None

    def wait(self, seconds):
        self.share = self.shares.pop(0)
        return not self.shares


def test_the_progress_of_one_picture_is_that_of_its_passes(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(cli_run, "_SHORT", 0)
    monkeypatch.setattr(cli_run, "tqdm", partial(cli_run.tqdm, mininterval=0))
    watch(Slow())
    drawn = [int(share) for share in re.findall(r"(\d+)%", capsys.readouterr().err)]
    assert list(dict.fromkeys(drawn)) == [0, 25, 50]


@pytest.mark.parametrize(
    ("arguments", "watched"), [([], 1), (["-q"], 0), (["-v"], 0), ([EXAMPLES / "coffee.png", "-o", "maps/"], 0)]
)
def test_the_passes_of_a_single_picture_are_shown(run, tmp_path, monkeypatch, arguments, watched):
    tickets = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(picture_answers, "watch", tickets.append)
    assert run("explain", EXAMPLES / "cat.png", *arguments).exit_code == 0
    assert len(tickets) == watched


EDITS = '[{"layer": "bn2", "op": "zero", "channels": [3]}]'


@pytest.mark.parametrize(
    ("command", "arguments"), [("trace", []), ("capture", ["--layer", "bn2"]), ("intervene", ["--edits", EDITS])]
)
@pytest.mark.parametrize(("quiet", "watched"), [([], 1), (["-q"], 0)])
def test_the_passes_of_commands_about_hooks_are_shown(run, tmp_path, monkeypatch, command, arguments, quiet, watched):
    tickets = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_run, "watch", tickets.append)
    result = run(command, EXAMPLES / "cat.png", *arguments, *quiet, "--format", "json")
    assert result.exit_code == 0, result.output
    assert len(tickets) == watched


def test_models_layers_methods(run):
    assert "efficientnet_lite0" in run("models", "--available").output
    assert "resnet50" not in run("models", "--available").output
    assert "resnet50" in run("models", "--source", "torchvision").output
    assert "*layer4" in run("layers", "resnet18").output
    assert "*layer4" in run("layers", "--model", "resnet18").output
    for named in ([], ["resnet18", "--model", "resnet18"]):
        assert "Name one model, as in `seewhy layers efficientnet_lite0`." in run("layers", *named).output
    assert "*encoder.layers.encoder_layer_11.ln_1" in run("layers", "vit_b_16").output
    assert "arxiv.org/abs/1610.02391" in run("methods").output


def test_equations_are_text_without_commands_and_braces():
    equations = {name: readable(method.equation) for name, method in METHODS.items()}
    assert equations["gradcam"] == "L^c = ReLU(Σ_k α_k^c A^k),\nα_k^c = 1/(hw) Σ_(i,j) (∂y^c)/(∂A^k_ij)"
    assert "G = 1/16 (1 2 1 ; 2 4 2 ; 1 2 1)" in equations["recipro-cam"]
    assert equations["occlusion"].startswith("M_ij = 1/(|{P : (i,j) ∈ P}|)")
    assert [name for name, text in equations.items() if "\\" in text or ("{" in text and name != "occlusion")] == []


def test_defaults_of_options_are_words(run):
    assert "  layer [string, several] default the model's default layer: Dotted path" in run("methods", "votes").output
    assert "  layer [string, several]: Dotted path" in run("methods", "excitation-backprop").output
    assert "  value [number, several] default none: Colour" in run("methods", "guided-ig").output


def test_labels_of_a_model_are_listed(run):
    lines = run("models", "efficientnet_lite0").output.splitlines()
    assert (len(lines), lines[0].split(), lines[282]) == (1001, ["INDEX", "LABEL"], "281    tabby")
    assert "Near matches" in run("models", "resnet5O").output
    result = run("models", "resnet50", "--available")
    assert (result.exit_code, "not both" in result.output) == (2, True)


def test_one_method_is_described_with_its_equation_and_paper(run):
    text = run("methods", "SmoothGrad").output
    assert "    M_ij = max_c | 1/n Σ_(k=1)^n (∂y^t)/(∂x_cij) |_(x + ε_k) |,\n    ε_k ~ N(0, σ^2),\n" in text
    assert "arxiv.org/abs/1706.03825" in text
    assert "forwards: 1 + samples; backwards: samples" in text
    assert "samples [integer] default 25: Number of noisy copies" in text
    assert "gradcam" not in text
    result = run("methods", "smothgrad")
    assert result.exit_code == 2
    assert "Near matches: smoothgrad" in result.output


def test_settings_prints_every_variable(run):
    output = run("settings").output
    for variable, *_ in Settings().rows():
        assert variable in output


def test_bad_settings_are_told_by_their_variables(run):
    for command in ("settings", "serve", "models", "methods"):
        result = run(command, env={"SEEWHY_WORKERS": "0"})
        assert result.exit_code == 2
        assert result.output == "Error: SEEWHY_WORKERS: It must be greater than or equal to 1.\n"
    result = run("serve", "--workers", "0", env={"SEEWHY_WORKERS": "2"})
    assert result.output == "Error: --workers: It must be greater than or equal to 1.\n"
    result = run("serve", env={"SEEWHY_DEFAULT_MODEL": "efficientnet_lit0", "SEEWHY_PORT": "0"})
    assert result.output.startswith("Error: SEEWHY_DEFAULT_MODEL: There is no model 'efficientnet_lit0'. Near matches")


def test_a_models_file_is_checked_before_anything_is_served(run, monkeypatch, tmp_path):
    file = tmp_path / "models.toml"
    table = '[models.mine]\narchitecture = "not_here:net"\nlabels = ["a", "b"]\ninput_size = 64\n'
    for effect in ("share_processors", "share_figures", "raise_file_limit"):
        monkeypatch.setattr(start, effect, lambda *_: None)
    monkeypatch.setattr(start, "_share_memory", lambda: sys.exit("The service would start now."))
    file.write_text(table)
    result = run("serve", "--port", 0, env={"SEEWHY_MODELS": str(file)})
    assert result.output == "Error: [models.mine], weights: A value is required.\n"
    assert result.exit_code == 2
    file.write_text(f'{table}weights = "w.pth"\n')
    result = run("serve", "--port", 0, env={"SEEWHY_MODELS": str(file)})
    missing = "[models.mine]: No module named 'not_here': put its folder on Python's"
    assert result.stderr.startswith(f"Warning: {missing}")
    result = run("serve", "--port", 0, env={"SEEWHY_MODELS": str(file), "SEEWHY_DEFAULT_MODEL": "mine"})
    assert (result.exit_code, result.output.startswith(f"Error: {missing}")) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "variables", "status"),
    [
        (["models", "nope"], {}, 2),
        (["serve", "--port", 0], {"SEEWHY_DEFAULT_MODEL": "nope"}, 2),
        (["serve", "--nope"], {}, 2),
        (["models"], {"SEEWHY_MODELS": "nowhere.toml"}, 2),
        (["predict", EXAMPLES / "cat.png"], {"SEEWHY_MODELS": "mine.toml"}, 2),
        (["predict", EXAMPLES / "cat.png", "--model", "resnet50"], {}, 1),
        (["predict", "nowhere.png"], {}, 1),
    ],
)
def test_bad_input_ends_with_two_and_failures_with_one(run, tmp_path, monkeypatch, arguments, variables, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[models.mine]\nunknown = 3\n")
    result = run(*arguments, env=variables)
    assert (result.exit_code, "Error" in result.output) == (status, True), result.output


def test_the_path_of_missing_weights_is_printed_and_not_sent_to_clients(run, tmp_path, app_of):
    models = declare(tmp_path)
    result = run("predict", EXAMPLES / "cat.png", "--model", "mine", env={"SEEWHY_MODELS": str(models)})
    assert result.exit_code == 1
    assert result.output.endswith(f"let this process read it. Looked for: {tmp_path / 'w.pth'}\n")
    picture = (EXAMPLES / "cat.png").read_bytes()
    answer = app_of(models=models).test_client().post("/predict?model=mine", data=picture, content_type="image/png")
    assert (answer.status_code, str(tmp_path) in answer.text) == (503, False)


def test_misspelt_settings_are_warned_of(run):
    warning = "Warning: Unknown setting SEEWHY_WORKER (ignored). Did you mean SEEWHY_WORKERS?"
    for command in (["settings"], ["predict", EXAMPLES / "cat.png", "--top", 1]):
        result = run(*command, env={"SEEWHY_WORKER": "2"})
        assert result.exit_code == 0
        assert result.stderr.startswith(warning)
        assert result.stderr.count("Warning") == 1
        assert "Warning" not in result.stdout
        assert run("-q", *command, env={"SEEWHY_WORKER": "2"}).stderr == ""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # for this one must end
        result = run("serve", "--port", listener.getsockname()[1], env={"SEEWHY_WORKER": "2"})
    assert result.stderr.startswith(warning)
    assert "is in use" in result.stderr


def test_broken_models_file_is_one_line(run, tmp_path):
    file = Path(tmp_path / "models.toml")
    file.write_text("[models.mine]\narchitecture = 'resnet18'\n")
    result = run("models", env={"SEEWHY_MODELS": str(file)})
    assert result.exit_code == 2
    assert result.output == "Error: [models.mine], weights: A value is required.\n"


def test_trace(run, tmp_path):
    result = run("trace", EXAMPLES / "cat.png", "--layer", "bn2", "--target", "tabby", "-o", tmp_path / "t.json")
    assert result.exit_code == 0, result.output
    assert "tabby 17" in result.output
    assert {event["path"] for event in json.loads((tmp_path / "t.json").read_text())["events"]} == {"bn2"}
    assert run("trace", EXAMPLES / "cat.png", "--layer", "bn2", "-o", tmp_path / "t.svg").exit_code == 0
    assert "<svg" in (tmp_path / "t.svg").read_text()


def test_capture(run, tmp_path):
    arguments = ("capture", EXAMPLES / "cat.png", "--layer", "bn2", "--kind", "grad_output")
    assert "1 tensor ->" in run(*arguments, "-o", tmp_path / "c.npz").output
    with np.load(tmp_path / "c.npz") as arrays:
        assert arrays["bn2/grad_output/0"].shape == (1, 1280, 7, 7)
    options = ("--top", "4", "--scale", "0,6", "-o", tmp_path / "c.png")
    result = run("capture", EXAMPLES / "cat.png", "--layer", "bn2", *options)
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "c.png") as drawing:
        assert drawing.size > (300, 200)


def test_a_capture_without_a_layer_says_what_lists_them(run):
    result = run("capture", EXAMPLES / "cat.png")
    assert result.exit_code == 2
    assert "Missing option '--layer'. `seewhy layers NAME` lists the model's layers." in result.output


@pytest.mark.slow
def test_intervene(run, tmp_path):
    edit = ("--edit", '{"layer": "bn2", "op": "zero", "channels": [112]}', "--target", "tabby")
    out = tmp_path / "i.json"
    result = run("intervene", EXAMPLES / "cat.png", *edit, "--option", "sign=signed", "-o", out)
    assert result.exit_code == 0, result.output
    answer = json.loads(out.read_text())
    assert answer["method"] == {"name": "gradcam", "options": {"sign": "signed", "smooth": "none"}}
    assert answer["target"]["logit"] == answer["before"]["target"]["logit"] > answer["after"]["target"]["logit"]
    result = run("intervene", EXAMPLES / "cat.png", *edit, "--each-channel", "-o", out)
    assert "1 channel; channel 112 (" in result.output, result.output
    assert [channel["channel"] for channel in json.loads(out.read_text())["channels"]] == [112]
    table = run("intervene", EXAMPLES / "cat.png", *edit, "--each-channel", "-o", tmp_path / "i.csv")
    assert table.exit_code == 0, table.output
    header, row = (tmp_path / "i.csv").read_text().splitlines()
    assert (header.split(",")[0], row.split(",")[0]) == ("channel", "112")
    piped = run("intervene", EXAMPLES / "cat.png", *edit, "--each-channel", "-o", "-", "--format", "csv")
    assert piped.stdout_bytes == (tmp_path / "i.csv").read_bytes()
    (tmp_path / "edits.json").write_text('[{"layer": "bn2", "op": "negate"}]')
    result = run("intervene", EXAMPLES / "cat.png", "--edits", tmp_path / "edits.json", "-o", out)
    assert result.exit_code == 0, result.output
    answer = json.loads(out.read_text())
    assert [edit["op"] for edit in answer["edits"]] == ["negate"]
    result = run("intervene", EXAMPLES / "cat.png", "--edits", (tmp_path / "edits.json").read_text(), "-o", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["after"] == answer["after"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--edit"),
        (("--edit", "{"), "not JSON"),
        (("--edits", "[{]"), "not JSON"),
        (("--edits", "nowhere.json"), "No such file"),
        (("--edit", '{"layer": "bn2", "op": "swap"}'), "give it as `other`"),
        (("--edit", '{"layer": "bn2", "op": "zero"}', "--other", EXAMPLES / "coffee.png"), "other: Only the op `swap`"),
        (("--edit", '{"layer": "bn2", "op": "zero"}', "--format", "csv"), "add --each-channel"),
        (("--edit", '{"layer": "bn9", "op": "zero"}'), "edits[0].layer: The model has no layer 'bn9'."),
        (("--edit", '{"layer": "bn2", "op": "zero", "channels": [9999]}'), "edits[0].channels: At 'bn2': Channel 9999"),
        (("--edit", '{"layer": "bn2", "op": "zero"}', "--each-channel", "--method", "saliency"), "omit 'method'"),
    ],
)
def test_what_intervene_refuses(run, tmp_path, arguments, message):
    result = run("intervene", EXAMPLES / "cat.png", *arguments, "-o", tmp_path / "o")
    assert result.exit_code != 0
    assert message in result.output
    assert not (tmp_path / "o.png").exists()


@pytest.mark.slow
def test_the_command_does_not_compile_a_model_for_one_picture_and_the_service_does(monkeypatch):
    warmed = []
    monkeypatch.setattr(
        "seewhy.explainers.execution.accelerated.AcceleratedModel.warm", lambda model: warmed.append(model)
    )
    with main.make_context("seewhy", ["settings"]):
        command = open_service(None)
    for service, times in ((command, 0), (Service(Settings()), 1)):
        service.models.model(None, Deadline.after(60))
        service.models.stop()
        assert len(warmed) == times
