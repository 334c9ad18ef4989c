"""Every block of README.md and docs/ runs, or has a reason not to; see `pages`."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from werkzeug.serving import make_server

from seewhy.app import create_app
from seewhy.app.settings import Settings
from seewhy.explainers.methods import catalogue as registry
from seewhy.models import LoadedModel, Registry
from tests.pages import PAGES, ROOT, Run, blocks, commands
from tests.waiting import GUARD

SHOWN = [page for page in PAGES if blocks(page)]

DEFAULT_MODEL = "efficientnet_lite0"

NOT_RUN = {
    "README.md": ["make serve", "make test"],
    "docs/index.md": ["make serve", "source .venv/bin/activate"],
    "docs/tutorial.md": ["SEEWHY_MODELS=models.toml"],
    "docs/recipes.md": ["seewhy key", "SEEWHY_API_KEYS=keys.toml seewhy serve", "curl -H"],
    "docs/http.md": ["curl -F image=@street.jpg"] * 3,
    "docs/cli.md": ["seewhy detect street.jpg", "seewhy explain street.jpg", "seewhy explain street.jpg"],
    "docs/deployment.md": [
        "docker build",
        "docker run",
        "docker run",
        "docker compose up",
        "kubectl apply",
        "kubectl port-forward",
    ],
    "docs/operations.md": [
        "pip install",
        "OTEL_EXPORTER_OTLP_ENDPOINT=",
        "make lock",
        "make lock UPGRADE=",
        "make test check",
    ],
    "docs/own-models.md": ["SEEWHY_MODELS=models.toml SEEWHY_DEFAULT_MODEL=pneumonia seewhy serve"],
    "docs/security.md": ["SEEWHY_API_KEYS=keys.toml seewhy serve", "curl -H", "SEEWHY_RATE_LIMIT"],
    "docs/proofs.md": [
        "seewhy calibrate photos",
        "seewhy explain xray.png",
        "echo 'calibration = ",
        "seewhy explain xray.png",
    ],
    "docs/scale.md": ["seewhy batch s3://"],
    "docs/add-a-method.md": ["SEEWHY_METHODS=my_methods seewhy serve"],
}
"""All commands that no test runs, by their beginnings: those that end never, or need what a test machine lacks."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a live server of default settings but the deadline."""
    app = create_app(Settings(deadline=GUARD))  # however slow the machine
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()
    server.server_close()
    app.extensions["seewhy"].models.stop()


@pytest.fixture(scope="module", autouse=True)
def one_model() -> Iterator[None]:
    """Let all pages take the default model that the first has loaded, in this process."""
    load, models = Registry.load, dict[tuple[Any, ...], LoadedModel]()

    def take(registry: Registry, name: str, *args: Any, **options: Any) -> LoadedModel:
        key = (*args, *options.items())
        if name != DEFAULT_MODEL:
            return load(registry, name, *args, **options)
        if key not in models:
            models[key] = load(registry, name, *args, **options)
        return models[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "load", take)
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the examples, importable from; what a page changes in this process is undone."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    environment, methods, modules = dict(os.environ), dict(registry._methods), set(sys.modules)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield tmp_path
    os.environ.clear()
    os.environ.update(environment)
    registry._methods.clear()
    registry._methods.update(methods)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_and_print_what_is_shown(page: Path, folder: Path, url: str) -> None:
    run = Run(folder, url)
    for block in blocks(page):
        try:
            run.block(block)
        except BaseException as error:
            error.add_note(f"the block at {block.place}")
            raise
    assert run.silent, f"not shown: {run.printed}"


def test_what_does_not_run_is_listed_here() -> None:
    results = {
        str(page.relative_to(ROOT)): [line for block in marked for line in commands(block)]
        for page in PAGES
        if (marked := [block for block in blocks(page) if block.reason is not None])
    }
    assert results.keys() == NOT_RUN.keys()
    for name, lines in results.items():
        assert len(lines) == len(NOT_RUN[name]), lines
        assert all(line.startswith(start) for line, start in zip(lines, NOT_RUN[name], strict=True)), lines
