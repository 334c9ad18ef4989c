"""What the documentation says is held to what the software does."""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import create_app
from app.cli import main
from app.errors import HTTP_KINDS, INTERNAL, KINDS
from app.schemas import CaptureOptions, ExplainOptions, InterveneOptions, TraceOptions
from app.settings import Settings
from docs.methods import PAGE
from docs.pictures import IMAGES, pictures
from explainers.edits import OPS, Edit
from explainers.registry import METHODS
from models.own import OwnModel

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in blocks("python"):
        exec(block, namespace)
    assert capsys.readouterr().out == "tabby 17% (300, 451)\n17% before, 9% after\n"
    assert (tmp_path / "tabby.png").is_file()
    assert namespace["attribution"].maps.shape == (2, 7, 7)
    assert len(namespace["hooks"].grad_outputs["layer1.0.relu"]) == 2


def test_commands_of_the_readme_run(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [line for block in blocks("console") for line in block.splitlines() if line.startswith("seewhy")]
    assert len(commands) == 7
    for command in commands:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "heatmap.png").is_file()
    assert len(list((tmp_path / "heatmaps").iterdir())) == 4
    for name in ("trace.svg", "maps.png", "panel.png"):
        assert (tmp_path / name).is_file(), name


def test_curl_of_the_readme_names_real_options():
    commands = [line for block in blocks("console") for line in block.splitlines() if line.startswith("curl")]
    assert len(commands) == 2
    for command in commands:
        fields = [word.partition("=")[0] for word in shlex.split(command) if "=" in word]
        assert set(fields) <= {"image", *ExplainOptions.model_fields}


def test_toml_of_the_readme_declares_a_model():
    (block,) = blocks("toml")
    (table,) = tomllib.loads(block)["models"].values()
    OwnModel.model_validate(table)


@pytest.fixture(scope="module")
def drawings(lite0):
    return pictures(lite0)


@pytest.mark.parametrize("name", sorted(path.name for path in IMAGES.glob("*.png")))
def test_pictures_are_what_the_software_draws(name, drawings):
    drawn = np.asarray(drawings[name]).astype(int)
    with Image.open(IMAGES / name) as image:
        committed = np.asarray(image.convert("RGB")).astype(int)
    assert drawn.shape == committed.shape
    assert np.abs(drawn - committed).mean() < 1


def test_every_option_and_method_is_documented():
    for name in [*ExplainOptions.model_fields, "image", "sign", "smooth"]:
        assert f"`{name}`" in README, name
    for method in METHODS.values():
        for option in {method.name, *method.options} - {"layers"}:
            assert f"`{option}`" in PAGE.read_text(encoding="utf-8"), option


@pytest.mark.parametrize("options", [TraceOptions, CaptureOptions, InterveneOptions])
def test_every_option_about_hooks_is_documented(options):
    for name in options.model_fields:
        assert f"`{name}`" in HTTP, name


def test_every_edit_is_documented():
    for name in [*OPS, *Edit.model_fields]:
        assert f"`{name}`" in HTTP, name


def test_curl_of_the_http_page_is_answered(client, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = "\n".join(re.findall(r"```console\n(.*?)```", HTTP, flags=re.DOTALL)).replace("\\\n", "")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("curl")]
    assert len(commands) == 7
    for command in commands:
        headers = dict(command[place + 1].split(": ") for place, word in enumerate(command) if word == "-H")
        url = next(word for word in command if word.startswith("http://"))
        fields = [command[place + 1].partition("=") for place, word in enumerate(command) if word == "-F"]
        data = {}
        for name, _, value in fields:
            content = (io.BytesIO(Path(value[1:]).read_bytes()), value[1:]) if value.startswith("@") else value
            data.setdefault(name, []).append(content)
        path = url.removeprefix("http://127.0.0.1:8000")
        answer = client.post(path, data=data, content_type="multipart/form-data", headers=headers)
        assert not headers or "event: answer" in answer.get_data(as_text=True)
        assert answer.status_code == 200, answer.get_data(as_text=True)


@pytest.fixture(scope="module")
def client():
    app = create_app(Settings())
    yield app.test_client()
    app.extensions["seewhy"].engine.stop()


def test_every_error_code_is_documented():
    documented = set(re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", HTTP, flags=re.MULTILINE))
    assert documented == {(str(kind.status), kind.code) for kind in [*KINDS.values(), *HTTP_KINDS.values(), INTERNAL]}


def test_every_setting_is_documented():
    rows = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {said} |" for name, _, default, said in Settings().rows()
    ]
    table = HTTP.partition("| variable |")[2].strip().splitlines()[2:]
    assert table == rows


def test_every_route_is_documented(app_routes):
    for route in app_routes:
        assert f"{route}`" in HTTP or f"{route}," in HTTP, route


@pytest.fixture
def app_routes():
    from app.openapi import _paths

    return [path.replace("{name}", "NAME") for path in _paths()]


def test_every_command_is_in_the_readme():
    for command in main.commands:
        assert f"seewhy {command}" in README or f"`{command}`" in README, command


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
