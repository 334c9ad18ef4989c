"""Help and completion are quick, and their names are the real ones."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from seewhy.app.cli import main, names
from seewhy.app.cli.options import fields
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import (
    CaptureOptions,
    DrawingOptions,
    EvaluateOptions,
    ExplainOptions,
    MethodOptions,
    PredictOptions,
    SegmentOptions,
    SimilarOptions,
    TraceOptions,
)
from seewhy.app.pipeline.parse import parse
from seewhy.explainers import list_methods
from seewhy.explainers.methods.catalogue import option_names
from seewhy.explainers.trust.metrics.catalogue import METRICS, list_metrics
from seewhy.models import list_models
from tests.app.conftest import EXAMPLES

COMMANDS = """
import contextlib, io, json, os, sys
from seewhy.app.cli import main

printed = []
for arguments, environment in json.load(sys.stdin):
    os.environ.update(environment)
    text = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), contextlib.suppress(SystemExit):
        main(arguments, prog_name="seewhy")
    text.flush()
    printed.append(text.buffer.getvalue().decode())
heavy = {"torch", "numpy", "PIL", "pydantic", "flask", "gunicorn", "matplotlib", "tqdm"}
print(json.dumps([printed, sorted(heavy & set(sys.modules))]))
"""
"""Runs commands, and tells what they have printed and what is imported by then of the libraries that take long."""


def in_a_new_process(*commands):
    """Return what commands print, each with variables of its environment, and what they import of heavy libraries."""
    process = subprocess.run(
        [sys.executable, "-c", COMMANDS], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


def test_help_imports_nothing_heavy():
    commands = [[], *([name] for name in main.commands)]
    printed, heavy = in_a_new_process(*([[*command, "--help"], {}] for command in commands))
    for command, text in zip(commands, printed, strict=True):
        assert text.startswith(" ".join(["Usage: seewhy", *command])), text
    assert heavy == []


@pytest.mark.parametrize("name", main.commands)
def test_help_has_examples_that_are_valid(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("first.jpg", "second.jpg", "dog.jpg", "edits.json", "boxes.csv", "scores.json"):
        (tmp_path / file).touch()
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).output
    lines = re.findall(r"seewhy .*", text.partition("Examples:")[2] or text.partition("SHELL.")[2])
    assert lines
    for line in lines:
        words = shlex.split(re.split(r" [|>]+ |\)", line)[0])
        assert words[:2] == ["seewhy", name]
        with main.commands[name].make_context(name, words[2:]):
            pass


REFUSED = {
    "explain nowhere.png": "nowhere.png: No such file or directory",
    f"explain {__file__}": "test_cli_names.py: This is not a readable picture",
    "explain cat.png --method gradcma": "There is no method 'gradcma'. Near matches: gradcam",
    "explain cat.png --alpha 7": "--alpha: It must be less than or equal to 1.",
    "explain cat.png --top 0": "top: It must be greater than or equal to 1.",
    "explain cat.png --top 90": "At most 16 classes",
    "explain cat.png --colormap infrno": "Near matches: inferno",
    "explain cat.png --scale 3,1": "lo < hi",
    "explain cat.png --proof-area 3": "--proof-area: It must be less than or equal to 0.9.",
    "explain cat.png --target=": "target: It is empty; give a value, or leave the option out.",
    "predict cat.png --model=": "model: It is empty",
    "explain --proof cat.png": "Write --proof=true, or put --proof after the pictures.",
    "explain cat.png --sheet all.gif": "'.gif' is not a format",
    "explain cat.png --summary rows.xls": "use .csv, .jsonl",
    "explain cat.png --method gradcam --option samples=3": "`samples` is an option of smoothgrad",
    "explain cat.png --method saliency --layer bn2": "Method 'saliency' uses no layer",
    "explain cat.png --method gradcam --samples 3": "`samples` is an option of smoothgrad",
    "explain cat.png --sampels 3": "No such option '--sampels'. (Did you mean one of: '--samples'",
    "explain cat.png --class circle": "No such option '--class'. (Did you mean '--target'?)",
    "predict cat.png --network resnet18": "(Did you mean '--model'?)",
    "compare cat.png": "Did you mean 'seewhy explain PICTURE --method gradcam,votes-detail'?",
    "predict cat.png --class circle": "No such option '--class'.",
    "predict cat.png --against circle": "'--against'. There is no contrast here; `explain` draws one with `against`.",
    "intervene cat.png --edit {} --against circle": "`against`. To compare two classes, ask about each with `target`.",
    "evaluate cat.png --option against=circle": "Error: There is no contrast here; `explain` draws one",
    "evaluate cat.png --rod.imputation fast": "'--road.imputation'",
    "evaluate cat.png --truth cat.png --boxes cat.png": "Use either --boxes or --truth",
    "explain cat.png --method gradcam --option method=cam": "Use either --method or --option method=cam, not both.",
    "evaluate cat.png --methods cam --option method=votes": "Use either --method or --option method=votes, not both.",
    "explain cat.png --option sampels=3": "No method has an option 'sampels'. Near matches: samples.",
    "predict cat.png --top 0": "top: It must be greater than or equal to 1.",
    "predict nowhere.png elsewhere.png": "2 of 2 pictures failed.",
    "evaluate cat.png --methods gradcma": "Near matches: gradcam",
    "evaluate cat.png --metrics insertoin": "Near matches: insertion",
    "evaluate cat.png --methods gradcam --option samples=3": "`samples` is an option of smoothgrad",
    f"evaluate cat.png --boxes {__file__}": "give a CSV file",
    "segment cat.png --view mask --format jpeg": "change the indices",
    "detect nowhere.png": "No such file",
}


def test_what_needs_no_model_is_refused_before_pytorch_is_imported():
    lines = [line.replace("cat.png", str(EXAMPLES / "cat.png")).split() for line in REFUSED]
    printed, heavy = in_a_new_process(*((line, {}) for line in lines))
    for line, message, text in zip(REFUSED, REFUSED.values(), printed, strict=True):
        assert message in " ".join(text.split()), (line, text)
    assert "torch" not in heavy


@pytest.mark.parametrize("command", ["explain", "evaluate"])
def test_values_of_methods_options_are_refused_before_the_model_is_loaded(run, monkeypatch, command):
    monkeypatch.setattr("seewhy.app.pipeline.model_store.ModelStore._load", lambda *_: pytest.fail("loaded"))
    method = "--method" if command == "explain" else "--methods"
    result = run(command, EXAMPLES / "cat.png", method, "smoothgrad", "--option", "samples=0")
    assert result.exit_code == 2
    assert "Option 'samples' of method 'smoothgrad': It must be greater than or equal to 1." in result.output


def test_methods_of_ones_own_and_their_options_are_not_refused_early(run, monkeypatch):
    monkeypatch.setattr("seewhy.app.cli.picture_answers.explain_pictures", lambda *_: print("it runs"))
    arguments = ("explain", EXAMPLES / "cat.png", "--method", "mine", "--option", "depth=3")
    assert "There is no method 'mine'" in run(*arguments).output
    assert run(*arguments, env={"SEEWHY_METHODS": "my_methods"}).output == "it runs\n"


def test_the_commands_are_the_whole_command():
    listed = CliRunner().invoke(main, ["--help"]).output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == list(main.commands)
    assert [line for line in listed.splitlines() if not line.endswith(".")] == []
    assert "..." not in listed  # cut


COMMANDS_OF = [
    ("explain", ExplainOptions),
    ("evaluate", EvaluateOptions),
    ("predict", PredictOptions),
    ("segment", SegmentOptions),
    ("similar", SimilarOptions),
    ("trace", TraceOptions),
    ("capture", CaptureOptions),
    ("intervene", InterveneOptions),
]
"""Commands, and the options of the requests that they correspond to."""


@pytest.mark.parametrize(("command", "schema"), COMMANDS_OF)
def test_commands_take_all_options_of_requests_by_their_names(command, schema):
    command = main.commands[command]
    taken = {name for parameter in command.get_params(click.Context(command)) for name in parameter.opts}
    second = {ExplainOptions: ["mask"], EvaluateOptions: ["truth"], InterveneOptions: ["other"]}
    wanted = [*schema.model_fields, *second.get(schema, [])]
    if issubclass(schema, MethodOptions):
        wanted += [name for options in option_names().values() for name in options if name != "layers"]
    if schema is EvaluateOptions:
        wanted += [f"{name}.{option}" for name, metric in METRICS.items() for option in metric.options]
    assert taken >= {f"--{name.replace('_', '-')}" for name in wanted}


@pytest.mark.parametrize(("command", "schema"), [pair for pair in COMMANDS_OF if pair[0] != "evaluate"])
def test_options_of_commands_have_the_defaults_of_requests(command, schema):
    required = {"layer": ["bn2"], "edits": [{"op": "zero", "layer": "bn2"}]}
    required = {name: value for name, value in required.items() if name in schema.model_fields}
    pictures = [__file__, __file__] if command == "similar" else ["a.png"]
    line = [*pictures, "--layer", "bn2"] if required else pictures
    options = fields(main.commands[command].make_context(command, line).params)
    defaults = {name: value for name, value in options.items() if name in schema.model_fields}
    assert defaults.keys() >= ({"view", "alpha", "scale"} if issubclass(schema, DrawingOptions) else set())
    assert parse(schema, required | defaults).model_dump() == parse(schema, required).model_dump()


def test_names_read_from_the_source_are_those_of_the_catalogues():
    assert names.method_names() == sorted(list_methods())
    assert names.metric_names() == sorted(list_metrics())
    assert names.option_names() == option_names()
    assert names.metric_option_names() == {name: list(metric.options) for name, metric in METRICS.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SEEWHY_MODELS", raising=False)
    return tmp_path / "seewhy" / "names.json"


def test_names_of_models_are_found_once_and_kept(cache, monkeypatch):
    assert names.model_names() == list_models()
    monkeypatch.setattr("seewhy.models.zoo.zoo_names", lambda: pytest.fail("looked again"))
    assert "resnet50" in names.model_names()
    content = json.loads(cache.read_text())
    cache.write_text(json.dumps({**content, "versions": f"torchvision-{version('torchvision')} of another time"}))
    monkeypatch.setattr("seewhy.models.zoo.zoo_names", lambda: ["new"])
    assert names.model_names() == ["new"]


def test_own_models_are_completed(cache, tmp_path, monkeypatch):
    file = tmp_path / "models.toml"
    file.write_text('[models.mine]\narchitecture = "resnet18"\nweights = "w.pth"\n')
    monkeypatch.setenv("SEEWHY_MODELS", str(file))
    assert names.model_names()[0] == "mine"
    file.write_text("[models.")
    assert "mine" not in names.model_names()


def test_layers_are_those_of_the_model(cache):
    assert "layer4.1.conv2" in names.layer_names("resnet18")
    assert names.layer_names("resnet18") == json.loads(cache.read_text())["layers of resnet18"]
    assert names.layer_names("no such model") == []


def test_a_cache_that_cannot_be_written_is_no_fault(cache, monkeypatch):
    cache.parent.write_text("a file where the folder should be")
    assert "resnet18" in names.model_names()


COMPLETED = {
    "seewhy ex": ["explain"],
    "seewhy explain --skip": ["--skip-existing"],
    "seewhy explain --sam": ["--samples"],
    "seewhy explain --method gradcam": ["gradcam", "gradcam++", "gradcam-elementwise"],
    "seewhy explain --view o": ["overlay"],
    "seewhy explain --colormap BA": ["batlow", "balance"],
    "seewhy capture --kind grad_i": ["grad_input"],
    "seewhy models --source t": ["torchvision", "timm"],
    "seewhy layers resnet1": ["resnet101", "resnet152", "resnet18"],
    "seewhy explain --model resnet18 --layer layer4.1.conv": ["layer4.1.conv1", "layer4.1.conv2"],
}


def test_the_shell_completes_what_is_typed_and_nothing_heavy_is_imported_for_names_that_are_kept(cache):
    names.model_names(), names.layer_names("resnet18")
    completing = {"_SEEWHY_COMPLETE": "bash_complete"}
    printed, heavy = in_a_new_process(
        *([[], {**completing, "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}] for line in COMPLETED)
    )
    results = [[row.partition(",")[2] for row in text.splitlines()] for text in printed]
    assert dict(zip(COMPLETED, results, strict=True)) == COMPLETED
    assert heavy == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_SEEWHY_COMPLETE" in result.output
    assert "seewhy" in result.output
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=result.output.encode(), check=True)


def test_another_shell_is_refused():
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2
