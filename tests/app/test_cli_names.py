"""Help and completion are quick, and the names in them are the true ones."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from seewhy.app.cli import main, names
from seewhy.explainers import list_methods
from seewhy.models import list_models

COMMAND = """
import atexit, sys
heavy = {"torch", "numpy", "PIL", "pydantic", "flask", "gunicorn", "matplotlib", "tqdm"}
atexit.register(lambda: print("HEAVY", sorted(heavy & set(sys.modules)), file=sys.stderr))
sys.argv[0] = "seewhy"
from seewhy.app.cli import main
main(prog_name="seewhy")
"""
"""The command, which tells at its end what it has imported of the libraries that take long."""


@pytest.mark.parametrize("command", [[], *([name] for name in main.commands)], ids=str)
def test_help_imports_nothing_heavy(command):
    help_ = [sys.executable, "-c", COMMAND, *command, "--help"]
    process = subprocess.run(help_, capture_output=True, text=True, check=True)
    assert process.stdout.startswith("Usage: seewhy")
    assert process.stderr == "HEAVY []\n"


def test_the_commands_are_the_whole_command():
    listed = CliRunner().invoke(main, ["--help"]).output.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(main.commands)


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


def completed(line, tmp_path):
    """Return what the shell is told at the end of a command line, and what the command says that it has imported."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_SEEWHY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    process = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True)
    return [row.partition(",")[2] for row in process.stdout.splitlines()], process.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seewhy ex", ["explain"]),
        ("seewhy explain --skip", ["--skip-existing"]),
        ("seewhy explain --method gradcam", ["gradcam", "gradcam++", "gradcam-elementwise"]),
        ("seewhy explain --view o", ["overlay"]),
        ("seewhy explain --colormap ba", ["batlow", "balance"]),
        ("seewhy capture --kind grad_i", ["grad_input"]),
        ("seewhy models --source t", ["torchvision", "timm"]),
    ],
)
def test_the_shell_completes_commands_and_options_and_nothing_heavy_is_imported(line, words, tmp_path):
    assert completed(line, tmp_path) == (words, "HEAVY []\n")


def test_the_shell_completes_models_and_layers_and_searches_for_them_once(tmp_path):
    assert completed("seewhy layers resnet1", tmp_path)[0] == ["resnet101", "resnet152", "resnet18"]
    layers, _ = completed("seewhy explain --model resnet18 --layer layer4.1.", tmp_path)
    assert layers[0] == "layer4.1.conv1"
    assert completed("seewhy explain --model resnet18 --layer layer4.1.", tmp_path) == (layers, "HEAVY []\n")


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
