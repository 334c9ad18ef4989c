"""What a wheel holds: types for those who install it, and what the page needs."""

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of what git would take along."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("seewhy", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-c", f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = out.glob("seewhy-*.whl")
    return built


def test_one_package_carries_its_types_and_the_page(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    floors = [ROOT / name for name in ("app", "explainers", "models")]
    modules = {f"seewhy/{path.relative_to(ROOT)}" for floor in floors for path in floor.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == {"seewhy/__init__.py", *modules}
    stubs = {"seewhy/__init__.pyi", "seewhy/explainers/__init__.pyi", "seewhy/models/__init__.pyi"}
    assert {name for name in names if name.endswith((".pyi", "py.typed"))} == {"seewhy/py.typed", *stubs}
    page = {f"seewhy/{path.relative_to(ROOT)}" for path in (ROOT / "app" / "web").rglob("*") if path.is_file()}
    assert {"seewhy/app/web/js/page.js", "seewhy/app/web/css/base.css", "seewhy/app/web/examples/cat.jpg"} <= page
    assert {name for name in names if name.startswith("seewhy/app/web/")} == page
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"seewhy"}


@pytest.mark.slow
def test_a_strict_type_checker_sees_the_types_of_the_installed_packages(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(f"{next(Path(path) for path in sys.path if path.endswith('site-packages'))}\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    python = tmp_path / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    said = [line for line in done.stdout.splitlines() if ": note:     def " not in line]
    assert len(said) == 4, done.stdout + done.stderr
    assert 'Revealed type is "torch._tensor.Tensor"' in said[0]
    assert 'program.py:21: error: No overload variant of "explain_many"' in said[1]
