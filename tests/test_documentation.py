"""The documentation agrees with the software."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from docs import settings
from docs.methods import PAGE
from docs.pictures import IMAGES, pictures
from docs.screens import TOUR, VIEWS
from seewhy.app import create_app
from seewhy.app.cli import main
from seewhy.app.errors import HTTP_KINDS, INTERNAL, KINDS
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions, EvaluateOptions, ExplainOptions, TraceOptions
from seewhy.app.settings import Settings
from seewhy.explainers.inspection.edits import OPS, Edit
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.models.models_file import ModelDeclaration
from tests.pages import blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
ROUTES = HTTP + (ROOT / "docs" / "compatible-routes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def drawings(lite0):
    return pictures(lite0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({path.name for path in IMAGES.glob("*.png")} - {*VIEWS}))
def test_pictures_are_what_the_software_draws(name, drawings):
    pixels = np.asarray(drawings[name]).astype(int)
    with Image.open(IMAGES / name) as image:
        committed = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.shape == committed.shape
    assert np.abs(pixels - committed).mean() < 1


def test_the_moving_picture_has_all_views_and_is_small():
    with Image.open(IMAGES / "tour.webp") as image:
        assert image.n_frames == len(TOUR), "run make screens"
    assert (IMAGES / "tour.webp").stat().st_size < 1_000_000


def test_every_option_edit_and_method_is_documented():
    options = [ExplainOptions, TraceOptions, CaptureOptions, InterveneOptions, EvaluateOptions, Edit]
    for name in ["image", "sign", "smooth", *OPS, *(name for schema in options for name in schema.model_fields)]:
        assert f"`{name}`" in HTTP, name
    for method in METHODS.values():
        for option in {method.name, *method.options} - {"layers"}:
            assert f"`{option}`" in PAGE.read_text(encoding="utf-8"), option


def test_every_error_code_is_documented():
    documented = set(re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", HTTP, flags=re.MULTILINE))
    assert documented == {(str(kind.status), kind.code) for kind in [*KINDS.values(), *HTTP_KINDS.values(), INTERNAL]}


def test_every_setting_is_documented():
    text = settings.PAGE.read_text(encoding="utf-8")
    assert settings.filled(text) == text, "run make docs"
    assert text.count("\n| `SEEWHY_") == len(Settings.model_fields)


def test_every_route_is_documented():
    for path in create_app().test_client().get("/openapi.json").get_json()["paths"]:
        route = path.replace("{name}", "NAME").replace("{version}", "VERSION")
        assert f"{route}`" in ROUTES or f"{route}," in ROUTES, route


def test_every_command_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in main.commands:
        assert f"seewhy {command}" in text or f"`{command}`" in text, command


def test_the_readme_compares_as_measured():
    measured, swept = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("performance.md", "sweep.md"))
    rows = re.findall(r"^\| `([a-z-]+)`, (\w+), (\d+) pictures? (\|.*\|)$", README, re.MULTILINE)
    assert len(rows) == 6
    for method, model, batch, cells in rows:
        assert f"| `{method}` | {model} | {batch} {cells}" in measured, method
    model, ours, theirs = re.search(r"backward pass, (\w+) \| ([\d,]+) kB \| ([\d,]+) kB", README).groups()
    assert f"| {model} | {ours} | {theirs} |" in measured
    ours, theirs = re.findall(r"handles ([\d.]+)", README)
    assert f"| 512×512 | 8 | SeeWhy | {ours} |" in measured
    assert f"| 512×512 | 8 | Flask, one thread a worker | {theirs} |" in measured
    counts = re.search(r"([\d,]+) of the ([\d,]+) modules .+?all ([\d,]+)\]", README, re.DOTALL)
    raised, tried, modules = counts.groups()
    assert f"| **all 80** |  | {modules} |".replace(",", "") in swept
    assert f"| {raised} of {tried} |".replace(",", "") in swept


def test_a_service_is_sized_as_measured():
    sizing, measured = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("deployment.md", "performance.md")
    )
    sizing = " ".join(sizing.partition("## Sizing")[2].partition("###")[0].split())
    pairs = re.findall(r"handles ([\d.]+)(?: requests per second with one client)? and ([\d.]+)", sizing)
    memory = re.search(r"using ([\d.]+) GB", sizing)[1]
    assert len(pairs) == 2
    for size, rates in zip(("512×512", "12 megapixels"), pairs, strict=True):
        for clients, rate in zip((1, 8), rates, strict=True):
            row = re.search(rf"\| {size} \| {clients} \| SeeWhy \| {re.escape(rate)} \|.*\| (\d+) \|  \|", measured)
            assert row, (size, clients, rate)
            if size == "512×512":
                assert f"{int(row[1]) / 1000:.1f}" == memory
    many, one, *sizes = re.search(
        r"handles ([\d.]+) requests per second instead of ([\d.]+), with ([\d.]+) GB instead of ([\d.]+)", sizing
    ).groups()
    single, ratio = re.search(r"On one core, a process handles ([\d.]+) .*? give ([\d.]+) times", sizing).groups()
    for (cores, processes, rate), size in zip(((2, 2, many), (2, 1, one), (1, 1, single)), (*sizes, None), strict=True):
        threads = cores // processes
        row = re.search(rf"\| {cores} \| {processes} \| 8 \| {threads} \| {re.escape(rate)} \|.*\| (\d+) \|", measured)
        assert row, (cores, processes, rate)
        assert size in (None, f"{int(row[1]) / 1000:.1f}")
    assert ratio == f"{float(one) / float(single):.1f}"


def test_every_key_of_the_models_file_is_documented():
    rows = re.findall(r"^\| (`.+?) \| ", (ROOT / "docs" / "own-models.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(ModelDeclaration.model_fields)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_recipes_are_short():
    page = ROOT / "docs" / "recipes.md"
    lengths = {block.line: block.content.count("\n") for block in blocks(page)}
    assert len(lengths) > 15
    assert max(lengths.values()) < 15, lengths


@pytest.mark.slow
def test_the_network_of_the_tutorial_learns_the_sticker():
    cups = runpy.run_path(str(ROOT / "examples" / "cups.py"))
    module = cups["trained"](lambda number: number % 2 == 1, 150)
    assert cups["accuracy"](module, lambda number: number % 2 == 1) > 0.9
    assert cups["accuracy"](module, lambda number: False) < 0.8
