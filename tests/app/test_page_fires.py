"""Why here: the channels that fire most in a marked part, or at a place that is clicked."""

import io
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, ask, upload
from tests.app.conftest import EXAMPLES
from tests.app.shapes import over

CAT = EXAMPLES / "cat.png"
SIZE = (451, 300)
SEEN = (94, 18, 358, 282)
"""What the model sees of the cat: left, top, right, bottom."""


@pytest.fixture
def cat(cat_page):
    """The page, and afterwards without a mark and a clicked place."""
    yield cat_page
    for name in ("#fires-close", "#marking-undo"):
        if cat_page.locator(name).is_visible() and cat_page.locator(name).is_enabled():
            cat_page.click(name)
    expect(cat_page.locator("#fires")).to_be_hidden()


def activations(url, layer):
    with np.load(io.BytesIO(ask(url, "/hooks/capture", layer=layer, format="npz").content)) as arrays:
        return arrays[f"{layer}/output/0"][0]


def means(maps, left, top, right, bottom):
    """The means of maps (C, H, W) in a box of the picture."""
    _, height, width = maps.shape

    def shares(first, last, start, stop, cells):
        edges = np.linspace(start, stop, cells + 1)
        return np.clip(np.minimum(last, edges[1:]) - np.maximum(first, edges[:-1]), 0, None)

    across = shares(left, right, SEEN[0], SEEN[2], width)
    down = shares(top, bottom, SEEN[1], SEEN[3], height)
    return np.einsum("chw,h,w->c", maps, down, across) / (down.sum() * across.sum())


def listed(page):
    """Wait for the list, and return its channels and values."""
    rows = page.locator("#fires-list button")
    expect(page.locator("#fires-list")).not_to_have_attribute("aria-busy", "true")
    expect(rows).to_have_count(5)
    return [
        (int(channel), float(value))
        for channel, value in (re.match(r"ch (\d+)\s(\S+)", text).groups() for text in rows.all_inner_texts())
    ]


def agree(page, values):
    shown = listed(page)
    for (channel, value), best in zip(shown, np.sort(values)[::-1], strict=False):
        assert value == pytest.approx(values[channel], rel=6e-3, abs=1e-3)
        assert values[channel] == pytest.approx(best, rel=1e-3)


def test_a_click_tells_which_channels_fire_there(cat, url):
    cat.mouse.click(*over(cat, 180, 120, SIZE))
    expect(cat.locator("#fires-title")).to_contain_text(re.compile(r"x 1(79|80|81), y 1(19|20|21)"))
    agree(cat, means(maps := activations(url, "bn2"), 180, 120, 181, 121))
    values = means(maps, 180, 120, 181, 121)
    full = np.flatnonzero(values > maps.max() - 1e-5)  # of ReLU6
    expect(cat.locator("#fires-most")).to_contain_text(f"{len(full)} channels reach 6, the highest value")
    averages = maps.mean((1, 2))
    assert [channel for channel, _ in listed(cat)][: len(full)] == sorted(full, key=averages.__getitem__)[:5]
    ring, place = cat.locator("#spot").bounding_box(), over(cat, 180, 120, SIZE)
    middle = (ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    assert middle == pytest.approx(place, abs=2)
    accessible(cat)
    (channel, _), *_ = listed(cat)
    cat.locator("#fires-list button").first.click()
    expect(cat.get_by_role("dialog", name=f"Channel {channel} of bn2")).to_be_visible()
    cat.keyboard.press("Escape")
    expect(cat.locator("dialog")).to_have_count(0)
    cat.get_by_role("button", name="Close").click()
    expect(cat.locator("#fires")).to_be_hidden()
    expect(cat.locator("#spot")).to_be_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 1100, 390])
def test_channels_stay_in_their_boxes(cat, width, request):
    request.addfinalizer(lambda: cat.set_viewport_size({"width": 1280, "height": 900}))
    cat.set_viewport_size({"width": width, "height": 900})
    cat.mouse.click(*over(cat, 180, 120, SIZE))
    listed(cat)
    cat.locator("#fires-list small").evaluate_all("all => all.forEach((one) => one.textContent = 'mean −0.111')")
    for box, text in zip(cat.locator("#fires-list button").all(), cat.locator("#fires-list small").all(), strict=True):
        outer, inner = box.bounding_box(), text.bounding_box()
        assert text.evaluate("text => text.scrollWidth <= text.clientWidth")
        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
    scrolls = cat.locator("#fires-list").evaluate("list => list.scrollWidth > list.clientWidth")
    assert scrolls == (width == 390)


@pytest.mark.slow
def test_a_marked_part_tells_which_channels_fire_in_it_and_the_layer_can_be_chosen(cat, url):
    box = (126, 60, 226, 180)
    cat.click("#marking-on")
    cat.mouse.move(*over(cat, *box[:2], SIZE))
    cat.mouse.down()
    cat.mouse.move(*over(cat, box[2] - 1, box[3] - 1, SIZE), steps=4)
    cat.mouse.up()
    cat.click("#marking-on")
    expect(cat.locator("#fires")).to_be_hidden()
    cat.click("#fires-open")
    expect(cat.locator("#fires-title")).to_have_text("Channels that respond most in your marked part")
    agree(cat, means(activations(url, "bn2"), *box))
    cat.click("#fires-layer")
    cat.get_by_label("Find a layer").fill("blocks.5")
    cat.locator("dialog input[value='blocks.5']").check()
    cat.get_by_role("button", name="Use this layer").click()
    expect(cat.locator("#fires-layer")).to_have_text("blocks.5")
    agree(cat, means(activations(url, "blocks.5"), *box))
    assert "inside=blocks.5" in cat.url
    cat.evaluate("async () => (await import('/static/js/state.js')).change({ inside: null })")
    expect(cat.locator("#fires-layer")).to_have_text("bn2")
    cat.mouse.click(*over(cat, 180, 120, SIZE))
    expect(cat.locator("#marking-said")).to_be_hidden()  # the place takes its turn
    cat.click("#fires-close")
    expect(cat.locator("#marking-said")).to_contain_text("Without your marked part")
    expect(cat.locator("#fires-open")).to_be_focused()
    cat.click("#fires-open")
    cat.keyboard.press("Escape")
    expect(cat.locator("#fires")).to_be_hidden()
    expect(cat.locator("#marker")).to_be_visible()
    cat.keyboard.press("Escape")
    expect(cat.locator("#marker")).to_be_hidden()


@pytest.mark.slow
def test_a_painted_part_tells_which_channels_fire_under_the_brush(tab, url):
    tab.goto(f"{url}/?example=cat&mark=hide:brush:189090qq90.18909090qq")  # an L, 44 of 1295 wide
    answered(tab)
    tab.click("#fires-open")
    with np.load(io.BytesIO(ask(url, "/hooks/capture", CAT, layer="bn2", format="npz").content)) as arrays:
        maps = arrays["bn2/output/0"][0]
    _, height, width = maps.shape
    left, top, right, bottom = SEEN
    x = left + (np.arange(20 * width) + 0.5) / (20 * width) * (right - left)
    y = top + (np.arange(20 * height) + 0.5)[:, None] / (20 * height) * (bottom - top)
    corner, ends, reach = np.multiply(324 / 1295, SIZE), np.multiply(962 / 1295, SIZE), 22 / 1295 * SIZE[0]
    across = np.hypot(x - np.clip(x, corner[0], ends[0]), y - corner[1]) <= reach
    down = np.hypot(x - corner[0], y - np.clip(y, corner[1], ends[1])) <= reach
    under = across | down
    shares = under.reshape(height, 20, width, 20).mean((1, 3))
    values = np.einsum("chw,hw->c", maps, shares) / shares.sum()
    shown = dict(listed(tab))
    assert list(shown.values()) == pytest.approx([values[channel] for channel in shown], rel=0.02)
    assert min(shown.values()) == pytest.approx(np.sort(values)[-6], rel=0.02)


@pytest.mark.slow
def test_the_keyboard_asks_too_and_unseen_places_say_so(page):
    upload(page).locator("#reader").press("Enter")
    expect(page.locator("#fires-title")).to_contain_text("x 225, y 150")
    listed(page)
    page.mouse.click(*over(page, 20, 20, SIZE))
    expect(page.locator("#fires-list")).to_have_text("The model does not see this place.")
    told, among = (page.locator(place).bounding_box()["width"] for place in ("#fires-list li", "#fires-list"))
    assert told == pytest.approx(among, abs=8)
    page.mouse.move(*over(page, 24, 24, SIZE))
    expect(page.locator("#reading")).to_have_text(re.compile(r"^x \d+, y \d+: the model does not see this place$"))
    expect(page.locator("#bar-mark")).to_be_hidden()
    upload(page, "coffee.png")
    expect(page.locator("#fires")).to_be_hidden()
