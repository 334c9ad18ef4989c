"""Downloads from the page, a report and the picture, and links to the guide."""

import base64
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, ask, explained_anew, levels, overlay_pixels, page_pixels, upload


def test_the_report_is_about_the_map_that_is_shown(page):
    upload(page)
    explained_anew(page, lambda: page.select_option("#method", "gradcam"))
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    page.locator("#alpha").fill("0.7")
    with page.expect_download() as download:
        page.click("#save-report")
    assert download.value.suggested_filename == "cat-gradcam.html"
    report = download.value.path().read_text(encoding="utf-8")
    (heatmap,) = re.findall('<img src="data:image/png;base64,([^"]+)" alt="Heatmap for tabby">', report)
    assert np.abs(levels(base64.b64decode(heatmap)) - overlay_pixels(page)).max() <= 2
    assert page.locator("#proof .grade").inner_text().split()[-1] in report
    assert "<strong>Proof: " in report
    assert "marked by hand" not in report
    accessible(page)


def test_a_report_includes_what_the_marked_part_changes(tab, url):
    tab.goto(f"{url}/?example=cat&method=gradcam&mark=hide:126,60,226,180")
    answered(tab)
    expect(tab.locator("#marking-said")).to_contain_text("Without your marked part, tiger cat falls")
    sentence = tab.inner_text("#marking-said").replace("your marked part", "the part marked by hand")
    after = tab.locator("#predictions .share").evaluate_all(
        "all => all.map(({ firstChild }) => firstChild.textContent)"
    )
    with tab.expect_download() as download:
        tab.click("#save-report")
    tab.goto("about:blank")
    tab.set_content(download.value.path().read_text(encoding="utf-8"))
    section = tab.locator("section", has_text="A part marked by hand")
    without = "The command below repeats the heatmaps without this change."
    expect(section.locator("p")).to_have_text(f"{sentence} {without}")
    rows = [row.split() for row in section.locator("tr").all_inner_texts()]
    assert [row[-2:] for row in rows[:2]] == [["Before", "After"], ["39.3%", after[0]]]
    assert [row[-1] for row in rows[1:]] == after
    width, height = section.locator("img").evaluate(
        "({ naturalWidth, naturalHeight }) => [naturalWidth, naturalHeight]"
    )
    assert width / height == pytest.approx(451 / 300, abs=0.01)
    picture = levels(base64.b64decode(section.locator("img").get_attribute("src").partition(",")[2]))
    (left, top, right, bottom) = (round(edge * width / 451) for edge in (126, 60, 226, 180))
    assert picture[top + 9 : bottom - 9, left + 9 : right - 9].std((0, 1)).max() < 1  # hidden
    assert (picture[top:bottom, left - 4] - picture[top:bottom, left - 30]).mean() > 20  # its outline
    accessible(tab)


@pytest.mark.slow
def test_a_report_waits_for_the_answer_about_the_marked_part(tab, url):
    held = []
    tab.route("**/predict", lambda route: held.append(route))
    with tab.expect_request("**/predict"):
        tab.goto(f"{url}/?example=cat&method=gradcam&mark=hide:126,60,226,180")
    answered(tab)
    expect(tab.locator("#marking-said")).to_have_text("Asking the model…")
    with tab.expect_download() as download:
        with tab.expect_response("**/explain"):
            tab.click("#save-report")
        expect(tab.locator("#save-report")).to_have_attribute("aria-busy", "true")
        held[0].continue_()
        tab.unroute("**/predict")
    assert "Without the part marked by hand, tiger cat falls" in download.value.path().read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_fits_narrow_screens_and_its_command_keeps_its_words(tab, url):
    tab.set_viewport_size({"width": 390, "height": 900})
    tab.set_content(ask(url, format="report", method="gradcam", proof="true").text)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.locator("pre").evaluate("pre => pre.scrollWidth <= pre.clientWidth")
    words = tab.locator("pre span").evaluate_all("spans => spans.map((span) => [span.textContent, span.offsetHeight])")
    assert len({height for _, height in words}) == 1  # no line ends within a word
    tab.locator("pre code").click()
    assert tab.evaluate("getSelection().toString()") == " ".join(word for word, _ in words)


def test_the_picture_is_copied_as_it_is_shown(cat_page):
    cat_page.click("#copy-picture")
    expect(cat_page.locator("#copy-picture")).to_have_text("Copied")
    encoded = cat_page.evaluate(
        """async () => {
            const [item] = await navigator.clipboard.read();
            const bytes = new Uint8Array(await (await item.getType("image/png")).arrayBuffer());
            return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
        }"""
    )
    assert np.array_equal(levels(base64.b64decode(encoded)), page_pixels(cat_page))


@pytest.mark.slow
def test_where_pictures_cannot_be_copied_the_button_says_what_to_do(page):
    upload(page)
    page.evaluate("delete window.ClipboardItem")
    page.click("#copy-picture")
    expect(page.locator("#copy-picture")).to_have_text("Not possible here: download the PNG")
    expect(page.locator("#status")).to_contain_text("Download the PNG instead")


@pytest.mark.slow
def test_the_page_links_to_chapters_that_the_guide_has(page, url):
    methods = page.locator("#method option").evaluate_all("all => all.map((option) => option.value)")
    links = page.evaluate(
        """(methods) => methods.map((method) => {
            document.querySelector("#method").value = method;
            document.querySelector("#method").dispatchEvent(new Event("change"));
            return document.querySelector("#method-guide").getAttribute("href");
        })""",
        methods,
    )
    page.goto(url)
    upload(page)
    links.append(page.get_by_role("link", name="About proofs").get_attribute("href"))
    links.append(page.locator("#proof a:has(.grade)").get_attribute("href"))
    page.click("#tab-inside")
    links.append(page.get_by_role("link", name="About hooks").get_attribute("href"))
    assert len(set(links)) == len(methods) + 3
    page.goto(f"{url}/guide")
    expect(page.get_by_role("link", name="Web page")).to_have_attribute("href", "/")
    for link in links:
        assert page.evaluate("hash => Boolean(document.getElementById(decodeURIComponent(hash)))", link.split("#")[1])


@pytest.mark.slow
def test_a_link_without_its_picture_says_what_it_asks(tab, url):
    pending = tab.locator("#pending")
    tab.goto(url)
    tab.wait_for_selector("body[data-ready]")
    expect(pending).to_be_hidden()
    expect(tab.locator("#start-model")).to_have_text("efficientnet_lite0")
    tab.goto(
        f"{url}/?model=efficientnet_lite0&target=281&against=285&method=gradcam&sign=signed&layer=bn2&mark=hide:9,9,80,80"
    )
    expect(pending).to_have_text(
        "Choose the picture to see its answer. Links do not include pictures. This one asks for: class tabby rather "
        "than Egyptian cat, method gradcam, sign: signed, layer bn2, model efficientnet_lite0, a hidden part."
    )
    accessible(tab)
    upload(tab)
    expect(tab.locator("#answer-label")).to_have_text("tabby")


@pytest.mark.slow
def test_everybody_can_read_the_guide(tab, url):
    tab.goto(f"{url}/guide#proof")
    for width, scheme, rules in ((1280, "light", ()), (390, "dark", ("color-contrast",))):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        accessible(tab, *rules)


@pytest.mark.slow
def test_everybody_can_read_the_list_of_routes(tab, url):
    tab.goto(f"{url}/docs")
    tab.wait_for_selector(".opblock")
    accessible(tab)
    accessible(tab, "heading-order", "region")
    tab.emulate_media(color_scheme="dark")
    expect(tab.locator("html")).to_have_css("background-color", "rgb(28, 32, 34)")  # of Swagger UI's dark mode
    tab.click("#operations-Pictures-predict .opblock-summary-control")
    expect(tab.locator("#operations-Pictures-predict .header-col").first).to_be_visible()
    accessible(tab, "color-contrast")
    tab.emulate_media(color_scheme="light")
    expect(tab.locator("html.dark-mode")).to_have_count(0)
    tab.goto(f"{url}/guide")
    tab.click("a:has-text('/hooks/trace')")
    expect(tab.locator("#operations-Hooks-trace")).to_contain_class("is-open")
