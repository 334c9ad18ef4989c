"""The view that alternates picture and heatmap."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browsing import accessible

SHOWN = "map => getComputedStyle(map).visibility"


@pytest.fixture
def blinking(cat_page):
    cat_page.select_option("#look", "blink")
    yield cat_page
    cat_page.emulate_media(reduced_motion="reduce")


def test_without_motion_a_button_and_a_key_switch_between_picture_and_heatmap(blinking):
    heatmap, stage = blinking.locator("#stage .map"), blinking.locator("#stage")
    expect(blinking.locator("#look")).to_have_value("blink")
    assert heatmap.evaluate(SHOWN) == "visible"
    assert heatmap.evaluate("map => map.getAnimations().length") == 0
    blinking.get_by_role("button", name="Show the picture").click()
    assert heatmap.evaluate(SHOWN) == "hidden"
    accessible(blinking)
    blinking.keyboard.press("b")
    assert heatmap.evaluate(SHOWN) == "visible"
    blinking.locator("#target").press("b")  # typed text is no command
    assert heatmap.evaluate(SHOWN) == "visible"
    blinking.keyboard.press("Escape")
    blinking.get_by_role("button", name="Show the picture").click()
    blinking.select_option("#look", "overlay")
    assert heatmap.evaluate(SHOWN) == "visible"
    expect(blinking.locator("#blink")).to_be_hidden()
    expect(stage).not_to_have_class(re.compile("blinking|bare"))


def test_with_motion_it_alternates_slowly_and_can_be_paused(blinking):
    blinking.emulate_media(reduced_motion="no-preference")
    heatmap = blinking.locator("#stage .map")
    states = heatmap.evaluate(
        """map => {
            const [animation] = map.getAnimations();
            animation.pause();
            const { duration } = animation.effect.getTiming();
            return [duration, ...[0.25, 0.75].map((share) => {
                animation.currentTime = share * duration;
                return getComputedStyle(map).visibility;
            })];
        }"""
    )
    assert states[0] >= 1000  # far from flashing
    assert states[1:] == ["visible", "hidden"]
    blinking.get_by_role("button", name="Pause").click()
    assert heatmap.evaluate("map => map.getAnimations().length") == 0
    assert heatmap.evaluate(SHOWN) == "visible"
    blinking.keyboard.press("b")
    assert heatmap.evaluate("map => map.getAnimations().length") == 1
