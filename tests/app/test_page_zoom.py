"""A closer look at the picture: enlarged in its frame, or on the full screen."""

import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, upload
from tests.app.shapes import left, over

pytestmark = pytest.mark.slow

SIZE = (451, 300)


@pytest.fixture
def cat(cat_page):
    """The page with the answer to the picture of the cat, at its usual size."""
    while cat_page.locator("#zoom-out").is_enabled():
        cat_page.click("#zoom-out")
    return cat_page


def sides(page, name):
    box = page.locator(name).bounding_box()
    return box["width"], box["height"]


def test_zoom_enlarges_the_picture_in_its_frame_around_the_pointer(cat):
    usual = sides(cat, "#viewport")
    assert sides(cat, "#stage") == pytest.approx(usual)
    place = over(cat, 300, 100, SIZE)
    cat.mouse.move(*place)
    expect(cat.locator("#reading")).to_contain_text(re.compile(r"x (299|300|301), y (99|100|101): "))
    # A busy browser makes one event of several turns, so it is not asked to turn the wheel.
    turn = """([x, y, deltaY]) => document.elementFromPoint(x, y).dispatchEvent(
        new WheelEvent("wheel", { ctrlKey: true, deltaY, clientX: x, clientY: y, bubbles: true, cancelable: true })
    )"""
    for _ in range(3):
        assert cat.evaluate(turn, [*place, -50]) is False  # the browser does not zoom the page
    assert sides(cat, "#stage")[0] == pytest.approx(2**1.5 * usual[0], rel=0.01)
    assert sides(cat, "#viewport") == pytest.approx(usual, abs=1)
    assert over(cat, 300, 100, SIZE) == pytest.approx(place, abs=3)
    accessible(cat)
    cat.evaluate(turn, [*place, 151])
    expect(cat.locator("#zoom-out")).to_be_disabled()
    assert sides(cat, "#stage") == pytest.approx(usual)


def test_each_button_undoes_the_other(cat):
    sizes = [sides(cat, "#stage")[0]]
    while cat.locator("#zoom-in").is_enabled():
        cat.click("#zoom-in")
        sizes.append(sides(cat, "#stage")[0])
    assert sizes[-1] == pytest.approx(8 * sizes[0], rel=0.01)
    for size in reversed(sizes[:-1]):
        cat.click("#zoom-out")
        assert sides(cat, "#stage")[0] == pytest.approx(size, rel=0.001)
    expect(cat.locator("#zoom-out")).to_be_disabled()


def test_a_drag_moves_the_enlarged_picture_and_is_no_click(cat):
    for _ in range(3):
        cat.click("#zoom-in")
    place = "one => [one.scrollLeft, one.scrollTop]"
    before = cat.locator("#viewport").evaluate(place)
    box = cat.locator("#viewport").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    cat.mouse.move(x, y)
    cat.mouse.down()
    cat.mouse.move(x + 40, y - 30, steps=4)
    cat.mouse.up()
    assert cat.locator("#viewport").evaluate(place) == pytest.approx([before[0] - 40, before[1] + 30], abs=1)
    expect(cat.locator("#fires")).to_be_hidden()
    expect(cat.locator("#marker")).to_be_hidden()
    cat.mouse.click(x, y)
    expect(cat.locator("#fires")).to_be_visible()
    cat.click("#fires-close")


def test_a_button_released_beside_the_enlarged_picture_ends_a_drag(cat):
    for _ in range(3):
        cat.click("#zoom-in")
    place = "one => [one.scrollLeft, one.scrollTop]"
    before = cat.locator("#viewport").evaluate(place)
    left(cat)
    box = cat.locator("#viewport").bounding_box()
    cat.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    expect(cat.locator("#reading")).to_contain_text("x ")
    assert cat.locator("#viewport").evaluate(place) == before


def test_what_is_read_and_marked_keeps_its_place_in_an_enlarged_picture(cat):
    cat.click("#zoom-in")
    cat.click("#zoom-in")
    cat.mouse.move(*over(cat, 200, 150, SIZE))
    expect(cat.locator("#reading")).to_contain_text("x 200, y 150: ")
    cat.click("#marking-on")
    cat.mouse.move(*over(cat, 180, 120, SIZE))
    cat.mouse.down()
    cat.mouse.move(*over(cat, 240, 170, SIZE), steps=4)
    cat.mouse.up()
    expect(cat.locator("#marker")).to_have_attribute("aria-valuetext", "x 180 to 241, y 120 to 171")
    cat.keyboard.press("Escape")
    cat.click("#marking-on")


def test_keys_zoom_and_another_picture_has_its_usual_size(page):
    upload(page)
    page.locator("#reader").press("+")
    assert sides(page, "#stage")[0] > 1.4 * sides(page, "#viewport")[0]
    page.locator("#reader").press("-")
    expect(page.locator("#zoom-out")).to_be_disabled()
    page.click("#zoom-in")
    upload(page, "coffee.png")
    expect(page.locator("#zoom-out")).to_be_disabled()


@pytest.mark.parametrize("width", [1280, 390])
def test_buttons_and_handle_leave_a_wide_picture_free(page, tmp_path, width):
    page.set_viewport_size({"width": width, "height": 844})
    Image.effect_noise((1200, 120), 50).convert("RGB").save(tmp_path / "wide.png")
    page.set_input_files("#image", tmp_path / "wide.png")
    answered(page)
    picture, proof, buttons, handle = (
        page.locator(name).bounding_box() for name in ("#viewport", "#proof", "#zoom", "#wipe span")
    )
    if width == 390:
        assert picture["y"] + picture["height"] < buttons["y"]
        assert handle["x"] >= picture["x"]
    else:
        assert picture["x"] + picture["width"] < buttons["x"]
    assert buttons["x"] + buttons["width"] <= width
    assert buttons["y"] + buttons["height"] < proof["y"]


def test_the_answer_fills_the_screen_without_the_settings(cat):
    cat.click("#full-screen")
    cat.wait_for_function("() => document.fullscreenElement?.id === 'panel-explain'")
    expect(cat.locator("#look")).to_be_visible()
    expect(cat.locator("#alpha")).to_be_visible()
    expect(cat.locator("#predictions")).to_be_visible()
    expect(cat.locator("#settings")).to_be_hidden()
    cat.locator("#stage").click()
    expect(cat.locator("#fires-list button")).to_have_count(5)
    panel = cat.locator("#result").bounding_box()
    assert panel["y"] + panel["height"] == pytest.approx(cat.evaluate("innerHeight"), abs=1)  # no text comes below it
    cat.click("#fires-close")
    cat.click("#full-screen")
    cat.wait_for_function("() => !document.fullscreenElement")
