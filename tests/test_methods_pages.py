"""The pages about methods are what the catalogue says and draws."""

import numpy as np
import pytest
from PIL import Image

from docs import choice, metrics
from docs.methods import FAMILIES, IMAGES, PAGE, anchor, drawing, file_of, is_drawn, page
from seewhy.explainers.methods.catalogue import METHODS
from tests.grids import few

DRAWN = [name for name, method in METHODS.items() if is_drawn(method) and method.forwards in ("1", "2")]
"""The methods of few passes: to draw the others takes minutes each."""

CHEAP = ("gradcam", "saliency", "lrp")


def test_the_page_of_methods_is_what_the_catalogue_says():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make methods"
    assert {method.family for method in METHODS.values()} <= set(FAMILIES)
    assert {path.name for path in IMAGES.iterdir()} == {
        file_of(method) for method in METHODS.values() if is_drawn(method)
    }


def test_the_page_that_helps_to_choose_is_what_the_catalogue_says():
    assert choice.PAGE.read_text(encoding="utf-8") == choice.page(), "run make methods"
    assert choice.CHART.read_text(encoding="utf-8") == choice.chart(), "run make methods"
    names = [name for questions in choice.CHOICES.values() for _, methods, _ in questions for name in methods]
    assert set(names) <= METHODS.keys()
    assert all(f"](methods.md#{anchor(name)})" in choice.page() for name in METHODS)


def test_the_page_of_metrics_is_what_the_catalogue_says():
    text = metrics.PAGE.read_text(encoding="utf-8")
    assert text == metrics.page(metrics.printed(text)), "run make methods"


@pytest.mark.parametrize("name", few(DRAWN, CHEAP))
def test_pictures_of_methods_are_what_the_software_draws(name, lite0):
    actual = drawing(lite0, METHODS[name])
    with Image.open(IMAGES / file_of(METHODS[name])) as image:
        committed = image.convert("RGB")
    assert actual.size == committed.size
    # JPEG blurs the noise of fine maps; in means of eight by eight pixels little is left of that.
    coarse = [np.asarray(picture.reduce(8)).astype(int) for picture in (actual, committed)]
    assert np.abs(coarse[0] - coarse[1]).max() < 12, f"run python -m docs.methods {name}"
