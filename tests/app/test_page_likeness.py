"""The page with two pictures: their similarity, and the patches that contribute to it."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, clipboard, levels
from tests.app.conftest import EXAMPLES, opened
from tests.waiting import GUARD


@pytest.fixture(scope="module")
def answer(url):
    """What the service says of the two pictures."""
    pictures = {
        name: (EXAMPLES / f"{example}.png").read_bytes()
        for name, example in (("image", "astronaut"), ("reference", "rocket"))
    }
    options = {"format": "json", "top": 100, "proof": "true"}
    return requests.post(f"{url}/similar", files=pictures, data=options, timeout=GUARD).json()


@pytest.fixture(scope="module")
def alike(browser, url):
    """The page with two pictures, for tests that leave them."""
    with opened(browser, url) as tab:
        tab.goto(f"{url}/?example=astronaut")
        answered(tab)
        tab.get_by_role("tab", name="Similarity").click()
        tab.locator("#references").get_by_role("button", name="A rocket at its launch").click()
        yield compared(tab)


def compared(page):
    expect(page.locator("#pairs button")).to_have_count(5)
    return page


def marked(page, side):
    """The boxes that are outlined on one of the pictures, the first one most."""
    paths = page.locator(f"#alike .alike:nth-child({side + 1}) .places path").evaluate_all(
        "paths => paths.map((path) => path.getAttribute('d').match(/[\\d.-]+/g).map(Number))"
    )
    return [[left, top, right, bottom] for left, top, right, bottom, _ in paths]


def hover(page, side, box):
    stage = page.locator(f"#alike .alike:nth-child({side + 1}) .overlay")
    stage.scroll_into_view_if_needed()
    place = stage.bounding_box()
    size = stage.locator(".below").evaluate("image => [image.naturalWidth, image.naturalHeight]")
    shares = [(low + high) / 2 / length for low, high, length in zip(box[:2], box[2:], size, strict=True)]
    page.mouse.move(place["x"] + shares[0] * place["width"], place["y"] + shares[1] * place["height"])


def test_two_pictures_are_compared(alike, url, answer):
    expect(alike.locator("#likeness-score")).to_have_text(f"{answer['score']:.3f}")
    expect(alike.locator("#panel-likeness > .help").first).to_contain_text("compare it with that of other pairs")
    for side, name in enumerate(("image", "reference")):
        size = alike.locator(f"#alike .alike:nth-child({side + 1}) .map").evaluate("map => [map.width, map.height]")
        assert size == answer[name]["shape"][::-1]
        proof = alike.locator(f"#alike .alike:nth-child({side + 1}) .overlay + .proof")  # directly under the picture
        sentence, _, _ = answer[name]["proof"]["sentence"].partition(" That is not graded")
        expect(proof).to_contain_text(sentence)
        expect(proof.locator(".grade")).to_contain_text(answer[name]["proof"]["grade"] or "not graded")
    expect(alike.locator("#unlinked")).to_be_hidden()
    accessible(alike)
    assert alike.url == f"{url}/?show=likeness&example=astronaut&reference=rocket"


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1])
def test_a_patch_shows_what_it_is_paired_with(alike, answer, side):
    name, other = ("image", "reference") if side == 0 else ("reference", "image")
    strongest = answer["pairs"][0]
    hover(alike, side, strongest[name])
    paired = [pair for pair in answer["pairs"] if pair[name] == strongest[name]][:3]
    np.testing.assert_allclose(marked(alike, side), [strongest[name]], atol=0.01)
    np.testing.assert_allclose(marked(alike, 1 - side), [pair[other] for pair in paired], atol=0.01)
    share = paired[0]["contribution"] / answer["score"] * 100
    expect(alike.locator("#likeness-reading")).to_contain_text(f": {share:.3g}%")
    alike.mouse.move(0, 0)
    assert marked(alike, 0) == marked(alike, 1) == []


@pytest.mark.slow
def test_the_keyboard_reads_patches_and_pairs(alike, answer):
    reader = alike.get_by_role("slider", name="Patches of the second picture")
    reader.focus()
    values = np.asarray(answer["reference"]["map"])
    row, column = np.unravel_index(values.argmax(), values.shape)  # where it begins
    share = values[row, column] / answer["score"] * 100
    said = re.compile(f"^This patch contributes {share:.3g}% of the similarity, mostly with")
    expect(reader).to_have_attribute("aria-valuetext", said)
    (first,) = marked(alike, 1)
    reader.press("ArrowRight")
    (second,) = marked(alike, 1)
    np.testing.assert_allclose([second[0], second[1]], [first[2], first[1]], atol=0.01)
    button = alike.locator("#pairs button").nth(1)
    button.focus()
    boxes = [answer["pairs"][1][name] for name in ("image", "reference")]
    np.testing.assert_allclose([marked(alike, 0)[0], marked(alike, 1)[0]], boxes, atol=0.01)


@pytest.mark.slow
def test_proofs_are_as_wide_as_a_narrow_screen_below_both_pictures(alike):
    wide = alike.viewport_size
    alike.set_viewport_size({"width": 390, "height": 844})
    (first, second), proofs, titles = (
        [one.bounding_box() for one in alike.locator(f"#alike {name}").all()] for name in (".overlay", ".proof", "h3")
    )
    alike.set_viewport_size(wide)
    assert first["x"] + first["width"] < second["x"]
    assert all(proof["width"] > 330 for proof in proofs)
    heights = [first["y"], *(box["y"] for pair in zip(titles, proofs, strict=True) for box in pair)]
    assert heights == sorted(heights)


@pytest.mark.slow
def test_a_second_file_that_is_no_picture_is_told_beside_its_button(alike, tmp_path):
    (tmp_path / "rocket.jpg").write_text("no picture")
    alike.set_input_files("#reference", tmp_path / "rocket.jpg")
    expect(alike.locator("#reference-fault")).to_contain_text("JPEG, PNG")
    expect(alike.locator("#image-fault")).to_be_hidden()
    expect(alike.locator("#pairs button")).to_have_count(5)


@pytest.mark.slow
def test_a_link_and_back_compare_again(tab, url, answer):
    tab.goto(f"{url}/?show=likeness&example=astronaut&reference=rocket")
    compared(tab)
    expect(tab.locator("#likeness-score")).to_have_text(f"{answer['score']:.3f}")
    tab.wait_for_timeout(600)  # milliseconds: what comes sooner is one step with the one before
    tab.set_input_files("#reference", EXAMPLES / "astronaut.png")
    expect(tab.locator("#likeness-score")).to_have_text(re.compile("^(0.99|1.00)"))
    expect(tab.locator("#unlinked")).to_contain_text("do not include uploaded pictures")
    tab.go_back()
    expect(tab.locator("#likeness-score")).to_have_text(f"{answer['score']:.3f}")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("is_uploaded", [False, True])
def test_the_copied_command_draws_what_is_shown(tab, url, tmp_path, is_uploaded):
    tab.goto(f"{url}/?show=likeness&example=astronaut&reference=rocket&colormap=viridis&alpha=0.25")
    compared(tab)
    reference = EXAMPLES / "rocket.png"
    if is_uploaded:
        reference = tmp_path / "Saturn's, V.jpg"
        reference.write_bytes((EXAMPLES / "coffee.png").read_bytes())
        with tab.expect_response("**/similar"):
            tab.set_input_files("#reference", reference)
        compared(tab)
    tab.click("#copy-similar")
    subprocess.run(["sh", "-c", clipboard(tab)], cwd=tmp_path, check=True, capture_output=True)
    files = {
        "image": (EXAMPLES / "astronaut.png").read_bytes(),
        "reference": reference.read_bytes(),
    }
    drawn = requests.post(f"{url}/similar", files=files, data={"colormap": "viridis", "alpha": "0.25"}, timeout=GUARD)
    assert np.array_equal(levels(tmp_path / "alike.png"), levels(drawn.content))


@pytest.mark.slow
def test_an_error_of_the_comparison_is_told_in_its_view(tab, url):
    problem = {"title": "No", "status": 422, "detail": "This model makes no vector."}
    tab.route("**/similar", lambda route: route.fulfill(status=422, json=problem))
    tab.goto(f"{url}/?show=likeness&example=astronaut&reference=rocket")
    expect(tab.locator("#likeness-fault")).to_contain_text("makes no vector")
    accessible(tab)


@pytest.mark.slow
def test_another_picture_of_the_strip_is_a_second_picture(tab, url):
    tab.goto(url)
    tab.set_input_files("#image", [EXAMPLES / f"{name}.png" for name in ("cat", "rocket", "coffee")])
    expect(tab.locator("#others img")).to_have_count(2)
    assert tab.locator("#others img").evaluate_all("all => all.map(({ alt }) => alt)") == ["rocket.png", "coffee.png"]
    answered(tab)
    tab.get_by_role("tab", name="Similarity").click()
    tab.get_by_role("list", name="Your other pictures").get_by_role("button", name="coffee.png").click()
    compared(tab)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1100, 800)])
def test_both_maps_are_whole_in_the_first_view(tab, url, width, height, tmp_path):
    for name in ("one.png", "other.png"):
        shutil.copy(EXAMPLES / "astronaut.png", tmp_path / name)  # it is square
    tab.set_viewport_size({"width": width, "height": height})
    tab.goto(url)
    tab.set_input_files("#image", [tmp_path / "one.png", tmp_path / "other.png"])
    expect(tab.locator("#thumbnails .grade")).to_have_count(2)
    tab.get_by_role("tab", name="Similarity").click()
    tab.locator("#others button").click()
    compared(tab)
    tab.evaluate("scrollTo(0, 0)")
    for place in (0, 1):
        expect(tab.locator(".alike .overlay").nth(place)).to_be_in_viewport(ratio=1)
        expect(tab.locator(".alike .proof").nth(place)).to_be_in_viewport(ratio=0.99)
