"""The pages about methods agree with the catalogue and its drawings."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from docs import choice, drawn, metrics
from docs.advice import ADVICE
from docs.method_pages import pages
from docs.methods import (
    ACCURACIES,
    DRAWING,
    FAMILIES,
    IMAGES,
    PAGE,
    ROOT,
    anchor,
    drawing,
    file_of,
    is_photographed,
    page,
    subject,
)
from seewhy.explainers import explain
from seewhy.explainers.methods.catalogue import METHODS, list_methods
from seewhy.models import list_models
from tests.grids import few

DRAWN = [name for name, method in METHODS.items() if is_photographed(method) and method.forwards in ("1", "2")]
"""The methods of few passes: to draw the others takes minutes each."""

CHEAP = ("gradcam", "saliency", "lrp")


def is_committed(actual, file):
    """Return whether a picture is that of a file."""
    with Image.open(file) as image:
        committed = image.convert("RGB")
    # JPEG blurs the noise of fine maps; in means of eight by eight pixels little is left of that.
    coarse = [np.asarray(picture.reduce(8)).astype(int) for picture in (actual, committed)]
    return actual.size == committed.size and np.abs(coarse[0] - coarse[1]).max() < 12


def test_the_page_of_methods_is_what_the_catalogue_says():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make methods"
    assert {method.family for method in METHODS.values()} <= set(FAMILIES)
    assert {path.name for path in IMAGES.iterdir()} == {file_of(method) for method in METHODS.values()}


def test_the_page_that_helps_to_choose_is_what_the_catalogue_says():
    assert choice.PAGE.read_text(encoding="utf-8") == choice.page(), "run make methods"
    assert choice.CHART.read_text(encoding="utf-8") == choice.chart(), "run make methods"
    names = [name for questions in choice.CHOICES.values() for _, methods, _ in questions for name in methods]
    assert set(names) <= METHODS.keys()
    assert all(f"](images/methods/{file_of(method)})](methods.md#" in choice.page() for method in METHODS.values())


def test_each_method_has_a_page_of_the_site():
    texts = pages()
    assert texts.keys() == {f"{anchor(name)}.md" for name in METHODS}
    for name, method in METHODS.items():
        text = texts[f"{anchor(name)}.md"]
        assert re.match(rf"# .+ \(`{re.escape(name)}`\)\n", text)
        assert method.summary in text
        assert method.equation.partition("\n")[0] in text
        assert all(paper.url in text for paper in method.papers)
        assert f"](../images/methods/{file_of(method)})" in text
        assert is_photographed(method) == ("EfficientNet-Lite0 for *tabby*" in text)
        assert f"`seewhy.{method.explainer.__name__}(" in text
        for option, schema in method.options.items():
            default = "the model's default" if option == "layers" else f"`{schema['default']}`"
            assert re.search(rf"^\| `{option.removesuffix('s')}s?` \|.*\| {re.escape(default)} \|$", text, re.MULTILINE)
        for link in re.findall(r"\]\(([a-z0-9-]+\.md)\)", text):
            assert link in texts, f"{name}: {link}"


def test_each_method_is_in_the_navigation_of_the_site():
    entries = re.findall(r"^ +- (.+): methods/(.+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    names = [name for family in FAMILIES for name in list_methods() if METHODS[name].family == family]
    assert entries == [(name, anchor(name)) for name in names], "list it in mkdocs.yml"


def test_the_costs_on_the_pages_are_those_of_the_defaults():
    texts = pages()
    assert "| Cost | 1 forward pass, 1 backward pass, for each picture and class |" in texts["gradcam.md"]
    assert "`1 + samples` forward passes (1,001 by default), 0 backward passes" in texts["rise.md"]
    assert "| Cost | `1 + channels` forward passes, 0 backward" in texts["scorecam.md"]


def test_the_examples_on_the_pages_name_models_and_methods():
    for name, text in pages().items():
        code = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
        compile(code, name, "exec")
        assert re.search(r'load_model\("(\w+)"\)', code)[1] in list_models()
        assert re.search(r'"photo.jpg", "([a-z+-]+)"', code)[1] in METHODS


def test_the_advice_is_about_all_methods_and_leads_to_others():
    assert ADVICE.keys() == METHODS.keys()
    for name, (use, avoid, related) in ADVICE.items():
        assert use.endswith("."), name
        assert avoid.endswith("."), name
        assert {*related} <= METHODS.keys() - {name}, name
        assert len({*related}) == len(related) > 0, name


def test_the_page_of_metrics_is_what_the_catalogue_says():
    text = metrics.PAGE.read_text(encoding="utf-8")
    assert text == metrics.page(metrics.printed(text)), "run make methods"


@pytest.mark.parametrize("name", few(DRAWN, CHEAP))
def test_pictures_of_methods_are_what_the_software_draws(name, lite0):
    method = METHODS[name]
    assert is_committed(drawing(lite0, method), IMAGES / file_of(method)), f"run python -m docs.methods {name}"


PEAKS = {"attention-rollout": (2, 2), "chefer": (0, 2), "legrad": (0, 2), "drise": (0, 2), "grid-saliency": (0, 1)}
"""The shapes at which the map of each target of the drawing is largest; in its picture, so by `drawn.SHAPES`."""


def test_each_method_without_a_photograph_explains_the_drawing():
    assert {name for name, method in METHODS.items() if not is_photographed(method)} == PEAKS.keys()
    for name in PEAKS:
        assert subject(METHODS[name])[0] in drawn.RECIPES
    assert is_committed(drawn.picture(), DRAWING), "run python -m docs.drawn"


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn.RECIPES)
def test_the_networks_of_the_drawing_know_it_and_maps_show_what_the_page_says(name):
    """Rounding differs between processors, so training makes another network elsewhere, and other pictures."""
    network = drawn.train(drawn.RECIPES[name])
    share = json.loads(ACCURACIES.read_text(encoding="utf-8"))[name]
    assert drawn.accuracy(drawn.RECIPES[name], network) == pytest.approx(share, abs=0.03)
    model, shapes = drawn.model(name, network), drawn.scene().masks[0]
    # At most half a cell of a grid of eight beside the shape.
    near = functional.max_pool2d(shapes[None].float(), 13, 1, 6)[0] > 0
    for method, peaks in PEAKS.items():
        kind, targets = subject(METHODS[method])
        if kind == name:
            for target, shape in zip(targets, peaks, strict=True):
                found = explain(model, drawn.picture(), method, target)
                coarse = torch.from_numpy((found[0] if isinstance(found, list) else found).map)
                values = functional.interpolate(coarse[None, None], (drawn.SIDE, drawn.SIDE), mode="bilinear")
                assert near[shape].flatten()[values.argmax()], (method, target)
