"""The contents of a wheel: types for its users, and the files of the page."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
from pathlib import Path

from seewhy import Explanation, Failure, GradCAM, HookSession, LoadedModel
from seewhy import explain, explain_many, list_methods, list_models, load_model

model: LoadedModel = load_model("efficientnet_lite0", device="cpu")
result: Explanation = explain(model, "cat.png", method="gradcam", target="tabby", samples=3)
width: int = result.overlay(alpha=0.3).width
saved: Path = result.save("out.png", view="heatmap")
title: str = result.plot(colorbar=False).get_title()
for one in explain_many(model, [Path("cat.png"), b"bytes"], progress=True):
    print(one.target.label)
for other in explain_many(model, ["cat.png"], on_error="yield"):
    failure: Explanation | Failure = other
    print(other if isinstance(other, Exception) else other.target.probability)
with HookSession(model.module) as hooks:
    hooks.record("bn2")
names: list[str] = list_methods() + list_models()
reveal_type(GradCAM(layers=("bn2",)).explain(model, model.preprocess(result.picture)[None]).maps)
explain_many(model, ["cat.png"], batch_size="8")
"""

UNREAD = (
    *("timm", "skimage", "huggingface_hub", "IPython", "openvino", "torch._dynamo", "torch._inductor"),
    *("torch.distributed", "torch.fx", "torch.ao", "torch.onnx", "torch.export", "torch._export", "torch._functorch"),
    *("torch._higher_order_ops", "torch._subclasses", "torch._refs", "torch._decomp", "torch.testing", "torch.utils"),
)
"""Of what is imported, libraries and parts of PyTorch that no public signature names: most of what there is to read."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of what git would take along."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("seewhy", "src", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-c", f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = out.glob("seewhy-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a fresh environment that holds the wheel, and beside it the libraries of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(f"{next(Path(path) for path in sys.path if path.endswith('site-packages'))}\n")
    return folder / "bin" / "python"


def test_one_package_carries_its_types_and_the_page(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    floors = [ROOT / name for name in ("app", "explainers", "models")]
    modules = {f"seewhy/{path.relative_to(ROOT)}" for floor in floors for path in floor.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == {"seewhy/__init__.py", "seewhy/__main__.py", *modules}
    stubs = {f"seewhy/{floor}__init__.pyi" for floor in ("", "app/", "explainers/", "models/")}
    assert {name for name in names if name.endswith((".pyi", "py.typed"))} == {"seewhy/py.typed", *stubs}
    page = {f"seewhy/{path.relative_to(ROOT)}" for path in (ROOT / "app" / "web").rglob("*") if path.is_file()}
    assert {"seewhy/app/web/js/page.js", "seewhy/app/web/css/base.css", "seewhy/app/web/examples/cat.png"} <= page
    assert {name for name in names if name.startswith("seewhy/app/web/")} == page
    assert {"seewhy/explainers/papers.csv", "seewhy/explainers/trust/embedded.json"} <= {*names}
    assert {"seewhy/explainers/results/widget.js", "seewhy/explainers/results/widget.css"} <= {*names}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"seewhy"}


def test_a_clone_beside_a_script_does_not_hide_the_package(tmp_path):
    """A folder without `__init__.py` is a package too, and would hide the name from an editable install."""
    (tmp_path / "seewhy").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import seewhy; print(seewhy.__all__)"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert "GradCAM" in process.stdout, process.stderr


@pytest.mark.slow
def test_a_strict_type_checker_sees_the_types_of_the_installed_packages(installed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    rules = [f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in UNREAD]
    (tmp_path / "mypy.ini").write_text("[mypy]\n" + "".join(rules))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed, "program.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    messages = [line for line in process.stdout.splitlines() if ": note:     def " not in line]
    assert len(messages) == 4, process.stdout + process.stderr
    assert 'Revealed type is "torch._tensor.Tensor"' in messages[0]
    assert 'program.py:21: error: No overload variant of "explain_many"' in messages[1]


NETS = """
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stem(images).relu().mean(dim=(2, 3)))
"""

EXPLAINERS = """
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy import Paper, WeightedCAM, method


@method(
    "squarecam",
    family="cam",
    summary="Feature maps weighted by themselves.",
    paper=Paper("A. Nonymous", "Squares", 2026, "https://example.org/squares"),
    forwards="1",
    backwards="1",
)
@dataclass(frozen=True, kw_only=True)
class SquareCAM(WeightedCAM):
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return activations
"""

APP = """
import sys
from importlib import metadata
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file

import explainers
import models.nets
from seewhy import explain, list_methods, list_models, load_model
from seewhy.app import create_app
from seewhy.app.cli import main

here = Path(__file__).parent
assert Path(explainers.__file__).parent == Path(models.__file__).parents[1] == here
save_file(models.nets.Net().state_dict(), "tiny.safetensors")
assert list_models()[0] == "tiny" and "squarecam" in list_methods()
picture = Image.new("RGB", (48, 40), "teal")
assert explain(load_model("tiny"), picture, method="squarecam").heatmap.shape == (40, 48)

client = create_app().test_client()
(tiny,) = client.get("/models?source=own").get_json()["models"]
assert tiny["name"] == "tiny", tiny
assert "squarecam" in [entry["name"] for entry in client.get("/methods").get_json()["methods"]]
upload = BytesIO()
picture.save(upload, "PNG")
form = {"image": (BytesIO(upload.getvalue()), "picture.png"), "model": "tiny", "method": "squarecam"}
answer = client.post("/explain", data=form, headers={"Accept": "application/json"})
assert answer.status_code == 200, answer.text
assert (answer.json["model"]["name"], answer.json["method"]["name"]) == ("tiny", "squarecam"), answer.text
main(["models", "--source", "own"], standalone_mode=False)
main(["methods"])
"""

TOML = """
[models.tiny]
architecture = "models.nets:Net"
weights = "tiny.safetensors"
labels = ["dark", "light"]
input_size = 32
"""


@pytest.mark.slow
def test_models_methods_and_an_application_of_ones_own_stand_beside_the_package(installed, tmp_path):
    files = {"app.py": APP, "explainers.py": EXPLAINERS, "models/__init__.py": "", "models/nets.py": NETS}
    for name, text in {**files, "own.toml": TOML}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SEEWHY_", "PYTHON"))}
    environment |= {"SEEWHY_MODELS": "own.toml", "SEEWHY_METHODS": "explainers", "SEEWHY_DEFAULT_MODEL": "tiny"}

    def run(*command):
        process = subprocess.run([installed, *command], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    listed = run("app.py")
    assert "tiny" in listed
    assert "squarecam" in listed
    code = "from importlib.util import find_spec; print([find_spec(name) for name in ('app', 'explainers', 'models')])"
    assert run("-I", "-c", code) == "[None, None, None]\n"


def test_importing_the_package_and_listing_its_names_imports_no_library():
    program = """
import sys

import seewhy

assert {"GradCAM", "HookSession", "explain", "load_model", "wrap_model"} <= {*dir(seewhy)}
assert {"torch", "numpy", "PIL", "pydantic", "torchvision", "timm"} & {*sys.modules} == set()
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
