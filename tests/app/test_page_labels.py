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


class Branched(Hues):
    """The same with another branch, so that votes cannot be counted."""

    def forward(self, images):
        return super().forward(images) + images.amax(dim=(2, 3))


def test_a_method_that_another_one_replaces_says_so(browser, tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT), (255, 80, 0)).save(tmp_path / "orange.png")
    with served(tmp_path, Branched(), ["red", "green", "blue"], "softmax") as url, opened(browser, url) as tab:
        tab.goto(f"{url}/?method=votes")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", tmp_path / "orange.png")
        answered(tab)
        summary = tab.locator("#method-summary")
        expect(summary).to_have_text("It cannot be applied here: Grad-CAM drew this map instead.")
        tab.select_option("#method", "gradcam")
        expect(summary).not_to_contain_text("It cannot be applied")


LONG = ["solder_bridge_between_pins", "Donaudampfschifffahrtsgesellschaft", "cut trace"]
"""Names that have no space where a line may end."""

BESIDE = """selector => [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility() && element.textContent.trim())
    .filter((element) => {
        const [range, around] = [document.createRange(), element.closest("section").getBoundingClientRect()];
        range.selectNodeContents(element);
        return range.getBoundingClientRect().right > around.right + 4; // outlines of the list have room
    })
    .map((element) => element.textContent)"""
"""The texts that reach beyond the section that they belong to."""


@pytest.mark.parametrize("width", [1440, 1100, 390])
def test_long_names_without_a_space_stay_in_their_column(browser, tmp_path, width):
    Image.new("RGB", (WIDTH, HEIGHT), (255, 80, 0)).save(tmp_path / "orange.png")
    with served(tmp_path, Hues(), LONG, "softmax") as url, opened(browser, url) as tab:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(f"{url}/?method=gradcam")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", tmp_path / "orange.png")
        answered(tab)
        assert tab.evaluate(BESIDE, "#classes *") == []
        tab.get_by_role("button", name=f"Contrast with {LONG[1]}").click()  # nothing covers it
        expect(tab.locator("#contrast-text")).to_contain_text(f"{LONG[0]} rather than {LONG[1]}")
        assert tab.evaluate(BESIDE, "#classes *") == []
        tab.evaluate(
            "async () => (await import('/static/js/state.js')).change({ show: 'inside', inside: 'features', off: [0] })"
        )
        expect(tab.locator("#effect-summary")).to_contain_text("Without channel 0 of features")
        assert tab.evaluate(BESIDE, "#effect *") == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
