"""Styles of a map over its picture on the page: low values clear, or the strongest part as a contour or a mask."""

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from seewhy.explainers.trust.marking import top_share
from tests.app.browsing import accessible, answered, ask, levels, page_pixels
from tests.app.conftest import EXAMPLES
from tests.grids import few

SEEN = np.s_[20:280, 96:356]  # rows and columns of the cat that the model sees


def changed(page):
    """Where picture and map differ from the picture, by how much, inside what the model sees."""
    return np.abs(page_pixels(page) - levels(EXAMPLES / "cat.png")).max(-1)[SEEN]


def luminance(picture):
    """The median luminance of what the model sees."""
    return np.median(picture[SEEN] @ (0.299, 0.587, 0.114))


def test_low_values_leave_the_picture_its_light(cat_page, url):
    light = luminance(levels(EXAMPLES / "cat.png"))
    assert luminance(page_pixels(cat_page)) > 0.92 * light  # without any choice
    cat_page.select_option("#look", "overlay")
    assert luminance(page_pixels(cat_page)) < 0.85 * light
    cat_page.select_option("#look", "clear")
    explanation = ask(url, method="votes-detail", values="true", format="json").json()["explanations"][0]
    heatmap = np.array(explanation["heatmap"]["values"])[SEEN]
    assert np.corrcoef(heatmap.ravel(), changed(cat_page).ravel())[0, 1] > 0.8
    cat_page.locator("#alpha").fill("0")
    assert changed(cat_page).max() <= 1
    cat_page.locator("#alpha").fill("0.5")


def opacities(page):
    """The opacities of the map's pixels in the middle of the picture, of 255."""
    # A copy is read: of one that is drawn on, the browser would say that reading it often is slow.
    data = page.locator("#stage .map").evaluate(
        """(map) => {
            const copy = new OffscreenCanvas(map.width, map.height).getContext("2d", { willReadFrequently: true });
            copy.drawImage(map, 0, 0);
            return Array.from(copy.getImageData(96, 20, 260, 260).data);
        }"""
    )
    return np.array(data[3::4])


def test_the_picture_shows_through_the_strongest_part_at_half_strength(cat_page):
    cat_page.select_option("#look", "clear")
    for strength, opacity in (("0", 0), ("1", 1), ("0.5", 0.85)):
        cat_page.locator("#alpha").fill(strength)
        assert opacities(cat_page).max() / 255 == pytest.approx(opacity, abs=0.01)


@pytest.mark.parametrize("percent", few([25, 10], short=[25]))
def test_a_mask_shows_the_strongest_part(cat_page, url, percent):
    cat_page.select_option("#look", "mask")
    cat_page.locator("#strongest").fill(str(percent))
    expect(cat_page.locator("#strongest-value")).to_have_text(f"{percent}%")
    expect(cat_page.locator("#alpha")).to_be_hidden()
    explanation = ask(url, method="votes-detail", values="true", format="json").json()["explanations"][0]
    heatmap = np.array(explanation["heatmap"]["values"])[SEEN]
    strongest = heatmap >= np.quantile(heatmap, 1 - percent / 100)
    shown = changed(cat_page) <= 8
    assert shown.mean() == pytest.approx(percent / 100, abs=0.02)
    assert (strongest & shown).sum() > 0.9 * strongest.sum()


@pytest.mark.slow
def test_a_contour_goes_round_that_part(cat_page):
    cat_page.select_option("#look", "mask")
    cat_page.locator("#strongest").fill("25")
    isin = changed(cat_page) <= 8
    cat_page.select_option("#look", "contour")
    lines = changed(cat_page) > 60
    assert 0.01 < lines.mean() < 0.2
    edges = np.zeros_like(isin)
    edges[:, 1:] |= isin[:, 1:] != isin[:, :-1]
    edges[1:] |= isin[1:] != isin[:-1]
    near = sum(np.roll(lines, shift, (0, 1)) for shift in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))) > 0
    assert near[edges].mean() > 0.9
    accessible(cat_page)


def test_the_words_for_the_marked_part_outline_it(cat_page):
    words = cat_page.locator("#proof button[title]")
    expect(words).to_have_text("marked quarter")
    drawing = "document.querySelector('#stage .map').toDataURL()"
    plain, saved = cat_page.evaluate(drawing), page_pixels(cat_page)
    for show, hide in ((words.hover, cat_page.locator("#bar").hover), (words.focus, words.blur)):
        show()
        assert cat_page.evaluate(drawing) != plain
        assert (page_pixels(cat_page) == saved).all()
        hide()
        assert cat_page.evaluate(drawing) == plain


def test_the_outline_is_of_the_part_that_a_proof_marks(cat_page):
    drawn = """async (map) => {
        const { drawOutline } = await import("/static/js/looks.js");
        const context = new OffscreenCanvas(80, 80).getContext("2d");
        drawOutline(context, { map, box: [0, 0, 80, 80] }, 0.25, [0, 0, 80, 80]);
        return Array.from(context.getImageData(0, 0, 80, 80).data).filter((_, place) => place % 4 === 3);
    }"""
    spot, spots, signed, plateau = np.zeros((4, 80, 80))
    spot[42, 30] = 1
    spots[20:23, 20:23], spots[55:60, 50:56] = 1, 0.1
    signed[30:34, 20:24], signed[40:44, 60:64] = 1, -1
    plateau[10:60, 20:70] = 1
    maps = [spot, spots, signed, signed / 10 + 5, plateau, np.hypot(*np.mgrid[:80, :80])]
    for number, values in enumerate(maps):
        clear = np.reshape(cat_page.evaluate(drawn, values.tolist()), (80, 80)) == 0
        marked = top_share(torch.from_numpy(values)[None].float(), 0.25)[0].numpy()
        assert marked[clear].mean() > 0.82, number
        assert clear.mean() == pytest.approx(0.25, abs=0.05), number  # the line lies inside of it


def test_a_narrow_peak_does_not_hide_the_rest_of_a_map(cat_page):
    drawn = """async (map) => {
        const { drawLook } = await import("/static/js/looks.js");
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = 80;
        canvas.getContext("2d").fillRect(0, 0, 80, 80);
        const image = new Image();
        image.src = canvas.toDataURL();
        await image.decode();
        const context = new OffscreenCanvas(80, 80).getContext("2d");
        drawLook(context, image, { map, box: [0, 0, 80, 80], min: 0, max: 1 }, null, [0, 0, 80, 80], false);
        return Array.from(context.getImageData(0, 0, 80, 80).data).filter((_, place) => place % 4 === 3);
    }"""
    values = np.zeros((80, 80))
    values[8:12, 60:64] = 1
    values[40:64, 10:34] = 0.2
    opacities = np.reshape(cat_page.evaluate(drawn, values.tolist()), (80, 80)) / 255
    assert opacities[10, 62] == pytest.approx(0.85, abs=0.02)
    assert opacities[50, 20] == pytest.approx(0.85 * 0.5**1.5, abs=0.02)
    assert opacities[30, 40] == 0


@pytest.mark.slow
def test_maps_of_fine_grids_are_as_clear_as_those_of_coarse_ones(tab, url):
    fields = {"method": "gradcam", "layer": "blocks.0"}  # of 112 by 112 cells
    tab.goto(f"{url}/?example=cat&method=gradcam&layer=blocks.0")
    answered(tab)
    answer = ask(url, values="true", format="json", target="tiger cat", **fields).json()
    heatmap = np.array(answer["explanations"][0]["heatmap"]["values"])
    seen = heatmap[20:280, 96:356].ravel()
    assert np.abs(opacities(tab) - 255 * 0.85 * (seen / heatmap.max()) ** 1.5).mean() < 8


@pytest.mark.slow
@pytest.mark.parametrize("look", ["clear", "overlay"])
def test_what_is_outside_of_the_outline_is_veiled(cat_page, look):
    cat_page.select_option("#look", look)
    cat_page.locator("#alpha").fill("0.1")
    before = opacities(cat_page)
    cat_page.locator("#proof button[title]").hover()
    veiled = opacities(cat_page) > np.maximum(before, 100)
    cat_page.locator("#bar").hover()
    cat_page.locator("#alpha").fill("0.5")
    assert veiled.mean() == pytest.approx(0.75, abs=0.05)


@pytest.mark.slow
def test_lines_of_fine_maps_stand_on_their_own_ground(tab, url):
    tab.goto(f"{url}/?example=cat&method=lrp")
    answered(tab)
    assert 0.05 < (changed(tab) > 60).mean() < 0.25
    assert np.median(changed(tab)) < 20


@pytest.mark.slow
def test_a_link_holds_the_look_and_an_unknown_one_leaves_the_default(tab, url):
    tab.goto(f"{url}/?example=cat&look=mask&strongest=40")
    answered(tab)
    expect(tab.locator("#look")).to_have_value("mask")
    expect(tab.locator("#strongest-value")).to_have_text("40%")
    tab.select_option("#look", "overlay")
    expect(tab).to_have_url(f"{url}/?example=cat&look=overlay&strongest=40")
    tab.goto(f"{url}/?example=cat&look=nonsense&strongest=-3")
    answered(tab)
    expect(tab.locator("#look")).to_have_value("clear")
    expect(tab.locator("#strongest")).to_have_value("1")
