"""Asking the picture: a part of it is marked, and the classes move."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from playwright.sync_api import expect
from torch import nn

from tests.app.browsing import accessible, answered, ask, explained_anew, levels, upload
from tests.app.conftest import EXAMPLES, opened
from tests.app.shapes import HEIGHT, WIDTH, left, over, served
from tests.grids import few

BOX = (126, 60, 226, 180)  # the left eye of the cat
SIZE = (451, 300)
PARTS = {
    "hide": "Without your marked part",
    "blur": "With your marked part blurred",
    "fill": "With your marked part filled with its surroundings",
    "keep": "With only your marked part",
}


@pytest.fixture(scope="module")
def cat_page(browser, url):
    """The page with the answer to the picture of the cat, for one mark after another."""
    with opened(browser, url) as tab:
        tab.goto(url)
        upload(tab)
        tab.click("#marking-on")
        yield tab


@pytest.fixture
def cat(cat_page):
    """The same, without a mark."""
    if cat_page.locator("#marker").is_visible():
        cat_page.keyboard.press("Escape")
    return cat_page


def drag(page, start, stop, drop=True):
    page.mouse.move(*over(page, *start, SIZE))
    page.mouse.down()
    page.mouse.move(*over(page, *stop, SIZE), steps=4)
    if drop:
        page.mouse.up()


def told(page, beginning="(Without|With|With only) your marked part"):
    """Wait for the sentence about the mark, and return it."""
    expect(page.locator("#marking-said")).to_have_text(re.compile(f"^{beginning}.* (falls|rises|stays) "))
    expect(page.locator("#marking-said")).not_to_have_attribute("aria-busy", "true")
    return page.inner_text("#marking-said")


def boxed():
    """Where the box is."""
    left, top, right, bottom = BOX
    part = np.zeros(SIZE[::-1], bool)
    part[top:bottom, left:right] = True
    return part


def painted(strokes, width):
    """Where straight strokes of a brush are, each from its start to its end."""
    part = Image.new("1", SIZE)
    draw = ImageDraw.Draw(part)
    for ends in strokes:
        draw.line(ends, 1, round(width))
        for x, y in ends:
            draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), 1)
    return np.asarray(part)


def mirrored(picture):
    """The picture with the surroundings of the box mirrored into it, beyond the nearest edge."""
    left, top, right, bottom = BOX
    other = picture.copy()
    for y in range(top, bottom):
        for x in range(left, right):
            sources = [(2 * left - 1 - x, y), (2 * right - 1 - x, y), (x, 2 * top - 1 - y), (x, 2 * bottom - 1 - y)]
            inside = [(u, v) for u, v in sources if 0 <= u < SIZE[0] and 0 <= v < SIZE[1]]
            u, v = min(inside, key=lambda place, x=x, y=y: abs(place[0] - x) + abs(place[1] - y))
            other[y, x] = picture[v, u]
    return other


def covered(how, part):
    """The picture that the model is asked about, drawn here; of a blurred part by another filter."""
    picture = levels(EXAMPLES / "cat.png").astype(np.uint8)
    if how == "fill":
        other = mirrored(picture)
    elif how == "blur":
        small = Image.fromarray(picture).resize((16, 11), Image.Resampling.BOX)
        other = np.asarray(small.resize(SIZE, Image.Resampling.BILINEAR))
    else:
        other = np.broadcast_to(picture.mean((0, 1)).round().astype(np.uint8), picture.shape)
    encoded = io.BytesIO()
    Image.fromarray(np.where((part ^ (how == "keep"))[..., None], other, picture)).save(encoded, "PNG")
    return encoded.getvalue()


def probabilities(url, picture, tmp_path):
    (tmp_path / "covered.png").write_bytes(picture)
    answer = ask(url, "/predict", tmp_path / "covered.png", top=1000).json()
    return {row["label"]: row["probability"] for row in answer["predictions"]}


@pytest.mark.parametrize("how", few(PARTS, short=["hide"]))
def test_the_classes_move_without_a_part_and_a_sentence_says_how(cat, url, tmp_path, how):
    cat.check(f"[name=how][value={how}]", force=True)
    drag(cat, BOX[:2], (BOX[2] - 1, BOX[3] - 1))
    sentence = told(cat, PARTS[how])
    assert f"mark={how}%3A{'%2C'.join(map(str, BOX))}" in cat.url
    expected = probabilities(url, covered(how, boxed()), tmp_path)
    before, after = (float(share) for share in re.search(r"from ([\d.]+)% to ([\d.]+)%", sentence).groups())
    assert before == float(cat.inner_text("#answer-probability")[:-1])
    assert after == pytest.approx(100 * expected["tiger cat"], abs=3 if how == "blur" else 1)
    best = max(expected, key=expected.get)
    assert (f"The best class is now {best}, " in sentence) == (best != "tiger cat")
    row = cat.locator("#predictions .class", has_text="tiger cat").locator(".share")
    expect(row).to_have_text(f"{after}% −{before - after:.1f} pp" if how != "blur" else re.compile("%"))
    shown = cat.locator("#covered canvas").evaluate(
        "(canvas, [x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]", [BOX[0] + 5, BOX[1] + 5]
    )
    assert shown == (0 if how == "keep" else 255)
    accessible(cat)


def test_a_drag_marks_without_the_button_and_is_no_click(cat):
    cat.click("#marking-on")  # it is off
    drag(cat, BOX[:2], (BOX[2] - 1, BOX[3] - 1))
    expect(cat.locator("#marker")).to_have_attribute("aria-valuetext", "x 126 to 226, y 60 to 180")
    told(cat)
    expect(cat.locator("#spot")).to_be_hidden()
    drag(cat, (150, 100), (160, 110))
    expect(cat.locator("#marker")).to_have_attribute("aria-valuetext", "x 136 to 236, y 70 to 190")
    cat.mouse.click(*over(cat, 180, 120, SIZE))  # inside of it
    expect(cat.locator("#fires-title")).to_contain_text(re.compile(r"at x 1(79|80|81), y 1(19|20|21)"))
    cat.click("#marking-on")


STROKES = (((140, 110), (230, 110)), ((230, 200), (230, 280)))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hide", "keep"])
def test_a_brush_paints_the_part_and_undo_takes_back_its_strokes(cat, url, tmp_path, how):
    cat.check(f"[name=how][value={how}]", force=True)
    cat.get_by_role("button", name="Brush").click()
    addresses = []
    for ends in STROKES:
        drag(cat, *ends)
        told(cat, PARTS[how])
        assert re.search(rf"mark={how}%3Abrush%3A[0-9a-z.]{{10,40}}$", cat.url)
        addresses.append(cat.url)
    alphas = [
        cat.locator("#covered canvas").evaluate(
            "(canvas, [x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]", place
        )
        for place in [(180, 110), (230, 240), (180, 240)]  # on both strokes, and beside them
    ]
    assert alphas == ([255, 255, 0] if how == "hide" else [0, 0, 255])
    width = 28 / cat.locator("#stage").bounding_box()["width"] * SIZE[0]
    expected = probabilities(url, covered(how, painted(STROKES, width)), tmp_path)
    after = float(re.search(r" (?:to|at) <?([\d.]+)%", told(cat)).group(1))
    assert after == pytest.approx(100 * expected["tiger cat"], abs=2)
    accessible(cat)
    cat.click("#marking-undo")
    expect(cat).to_have_url(addresses[0])
    before = cat.locator("#marker").bounding_box()
    cat.locator("#marker").press("ArrowRight")
    assert re.search(rf"mark={how}%3Abrush%3A", cat.url)
    assert cat.locator("#marker").bounding_box()["x"] > before["x"] + 5
    cat.click("#marking-undo")
    expect(cat.locator("#marker")).to_be_hidden()
    assert "mark=" not in cat.url
    cat.click("#marking-on")


def test_a_click_of_the_brush_paints_a_dot(cat):
    cat.get_by_role("button", name="Brush").click()
    cat.mouse.click(*over(cat, 180, 120, SIZE))
    told(cat)
    assert re.search(r"mark=\w+%3Abrush%3A[0-9a-z]{10}$", cat.url)
    alphas = [
        cat.locator("#covered canvas").evaluate(
            "(canvas, [x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]", place
        )
        for place in [(180, 120), (220, 120)]
    ]
    assert (alphas[0] > 0) != (alphas[1] > 0)
    expect(cat.locator("#spot")).to_be_hidden()
    cat.click("#marking-on")


def test_a_button_released_beside_the_picture_ends_a_drag(cat):
    cat.click("#marking-on")  # it is off
    left(cat)
    cat.mouse.move(*over(cat, 200, 150, SIZE), steps=4)
    expect(cat.locator("#reading")).to_contain_text("x 200, y 150: ")
    expect(cat.locator("#marker")).to_be_hidden()
    cat.mouse.down()
    cat.mouse.up()
    assert "mark=" not in cat.url
    cat.click("#fires-close")
    cat.click("#marking-on")


@pytest.mark.slow
def test_a_drag_ends_without_an_answer(tab, url):
    tab.goto(url)
    upload(tab)
    drag(tab, BOX[:2], BOX[2:], drop=False)
    expect(tab.locator("#marker")).to_be_visible()
    tab.evaluate("async () => (await import('/static/js/state.js')).change({ answer: null })")
    expect(tab.locator("#marker")).to_be_hidden()
    tab.mouse.move(*over(tab, 150, 150, SIZE), steps=2)
    tab.mouse.up()
    assert tab.evaluate("async () => (await import('/static/js/state.js')).state.mark") is None


@pytest.mark.slow
def test_a_part_that_fits_into_no_link_is_refused(cat):
    mark = "hide:brush:18" + 700 * "9090"
    cat.evaluate("async (mark) => (await import('/static/js/state.js')).change({ mark })", mark)
    cat.get_by_role("button", name="Brush").click()
    drag(cat, *STROKES[0])
    told(cat)  # which fits
    for _ in range(20):
        drag(cat, *STROKES[1])
    expect(cat.locator("#problem")).to_contain_text("too intricate for a link: undo a stroke")
    assert 2900 < len(cat.url) < 3200
    cat.click("#marking-undo")
    drag(cat, *STROKES[0])
    expect(cat.locator("#problem")).to_be_hidden()
    cat.click("#marking-on")


def test_escape_takes_a_mark_back_and_undo_too(cat):
    for leave in (lambda: cat.keyboard.press("Escape"), cat.get_by_role("button", name="Undo").click):
        drag(cat, BOX[:2], BOX[2:])
        told(cat)
        expect(cat.locator("#whole")).to_be_visible()  # the headline is not about the altered picture
        leave()
        expect(cat.locator("#marker")).to_be_hidden()
        assert "mark=" not in cat.url
        expect(cat.locator("#covered canvas")).to_have_count(0)
        expect(cat.locator("#predictions .moved")).to_have_count(0)
        expect(cat.locator("#whole")).to_be_hidden()
        expect(cat.get_by_role("button", name="Undo")).to_be_disabled()
    cat.click("#marking-on")  # which ends the drawing of boxes
    for how, said in (("keep", "for it alone"), ("blur", "with it blurred"), ("hide", "without it")):
        cat.locator(f"[name=how][value={how}]").check(force=True)
        expect(cat.locator("#marking-said")).to_contain_text(f"Mark a part to see the prediction {said}. ")
    cat.click("#marking-on")


@pytest.mark.slow
def test_escape_ends_a_drag_and_the_mark_before_stays(cat):
    drag(cat, BOX[:2], BOX[2:])
    told(cat)
    address, place = cat.url, cat.locator("#marker").bounding_box()
    drag(cat, (20, 20), (60, 60), drop=False)
    assert cat.locator("#marker").bounding_box() != place
    cat.keyboard.press("Escape")
    cat.mouse.up()
    assert cat.locator("#marker").bounding_box() == place
    assert cat.url == address
    drag(cat, (150, 100), (160, 110))  # within the mark: it is moved
    expect(cat.locator("#marker")).to_have_attribute("aria-valuetext", "x 136 to 237, y 70 to 191")
    told(cat)


@pytest.mark.slow
def test_the_keyboard_marks_moves_sizes_and_removes(page):
    upload(page)
    page.locator("#marking-on").press("Enter")
    marker = page.locator("#marker")
    expect(marker).to_be_focused()
    expect(marker).to_have_attribute("aria-valuetext", "x 159 to 292, y 84 to 216")
    told(page)
    marker.press("ArrowRight")
    expect(marker).to_have_attribute("aria-valuetext", "x 170 to 303, y 84 to 216")
    marker.press("Shift+ArrowUp")
    expect(marker).to_have_attribute("aria-valuetext", "x 170 to 303, y 84 to 205")
    for _ in range(20):
        marker.press("ArrowDown")
    expect(marker).to_have_attribute("aria-valuetext", "x 170 to 303, y 179 to 300")  # it stays in the picture
    expect(page.locator("#status")).to_contain_text("Without your marked part")
    marker.press("Delete")
    expect(marker).to_be_hidden()
    expect(page.locator("#marking-on")).to_be_focused()


@pytest.mark.slow
def test_a_link_holds_a_mark_and_another_picture_has_none(tab, url):
    tab.goto(f"{url}/?example=cat&mark=keep:126,60,226,180")
    answered(tab)
    sentence = told(tab, PARTS["keep"])
    fields = explained_anew(tab, lambda: tab.click("#predictions .class:has-text('Egyptian')"))
    assert ("target", "285") in fields
    assert "mark" not in dict(fields)
    assert told(tab, PARTS["keep"] + ", Egyptian cat") != sentence
    upload(tab, "coffee.png")
    assert "mark=" not in tab.url
    expect(tab.locator("#marker")).to_be_hidden()
    for nothing in ("900,900,950,950", "brush:1z", "brush:"):
        tab.goto(f"{url}/?example=cat&mark=keep:{nothing}")
        answered(tab)
        expect(tab).to_have_url(f"{url}/?example=cat")


@pytest.mark.slow
def test_a_part_at_the_left_edge_is_marked_beside_the_handle_that_wipes(tab, url):
    tab.goto(f"{url}/?example=cat")
    answered(tab)
    drag(tab, (3, 30), (120, 110))
    expect(tab).to_have_url(f"{url}/?example=cat&mark=hide%3A3%2C30%2C121%2C111")
    expect(tab.locator("#wipe")).to_have_attribute("aria-valuenow", "0")
    told(tab)


@pytest.mark.slow
def test_a_part_that_the_model_does_not_see_changes_nothing(tab, url):
    tab.goto(f"{url}/?example=cat&mark=hide:0,0,40,40")
    answered(tab)
    assert told(tab) == "Without your marked part, tiger cat stays at 39.3%. The model does not see this part."
    alpha = "(canvas, [x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]"
    assert 40 < tab.locator("#covered canvas").evaluate(alpha, [20, 20]) < 90  # dim, as all that the model does not see


class Patchy(nn.Module):
    """Calls a picture patched, rather than plain, if it has an area of one colour."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, (1, 2), bias=False)
        self.layer.weight.data.copy_(torch.tensor([1.0, -1.0]).expand(1, 3, 1, 2))

    def forward(self, images):
        even = (-300 * self.layer(images).abs()).exp().mean(dim=(1, 2, 3))
        return torch.stack([0 * even, 60 * (even - 0.08)], dim=1)


@pytest.mark.slow
def test_a_model_that_reacts_to_the_hiding_itself_is_found_out(browser, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    query = "?method=gradcam&layer=layer&mark="
    with served(tmp_path, Patchy(), ["plain", "patched"], "softmax") as url, opened(browser, url) as tab:
        for how, edges in (("hide", "20,12,44,36"), ("fill", "20,12,44,36"), ("hide", f"0,0,{WIDTH},{HEIGHT}")):
            tab.goto(f"{url}/{query}{how}:{edges}")
            tab.wait_for_selector("body[data-ready]")
            tab.set_input_files("#image", tmp_path / "noise.png")
            answered(tab)
            sentence = told(tab)
            said = " With it filled from its surroundings instead, plain has 9"
            reason = "%: the model may react to the hiding itself."
            assert (said in sentence and sentence.endswith(reason)) == (edges[0] != "0" and how == "hide"), sentence
            assert ("The best class is now patched" in sentence) == (how == "hide")
        tab.check("[name=how][value=fill]", force=True)
        large = "This part is too large to be filled with its surroundings; mark a smaller one."
        expect(tab.locator("#marking-said")).to_have_text(large)
        expect(tab.locator("#covered canvas")).to_have_count(0)
        expect(tab.locator("#predictions .moved")).to_have_count(0)
        tab.check("[name=how][value=hide]", force=True)
        assert told(tab, PARTS["hide"])
        asked = []  # the whole picture, and without its part; the third question, the control, fails

        def answer(route):
            asked.append(route)
            route.continue_() if len(asked) < 3 else route.abort()

        tab.route("**/predict", answer)
        tab.goto(f"{url}/{query}hide:20,12,44,36")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", tmp_path / "noise.png")
        answered(tab)
        assert re.search(r"The best class is now patched, 99\.\d%\.$", told(tab))
        assert len(asked) == 3
        expect(tab.locator("#problem")).to_be_hidden()


@pytest.mark.slow
def test_what_fails_is_asked_again_and_shows_nothing_meanwhile(cat):
    cat.route("**/predict", lambda route: route.abort())
    drag(cat, BOX[:2], BOX[2:])
    expect(cat.locator("#problem")).to_contain_text("cannot be reached")
    expect(cat.locator("#predictions .moved")).to_have_count(0)
    expect(cat.locator("#marking-said")).not_to_have_attribute("aria-busy", "true")
    cat.unroute("**/predict")
    cat.get_by_role("button", name="Try again").click()
    told(cat)
    expect(cat.locator("#problem")).to_be_hidden()


@pytest.mark.slow
def test_a_finger_marks_instead_of_scrolling(cat):
    stage = cat.locator("#stage")
    assert stage.evaluate("one => getComputedStyle(one).touchAction") == "none"
    finger = cat.context.new_cdp_session(cat)
    for kind, *places in [("Start", BOX[:2]), ("Move", (150, 90)), ("Move", (BOX[2] - 1, BOX[3] - 1)), ("End",)]:
        points = [dict(zip("xy", over(cat, *place, SIZE), strict=True)) for place in places]
        finger.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    expect(cat.locator("#marker")).to_have_attribute("aria-valuetext", "x 126 to 226, y 60 to 180")
    cat.click("#marking-on")
    assert stage.evaluate("one => getComputedStyle(one).touchAction") == "pan-y"
    cat.click("#marking-on")


@pytest.mark.slow
def test_of_a_contrast_both_classes_are_told(tab, url):
    tab.goto(f"{url}/?example=cat&target=tiger+cat&against=tabby&mark=hide:126,60,226,180")
    answered(tab)
    changes = r"(falls|rises) from [\d.]+% to [\d.]+%"
    assert re.match(rf"Without your marked part, tiger cat {changes}; tabby {changes}\.", told(tab))
