"""The page with labels of which several may apply at once, and with the same labels as exclusive classes."""

import re

import pytest
from PIL import Image
from playwright.sync_api import expect
from torch import nn

from tests.app.browsing import answered
from tests.app.conftest import opened
from tests.app.shapes import HEIGHT, WIDTH, served

pytestmark = pytest.mark.slow

RED = 38
"""Columns of the picture that are red; the others are green."""


class Hues(nn.Module):
    """Which of red, green and blue there is in a picture in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 3, 1, bias=False)
        nn.init.dirac_(self.features.weight)

    def forward(self, images):
        return 20 * self.features(images).mean(dim=(2, 3)) - 3


@pytest.fixture(scope="module", params=["sigmoid", "softmax"])
def hues(request, browser, tmp_path_factory):
    """The page with a picture that is mostly red, and whether its labels exclude each other."""
    folder = tmp_path_factory.mktemp("hues")
    picture = Image.new("RGB", (WIDTH, HEIGHT), (0, 255, 0))
    picture.paste((255, 0, 0), (0, 0, RED, HEIGHT))
    picture.save(folder / "hues.png")
    with served(folder, Hues(), ["red", "green", "blue"], request.param) as url, opened(browser, url) as tab:
        tab.goto(f"{url}/?method=gradcam&mark=hide:0,0,{RED},{HEIGHT}")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", folder / "hues.png")
        yield answered(tab), request.param == "softmax"


def test_labels_that_hold_at_once_have_no_best_one(hues):
    page, is_exclusive = hues
    said = page.locator("#marking-said")
    expect(said).to_have_text(re.compile(r"^Without your marked part, red falls from [>\d.]+% to [\d.]+%\."))
    assert ("The best class is now green" in said.inner_text()) == is_exclusive
    page.evaluate(
        "async () => (await import('/static/js/state.js')).change({ show: 'inside', inside: 'features', off: [0] })"
    )
    summary = page.locator("#effect-summary")
    expect(summary).to_have_text(re.compile(r"^Without channel 0 of features, red falls from "))
    assert ("The best class is now green" in summary.inner_text()) == is_exclusive


def test_controls_without_a_use_say_nothing(hues):
    page, _ = hues
    expect(page.locator(".rather:disabled")).to_have_attribute("title", "")
    expect(page.locator(".rather:enabled").first).to_have_attribute("title", re.compile("Why red rather than "))
    expect(page.locator("#boxes option")).to_have_count(0)
