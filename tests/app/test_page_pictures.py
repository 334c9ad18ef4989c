"""Pictures that browsers and the service might see differently: the page shows what the service saw."""

import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.app.browsing import answered, ask, levels, page_pixels, upload
from tests.app.conftest import EXAMPLES, opened
from tests.grids import few

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def coffee():
    with Image.open(EXAMPLES / "coffee.png") as picture:
        return picture.convert("RGB").resize((300, 200))


def turned(picture, file):
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"lossless": True} if file.suffix == ".webp" else {}
    picture.transpose(Image.Transpose.ROTATE_90).save(file, exif=exif, **options)


def moving(picture, file):
    negative = picture.point([255 - level for level in range(256)] * 3)
    picture.save(file, save_all=True, append_images=[negative], duration=60, loop=0)


def transparent(picture, file):
    layered = picture.convert("RGBA")
    layered.putalpha(Image.linear_gradient("L").resize(picture.size))
    layered.save(file)


FILES = {
    "turned.webp": turned,
    "moving.gif": moving,
    "transparent.png": transparent,
    "turned.jpeg": turned,  # which a browser turns by itself
    "turned.tiff": turned,  # which it cannot show at all
    "moving.webp": moving,
    "moving.png": moving,
}


@pytest.fixture(scope="module")
def dark(browser, url):
    """The page, dark, for one picture after another."""
    with opened(browser, url) as tab:
        tab.emulate_media(color_scheme="dark", reduced_motion="reduce")
        tab.goto(url)
        tab.wait_for_selector("body[data-ready]")
        yield tab


@pytest.mark.parametrize("name", few(FILES, short=list(FILES)[:1]))
def test_the_picture_is_the_one_that_the_service_reads(dark, url, tmp_path, coffee, name):
    FILES[name](coffee, tmp_path / name)
    upload(dark, tmp_path / name)
    expected = levels(ask(url, picture=tmp_path / name, alpha="0").content)
    assert expected.shape == (200, 300, 3)
    dark.locator("#alpha").fill("0")
    assert np.abs(page_pixels(dark) - expected).mean() < 2
    dark.locator("#wipe").evaluate("handle => handle.hidden = true")
    dark.locator("#stage").evaluate("stage => stage.scrollIntoView()")
    box = dark.locator("#stage").bounding_box()
    third = box["height"] / 3
    inside = {"x": box["x"] + 0.4 * box["width"], "y": box["y"] + third, "width": 0.2 * box["width"], "height": third}
    shots = {dark.screenshot(clip=inside) for _ in range(4 if "moving" in name else 1)}
    assert len(shots) == 1  # it stands still
    area = expected[67:133, 120:180]
    assert np.abs(levels(shots.pop()).mean((0, 1)) - area.mean((0, 1))).max() < 6


def test_a_thin_picture_is_no_sheet(page, tmp_path, coffee):
    coffee.resize((4000, 7)).save(tmp_path / "thin.png")
    upload(page, tmp_path / "thin.png")
    expect(page.locator("#wipe")).to_be_visible()
    page.locator("#reader").focus()
    expect(page.locator("#reading")).to_contain_text("x 2000, y 3: ")


def test_what_was_chosen_is_asked_of_whatever_becomes_of_the_file(page, tmp_path):
    file = Path(shutil.copy(EXAMPLES / "cat.png", tmp_path))
    upload(page, file)
    file.write_bytes((EXAMPLES / "coffee.png").read_bytes())
    page.click("#predictions .class:has-text('tabby')")
    expect(page.locator("#answer-label")).to_have_text("tabby")
    expect(page.locator("#predictions .label").first).to_have_text("tiger cat")


@pytest.mark.parametrize("address", ["", "?example=coffee"])
@pytest.mark.parametrize("late", ["/methods", "/colormaps"])
@pytest.mark.parametrize("control", ["#image", "#folder"])
def test_a_picture_that_is_chosen_while_the_page_loads_is_explained(tab, url, tmp_path, late, address, control):
    (tmp_path / "cat.png").write_bytes((EXAMPLES / "cat.png").read_bytes())

    def hold(route):
        tab.set_input_files(control, tmp_path if control == "#folder" else tmp_path / "cat.png")
        route.continue_()

    tab.route(lambda url: urlsplit(url).path == late, hold)
    tab.goto(f"{url}/{address}")
    answered(tab)
    expect(tab.locator("#answer-label")).to_have_text("tiger cat")


def test_a_border_that_the_model_does_not_see_is_told(page, tmp_path, coffee):
    def whole(route):
        answer = route.fetch(headers={**route.request.headers, "accept": "application/json"}).json()
        heatmap = answer["explanations"][0]["heatmap"]
        heatmap["box"] = [0, 0, *reversed(heatmap["shape"])]
        route.fulfill(json=answer)

    coffee.save(tmp_path / "picture.png")
    for sees, is_told in ((None, True), (whole, False)):
        if sees:
            page.route("**/explain", sees)
        page.goto(page.url)
        page.set_input_files("#image", tmp_path / "picture.png")
        answered(page)
        expect(page.locator("#unseen")).to_be_visible(visible=is_told)
        if is_told:
            expect(page.locator("#unseen")).to_contain_text(re.compile(r"only the middle \d\d\.\d% of this picture"))


def test_a_picture_that_is_too_large_is_sent_smaller(page, tmp_path):
    with Image.open(EXAMPLES / "coffee.png") as picture:
        large = picture.convert("RGB").resize((4500, 3000))
    large.save(tmp_path / "large.png", compress_level=0)
    assert (tmp_path / "large.png").stat().st_size > 33_554_432  # the service would refuse it
    upload(page, tmp_path / "large.png")
    expect(page.locator("#shrunk")).to_be_visible()
    expect(page.locator("#answer-label")).to_have_text("espresso")
    assert page_pixels(page).shape == (1365, 2048, 3)
    upload(page)
    expect(page.locator("#shrunk")).to_be_hidden()
