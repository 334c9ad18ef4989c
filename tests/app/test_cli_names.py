"""Help and completion are quick, and the names in them are the true ones."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import get_args

import pytest
from click.testing import CliRunner

from seewhy.app.answers import schemas
from seewhy.app.cli import main, names, options
from seewhy.explainers import list_methods
from seewhy.explainers.hooks import records
from seewhy.explainers.imaging import render
from seewhy.models import list_models

LIGHT = """
import sys
from seewhy.app.cli import main
main.main(sys.argv[1:], prog_name="seewhy", standalone_mode=False)
heavy = {"torch", "numpy", "PIL", "pydantic", "flask", "matplotlib", "tqdm"} & set(sys.modules)
print("HEAVY", sorted(heavy))
"""


@pytest.mark.parametrize("command", [[], *([name] for name in main.commands)], ids=str)
def test_help_imports_nothing_heavy(command):
    done = subprocess.run([sys.executable, "-c", LIGHT, *command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: seewhy" in done.stdout
    assert done.stdout.endswith("HEAVY []\n")


def test_the_commands_are_the_whole_command():
    listed = CliRunner().invoke(main, ["--help"]).output.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(main.commands)


@pytest.mark.parametrize(
    ("repeated", "original"),
    [
        (options.DRAWINGS, get_args(schemas.Drawing)),
        (options.FORMATS, get_args(schemas.Format)),
        (options.TRACE_FORMATS, get_args(schemas.TraceFormat)),
        (options.CAPTURE_FORMATS, get_args(schemas.CaptureFormat)),
        (options.INTERVENE_FORMATS, get_args(schemas.InterveneFormat)),
        (options.VIEWS, render.VIEWS),
        (options.KINDS, records.KINDS),
        (options.COLORMAPS, render.SEQUENTIAL + render.DIVERGING),
    ],
)
def test_what_the_options_repeat_is_what_it_was(repeated, original):
    assert repeated == original


def test_the_methods_that_are_completed_are_those_of_the_catalogue():
    assert names.method_names() == sorted(list_methods())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SEEWHY_MODELS", raising=False)
    return tmp_path / "seewhy" / "names.json"


def test_names_of_models_are_found_once_and_kept(cache, monkeypatch):
    assert names.model_names() == list_models()
    monkeypatch.setattr("seewhy.models.zoo.zoo_names", lambda: pytest.fail("looked again"))
    assert "resnet50" in names.model_names()
    kept = json.loads(cache.read_text())
    cache.write_text(json.dumps({**kept, "versions": f"torchvision-{version('torchvision')} of another time"}))
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


def completed(line, tmp_path, **variables):
    """Return what the shell is told at the end of a command line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_SEEWHY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "XDG_CACHE_HOME": str(tmp_path),
        **variables,
    }
    code = "import sys; sys.argv[0] = 'seewhy'; from seewhy.app.cli import main; main(prog_name='seewhy')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return [row.partition(",")[2] for row in done.stdout.splitlines()]


def test_the_shell_completes_commands_options_and_names(tmp_path):
    assert completed("seewhy ex", tmp_path) == ["explain"]
    assert completed("seewhy explain --skip", tmp_path) == ["--skip-existing"]
    assert completed("seewhy explain --method gradcam", tmp_path) == ["gradcam", "gradcam++", "gradcam-elementwise"]
    assert completed("seewhy explain --view o", tmp_path) == ["overlay"]
    assert completed("seewhy explain --colormap ba", tmp_path) == ["batlow", "balance"]
    assert completed("seewhy layers resnet1", tmp_path) == ["resnet101", "resnet152", "resnet18"]
    found = completed("seewhy explain --model resnet18 --layer layer4.1.", tmp_path)
    assert found[0] == "layer4.1.conv1"
    (tmp_path / "torch.py").write_text("raise SystemExit('imported again')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    assert completed("seewhy explain --model resnet18 --layer layer4.1.", tmp_path, PYTHONPATH=path) == found


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
