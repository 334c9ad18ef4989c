"""The page with a segmenter: regions of the picture are shown, and clicked to be explained."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, ask, clipboard, explained_anew
from tests.app.conftest import opened
from tests.app.shapes import AREAS, over, page_of, saved, served, shown
from tests.nets import Colours


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """The address of a service whose default model is a segmenter."""
    with served(tmp_path_factory.mktemp("scenes"), Colours(), ["red", "green", "blue"], "segmentation") as url:
        yield url


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def regions(browser, scenes, picture):
    """The page with the regions of the picture, for one question after another."""
    with page_of(browser, scenes, picture) as page:
        yield page


def test_a_click_explains_the_region_there(regions, scenes, picture):
    fields = explained_anew(regions, lambda: regions.mouse.click(*over(regions, 45, 33)))
    assert ("target", "pixel:45,33") in fields
    expect(regions.locator("#answer-label")).to_have_text("red")
    answer = ask(scenes, picture=picture, target="pixel:45,33", format="json").json()
    area = answer["explanations"][0]["target"]["area"]
    expect(regions.locator("#answer-probability")).to_have_text(f"on {area:.1%}")
    outside = answer["explanations"][0]["outside"]
    said = f"Explains the connected region at x 45, y 33. {outside:.1%} of the map lies outside it."
    expect(regions.locator("#scope")).to_have_text(said)
    expect(regions.locator("#method")).to_have_value("hirescam")  # the default one of segmenters
    left, top, right, bottom = AREAS["red"][1]
    edges = {f"M{left} {top}H{right + 1}", f"M{left} {bottom + 1}H{right + 1}"}
    edges |= {f"M{left} {top}V{bottom + 1}", f"M{right + 1} {top}V{bottom + 1}"}
    outline = regions.locator("#places .chosen").get_attribute("d")
    assert set(re.findall(r"M[^M]+", outline)) == edges
    accessible(regions)


@pytest.mark.slow
def test_regions_move_without_a_marked_part_and_a_sentence_says_how(regions):
    regions.click("#predictions .class:has-text('red')")
    answered(regions)
    left, top, right, bottom = AREAS["red"][1]
    regions.click("#marking-on")
    for place, act in (((left, top), regions.mouse.down), ((right, bottom), regions.mouse.up)):
        regions.mouse.move(*over(regions, *place), steps=4)
        act()
    sizes = [(right - left + 1) * (bottom - top + 1) for left, top, right, bottom in AREAS["red"]]
    before, after = (f"{100 * size / 64 / 48:.1f}%" for size in (sum(sizes), sizes[0]))
    sentence = f"Without your marked part, red falls from {before} to {after} of the picture."
    expect(regions.locator("#marking-said")).to_have_text(sentence)
    expect(regions.locator("#predictions li", has_text="red").locator(".share")).to_contain_text(f"on {after}")
    with regions.expect_download() as download:
        regions.click("#save-report")
    rows = re.findall("<th[^>]*>([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>", download.value.path().read_text())
    assert ("red", f"on {before}", f"on {after}") in rows
    outlines = [regions.locator(f"#places .{name}").get_attribute("d") for name in ("borders", "altered")]
    assert f"M{left} {top}H{right + 1}" in outlines[0]
    assert f"M{left} {top}H{right + 1}" not in outlines[1]
    regions.get_by_role("button", name="Undo").click()
    regions.click("#marking-on")


@pytest.mark.slow
def test_the_keyboard_explains_the_region_that_it_reads(regions):
    reader = regions.locator("#reader")
    expect(reader).to_have_attribute("aria-label", re.compile("Enter explains the region there$"))
    reader.focus()
    for key in (*["ArrowUp"] * 12, *["ArrowRight"] * 7):  # from the middle, x 32, y 24
        reader.press(key)
    expect(reader).to_have_attribute("aria-valuetext", re.compile("^x 46, y 0: .* blue$"))
    for _ in range(6):
        reader.press("ArrowDown")
    expect(reader).to_have_attribute("aria-valuetext", re.compile("^x 46, y 12: .* green$"))
    fields = explained_anew(regions, lambda: reader.press("Enter"))
    assert ("target", "pixel:46,12") in fields
    expect(regions.locator("#answer-label")).to_have_text("green")
    expect(reader).to_be_focused()


@pytest.mark.slow
def test_a_class_of_the_list_is_its_whole_region_or_the_border_of_it(regions, scenes, picture):
    rows = regions.locator("#predictions .class")
    expect(rows.locator(".label")).to_have_text(["blue", "red", "green"])  # the largest region first
    red, green = rows.nth(1), rows.nth(2)
    red.hover()
    pointed = regions.locator("#places .pointed")
    expect(pointed).to_have_attribute("d", re.compile("M4 4H20.*M40 43H60"))  # both rectangles
    fields = explained_anew(regions, red.click)
    assert ("target", "0") in fields
    expect(regions.locator("#places .chosen")).to_have_attribute("d", re.compile("M4 4H20.*M40 44H60"))
    expect(red).to_have_attribute("aria-pressed", "true")
    fields = explained_anew(regions, lambda: regions.get_by_label("Average over").select_option("border"))
    assert ("target", "0:border") in fields
    expect(regions.locator("#answer-probability")).to_have_text("at its border")
    fields = explained_anew(regions, green.click)  # which asks about the same part
    assert ("target", "1:border") in fields
    explained_anew(regions, lambda: regions.get_by_label("Average over").select_option("the whole picture"))
    expect(regions.locator("#places .chosen")).to_have_attribute("d", "")
    expect(regions.locator("#answer-probability")).to_have_text("over the whole picture")
    fields = explained_anew(regions, lambda: regions.get_by_label("Average over").select_option("the region"))
    assert ("target", "1") in fields


@pytest.mark.slow
def test_a_link_and_back_ask_about_the_same_place_again(regions, browser, scenes, picture):
    explained_anew(regions, lambda: regions.mouse.click(*over(regions, 45, 33)))
    fields = explained_anew(regions, regions.get_by_role("button", name="Contrast with green").click)
    assert {("target", "pixel:45,33"), ("against", "1")} <= set(fields)
    regions.click("#copy-link")
    link = clipboard(regions)
    assert link == f"{scenes}/?model=colours&target=pixel%3A45%2C33&against=1"
    with opened(browser, scenes) as visitor:
        visitor.goto(link)
        visitor.wait_for_selector("body[data-ready]")
        visitor.set_input_files("#image", picture)
        shown(visitor)
        for selector in ("#scope", "#contrast-text", "#answer-probability"):
            expect(visitor.locator(selector)).to_have_text(regions.locator(selector).inner_text())
        chosen = regions.locator("#places .chosen").get_attribute("d")
        expect(visitor.locator("#places .chosen")).to_have_attribute("d", chosen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("target=pixel:64,3", "pixel:64,3 lies outside of what the model sees"),
        ("target=reed:border", "Near matches: red"),
    ],
)
def test_a_wrong_place_of_a_link_is_told(regions, scenes, picture, query, message):
    regions.goto(f"{scenes}/?{query}")
    regions.wait_for_selector("body[data-ready]")
    regions.set_input_files("#image", picture)
    expect(regions.locator("#target-fault")).to_contain_text(message)


@pytest.mark.slow
def test_regions_that_do_not_come_are_asked_for_again(regions, scenes, picture):
    regions.route("**/segment", lambda route: route.abort())
    regions.set_input_files("#image", picture)
    expect(regions.locator("#problem")).to_contain_text("cannot be reached")
    answered(regions)
    expect(regions.locator("#places")).to_be_hidden()
    regions.unroute("**/segment")
    regions.get_by_role("button", name="Try again").click()
    shown(regions)
    expect(regions.locator("#problem")).to_be_hidden()


@pytest.mark.slow
def test_similarity_says_why_a_segmenter_has_none_and_leads_to_another_model(browser, scenes, picture):
    with page_of(browser, scenes, picture, "?show=likeness") as page:
        page.locator("#references button").first.click()
        expect(page.locator("#likeness-fault")).to_contain_text("has no embedding")
        expect(page.locator("#likeness-fault")).to_contain_text("such as a classifier")
        for part in ("#alike", "#pairs-title", "#copy-similar", "#reference-drop"):
            expect(page.locator(part)).to_be_hidden()
        accessible(page)
        page.get_by_role("button", name="Choose another model").click()
        page.get_by_role("radio", name=re.compile("^efficientnet_lite0")).check()
        page.get_by_role("button", name="Use this model").click()
        expect(page.locator("#pairs button")).to_have_count(5)
        for part in ("#alike", "#pairs-title", "#copy-similar", "#reference-drop"):
            expect(page.locator(part)).to_be_visible()
        expect(page.locator("#likeness-fault")).to_be_hidden()


@pytest.mark.slow
def test_a_part_of_a_region_is_compared_as_such(browser, scenes, picture):
    with page_of(browser, scenes, picture, "?target=0:picture&compare=hirescam") as page:
        page.click("#tab-compare")
        facts = page.locator(".card .facts")
        expect(facts).to_contain_text("red over the whole picture, ")
        expect(page.locator("#chips-classes label").first).to_have_text("red, the whole picture")
        expect(page.locator("#chips-classes input:checked")).to_have_count(1)
        page.click("#tab-explain")
        expect(page.locator("#scope")).to_be_hidden()  # nothing is outside
        expect(page.locator("#stage .below")).to_have_attribute("alt", re.compile("for red, over the whole picture$"))
