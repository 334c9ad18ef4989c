"""The documentation as a site: it builds without a warning, holds every page, and loads nothing from elsewhere."""

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from markdown import Markdown
from playwright.sync_api import expect, sync_playwright

import seewhy
from docs.links import Links
from docs.mathematics import markdown
from docs.method_pages import write
from docs.methods import anchor
from docs.routes import page
from seewhy.explainers.methods.catalogue import METHODS
from tests.pages import PAGES, ROOT
from tests.waiting import GUARD

pytestmark = pytest.mark.slow

ANSWERS = {
    "custom model": "own-models.html",
    "authentication": "security.html#authentication-with-api-keys",
    "configuration": "deployment.html#configuration",
    "tutorial": "tutorial.html",
    "troubleshooting": "operations.html#troubleshooting",
    "dataset": "python.html#many-pictures-datasets-dataloaders",
    "DataLoader": "python.html#many-pictures-datasets-dataloaders",
    "streaming": "http.html#streaming-progress",
    "vanishing gradients": "hooks.html#vanishing-gradients",
    "gradient debugging": "hooks.html#gradient-debugging",
    "exploding gradients": "hooks.html#exploding-gradients-and-nan",
    "remove hook": "hooks.html#remove-hooks",
    "binary classifier": "own-models.html#binary-and-multi-label-classifiers",
    "faithfulness": "metrics.html#faithfulness",
    "object detection": "own-models.html#object-detection",
    "Hugging Face": "faq.html#my-model-returns-a-dictionary-or-a-tuple",
    "Jupyter": "python.html#one-picture",
    "fine-tuned": "own-models.html#the-models-file",
    "blank heatmap": "faq.html#why-is-the-heatmap-blank",
    "environment variables": "deployment.html#configuration",
    "16 bits": "recipes.html#read-grayscale-pictures-of-16-bits",
    "feature maps": "recipes.html#see-the-feature-maps-of-a-layer",
    "folder of pictures": "recipes.html#explain-a-folder-of-pictures",
    "wrong class": "recipes.html#ask-why-a-prediction-is-wrong",
    "misclassified": "recipes.html#ask-why-a-prediction-is-wrong",
    "my own architecture": "faq.html#can-i-use-my-own-model-or-architecture",
    "own model": "faq.html#can-i-use-my-own-model-or-architecture",
    "export csv": "cli.html#many-pictures",
    "compare methods command line": "cli.html#compare-methods",
    "grade my model": "faq.html#how-do-i-get-a-grade-for-the-heatmaps-of-my-model",
    "meaning of colour bar": "faq.html#what-is-the-meaning-of-the-colour-bar",
    "hide part of picture": "faq.html#how-do-i-hide-a-part-of-the-picture",
    "change port": "index.html#start-the-service",
    "grayscale": "own-models.html#grayscale-networks",
    "calibrate": "cli.html#calibrate-grades",
    "watermark": "proofs.html#limits",
    "batch": "scale.html",
    "false alarm": "proofs.html#included-scores",
    "Gini": "metrics.html#sparseness",
    "contrast": "concepts.html#contrast-one-class-with-another",
    "threshold": "reference/python.html#seewhy.models.BoxHead",
    "confidence": "cli.html#metrics",
    "colour map": "recipes.html#change-the-colour-map",
    "upload limit": "security.html#limits",
    "API key": "security.html#authentication-with-api-keys",
    "CUDA": "faq.html#how-do-i-use-a-gpu-cuda",
    "timeout": "http.html#timeouts-and-cost",
    "transform": "own-models.html#transforms",
    "Integrated gradients": "methods/integrated-gradients.html",
    "finercam": "methods/finercam.html",
    "Grad-CAM++": "methods/gradcampp.html",
    "LIME": "methods/lime.html",
    "SHAP": "methods/kernel-shap.html",
    "layer-wise relevance propagation": "methods/lrp.html",
    "attention rollout": "methods/attention-rollout.html",
}
"""What readers search for, and the section that answers it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the site is built into, from a copy: what `make docs` does."""
    copy = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "mkdocs.yml", copy)
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (copy / "docs" / "reference" / "routes.md").write_text(page(), encoding="utf-8")
    write(copy / "docs" / "methods")
    command = [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    output = process.stdout + process.stderr
    assert process.returncode == 0, output
    assert "griffe" not in output, output  # of docstrings; the build goes on after these
    return copy / "site"


@pytest.fixture(scope="module")
def search(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The site in a browser, with its search open."""
    chromium = shutil.which("chromium")
    if chromium is None:
        assert "CI" not in os.environ, "chromium is not installed"
        pytest.skip("chromium is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")), executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        context.set_default_timeout(1000 * GUARD)
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html", wait_until="domcontentloaded")
        page.locator(".md-search__button").first.click()
        yield page
        context.close()
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_request(self, *args: object) -> None:
        """Do not write requests to standard error."""


class _Loads(HTMLParser):
    """Collects what a browser would load with a page, and the pages that it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        results = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.linked.append(results.get("href", "").partition("#")[0])
        elif tag == "link":
            self.loaded += [results["href"]] if results["rel"] not in ("canonical", "next", "prev") else []
        elif "src" in results:
            self.loaded.append(results["src"])


def test_every_page_is_in_the_navigation_and_every_picture_in_the_site(site: Path) -> None:
    pages = {file.relative_to(ROOT / "docs").with_suffix(".html") for file in PAGES if file.name != "README.md"}
    linked = _Loads((site / "index.html").read_text(encoding="utf-8")).linked
    assert pages <= {Path(link) for link in linked}
    for file in site.rglob("*.html"):
        if file.name != "404.html":
            for name in _Loads(file.read_text(encoding="utf-8")).loaded:
                assert (file.parent / name.partition("?")[0]).is_file(), f"{file.name}: {name}"


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 5
    for file in site.rglob("*.html"):
        elsewhere = [name for name in _Loads(file.read_text(encoding="utf-8")).loaded if "//" in name]
        assert elsewhere == [], file.name
    for file in site.rglob("*.css"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", text), file.name


def test_search_finds_the_words_of_readers(search: Any) -> None:
    for words, answer in ANSWERS.items():
        search.get_by_role("combobox").fill(words)
        first = search.locator("li:nth-child(-n+3) > [role=option]")
        expect(first.and_(search.locator(f"[href$='/{answer}']")), words).to_be_visible(timeout=1000 * GUARD)


def test_every_method_has_a_page_that_tables_lead_to(site: Path) -> None:
    expected = {f"methods/{anchor(name)}.html" for name in METHODS}
    assert {f"methods/{file.name}" for file in (site / "methods").iterdir()} == expected
    for name in ("methods.html", "which-method.html"):
        text = (site / name).read_text(encoding="utf-8").partition("<article")[2]  # the navigation leads to all of them
        text = text.partition("</article>")[0]
        assert expected <= {*_Loads(text).linked}, name
        assert "methods.html#gradcam" not in text, name
        assert "<math" not in text, name
    assert "methods/dff.html" in _Loads((site / "coming-from.html").read_text(encoding="utf-8")).linked


def test_links_to_sections_that_are_no_pages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "docs" / "methods" / "cam.md"
    page.parent.mkdir(parents=True)
    page.touch()
    text = "[a](methods.md#cam) [b](../methods.md#cam) [c](methods.md#gradients)"
    linked = Markdown(extensions=[Links()]).convert(text)
    assert re.findall(r'href="(.+?)"', linked) == ["methods/cam.md", "../methods/cam.md", "methods.md#gradients"]


def test_equations_are_drawn_without_scripts(site: Path) -> None:
    names = [f"methods/{anchor(name)}.html" for name, method in METHODS.items() if method.equation]
    for name in (*names, "reference/python.html"):
        text = (site / name).read_text(encoding="utf-8")
        assert "<math" in text
        assert not any(
            "\\" in re.sub("<.*?>", "", drawn) for drawn in re.findall("<math.*?</math>", text, re.DOTALL)
        ), name
        assert not re.search(r"<merror|:math:|\.\. math::|\$[^$<]*\\[a-z]", text), name


def test_docstrings_become_markdown() -> None:
    text = "Map.\n\n.. math:: y = x\n    + 1\n\nwhere :math:`x` is ``1``.\n\n>>> f()\n2\n\nEnd."
    expected = "Map.\n\n```math\ny = x\n+ 1\n```\n\nwhere $x$ is `1`.\n\n```pycon\n>>> f()\n2\n```\n\nEnd."
    assert markdown(text) == expected


def test_every_public_name_of_the_library_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    methods = {entry.explainer.__name__ for entry in METHODS.values()} - {"GradCAM", "Saliency"}  # the page of methods
    listed = re.findall(r"^::: seewhy\.(?:\w+\.)+(\w+)$", text, flags=re.MULTILINE)
    remote = {"RemoteComparison", "RemoteExplanation", "RemoteLikeness", "RemotePrediction"}
    remote |= {"RemoteCapture", "RemoteIntervention", "RemoteSweep", "RemoteTrace"}
    results = {"MapWidget", *remote}  # nobody makes them oneself
    assert sorted({*listed} - results) == [name for name in seewhy.__all__ if name not in methods]
