"""The page when things come late, one after another, or not at all: what it shows belongs together."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from tests.app.browsing import answered, clipboard, explained_anew, later, levels, page_pixels, upload
from tests.app.conftest import EXAMPLES
from tests.waiting import GUARD, until

pytestmark = pytest.mark.slow

LATE = """([path, pause]) => {
    const fetch = window.fetch;
    window.fetch = async (asked, given) => {
        if (asked.endsWith(path)) await new Promise((done) => setTimeout(done, pause));
        return fetch(asked, given);
    };
}"""


def refining(page):
    """Wait for the preview of a method that takes long."""
    page.select_option("#method", "rise")
    page.fill("#options-list [name=samples]", "20000", force=True)
    page.locator("#options-list [name=samples]").dispatch_event("change")
    expect(page.locator("#figure")).to_have_class(re.compile("refining"))


def test_a_map_that_is_decoded_late_is_not_painted_over_another_picture(page):
    page.evaluate(
        """() => {
            const decode = Image.prototype.decode;
            let late = 1500;
            Image.prototype.decode = async function () {
                if (this.src.startsWith("data:")) {
                    const pause = late;
                    late = 0;
                    await new Promise((done) => setTimeout(done, pause));
                }
                return decode.call(this);
            };
        }"""
    )
    page.set_input_files("#image", EXAMPLES / "cat.png")
    expect(page.locator("#answer-label")).to_have_text("tiger cat")
    upload(page, "coffee.png")
    page.wait_for_timeout(2000)
    assert page.locator("#stage .map").evaluate("map => [map.width, map.height]") == [600, 400]
    expect(page.locator("#stage .below")).to_have_attribute("alt", re.compile("espresso"))


def test_the_picture_chosen_last_is_shown(page):
    page.evaluate(LATE, ["rocket.png", 1500])
    page.get_by_role("button", name="A rocket at its launch").click()
    upload(page, "coffee.png")
    page.wait_for_timeout(2000)
    expect(page.locator("#answer-label")).to_have_text("espresso")


def test_a_preview_has_no_values_and_is_never_taken_for_the_answer(page):
    upload(page)
    before = page_pixels(page)
    page.click("#options > summary")
    refining(page)
    page.locator("#stage").hover()
    page.locator("#reader").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#bar")).to_be_hidden()
    assert np.array_equal(page_pixels(page), before)
    page.keyboard.press("Escape")
    expect(page.locator("#bar")).to_be_visible()
    page.locator("#stage").hover()
    expect(page.locator("#reading")).to_contain_text("x ")


def test_after_a_cancel_files_and_commands_are_those_of_the_map_that_is_shown(page):
    upload(page)
    page.click("#options > summary")
    refining(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#stage .below")).to_have_attribute("alt", re.compile("^Heatmap of votes-detail "))
    page.click("#copy-curl")
    assert "method=votes-detail" in clipboard(page)
    page.click("#copy-python")
    assert "rise" not in clipboard(page)
    with page.expect_download() as download:
        page.click("#save-npz")
    with np.load(download.value.path()) as arrays:
        assert list(arrays["methods"]) == ["votes-detail"]


def test_the_keyboard_reads_values_of_a_picture_that_came_while_it_was_there(page):
    upload(page)
    page.locator("#reader").focus()
    upload(page, "coffee.png")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#reading")).to_contain_text("x 315, y 200: ")


def test_the_first_link_skips_to_the_picture_or_the_view(page):
    skip = page.locator(".skip")
    skip.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    upload(page)
    skip.press("Enter")
    expect(page.locator("#reader")).to_be_focused()
    expect(page.locator("#reading")).to_contain_text("x 225, y 150: ")
    page.click("#tab-likeness")
    skip.press("Enter")
    expect(page.locator("#tab-likeness")).to_be_focused()


def test_a_damaged_picture_gives_way_to_the_one_before_with_its_answer(page, tmp_path):
    content = (EXAMPLES / "coffee.png").read_bytes()
    (tmp_path / "half.png").write_bytes(content[: len(content) // 2])  # browsers show its upper half
    fault = page.locator("#image-fault")
    page.set_input_files("#image", tmp_path / "half.png")
    expect(fault).to_contain_text("half.png: The picture is damaged")
    expect(page.locator("#work")).to_be_hidden()
    upload(page)
    explained_anew(page, page.locator("#predictions .class:has-text('tabby')").click)
    later(page)
    before = page.url, page_pixels(page)
    for number in range(2, 11):  # more than there are pictures that Back can show again
        page.set_input_files("#image", tmp_path / "half.png")
        expect(page.locator("#thumbnails .fault")).to_have_count(number)
    answered(page)
    expect(page.locator("#answer-label")).to_have_text("tabby")
    expect(page.locator("#predictions [aria-pressed=true] .label")).to_have_text(["tabby"])
    after = page.url, page_pixels(page)
    assert after[0] == before[0]
    assert np.array_equal(after[1], before[1])
    expect(page.locator("#thumbnails [aria-selected=true]")).to_have_attribute("aria-label", re.compile("^cat.png"))


def test_what_failed_can_be_asked_for_again(page):
    page.set_viewport_size({"width": 390, "height": 600})
    upload(page)
    page.route("**/explain", lambda route: route.abort())
    page.click("#predictions .class:has-text('tabby')")
    problem = page.locator("#problem")
    expect(problem).to_contain_text("cannot be reached")
    expect(problem).to_be_in_viewport()
    page.unroute("**/explain")
    explained_anew(page, page.get_by_role("button", name="Try again").click)
    expect(page.locator("#answer-label")).to_have_text("tabby")
    expect(problem).to_be_hidden()


WORDS = {
    "It has 60 s (SEEWHY_DEADLINE). Use fewer samples or a cheaper method: GET /methods lists their costs.": (
        "It has 60 s. Use fewer samples or a cheaper method."
    ),
    "Use a cheaper method (`seewhy methods` or GET /methods lists the costs), or try again later.": (
        "Use a cheaper method, or try again later."
    ),
    "There is no model 'x'. `seewhy models` or GET /models lists all names.": "There is no model 'x'.",
    "The result was not ready within SEEWHY_DEADLINE.": (
        "The result was not ready within the time that the service allows."
    ),
    "Put them into the folder that SEEWHY_WEIGHTS_DIR names, or set SEEWHY_DOWNLOAD=1 on a machine.": (
        "Put them into the service’s folder of weights, or allow downloads on a machine."
    ),
    "Set SEEWHY_ANYTHING=2 first.": "Set a setting of the service first.",
    "The body is too large.": "The body is too large.",
}
"""Errors, and what the page says of them."""


@pytest.mark.parametrize("detail", WORDS)
def test_errors_speak_of_no_settings_and_routes_and_what_would_fail_again_is_not_offered_again(page, detail):
    status = 413 if "large" in detail else 422
    problem = json.dumps({"title": "x", "status": status, "detail": detail})
    page.route("**/explain", lambda route: route.fulfill(status=status, content_type="application/json", body=problem))
    page.set_input_files("#image", EXAMPLES / "cat.png")
    expect(page.locator("#problem-text")).to_have_text(WORDS[detail])
    expect(page.locator("#retry")).to_be_hidden()


def test_quick_answers_move_nothing(page, url):
    upload(page)
    with (EXAMPLES / "cat.png").open("rb") as picture:
        form = {"view": "heatmap", "values": "map", "target": "281"}
        events = {"Accept": "text/event-stream"}
        body = requests.post(f"{url}/explain", files={"image": picture}, data=form, headers=events, timeout=60).content
    page.route("**/explain", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.evaluate(
        """() => {
            window.moved = false;
            const progress = document.querySelector("#progress");
            new MutationObserver(() => { window.moved ||= !progress.hidden; }).observe(progress, { attributes: true });
        }"""
    )
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    assert not page.evaluate("window.moved")


def test_the_address_is_not_changed_at_every_step_of_a_slider(page):
    upload(page)
    page.evaluate(
        """() => {
            window.changes = 0;
            const replace = history.replaceState.bind(history);
            history.replaceState = (...given) => { window.changes += 1; replace(...given); };
            const slider = document.querySelector("#alpha");
            for (let step = 0; step <= 90; step += 1) {
                slider.value = step / 100;
                slider.dispatchEvent(new Event("input"));
            }
        }"""
    )
    page.click("#copy-link")
    assert clipboard(page).endswith("?model=efficientnet_lite0&alpha=0.9")
    expect(page).to_have_url(re.compile(r"\?alpha=0\.9$"))
    assert page.evaluate("window.changes") < 5


def test_a_link_without_a_picture_keeps_its_classes_for_the_first_one(tab, url):
    tab.goto(f"{url}/?target=281&against=282")
    upload(tab)
    expect(tab.locator("#contrast")).to_contain_text("tabby rather than tiger cat")
    upload(tab, "coffee.png")
    expect(tab.locator("#answer-label")).to_have_text("espresso")
    expect(tab.locator("#contrast")).to_be_hidden()


def test_a_link_decides_nothing_that_is_the_pages_own(tab, url):
    tab.goto(f"{url}/?example=cat&format=png&view=side-by-side&values=true&alpha=much&top=2&image=x")
    page = answered(tab)
    expect(page.locator("#predictions .class")).to_have_count(5)
    expect(page.locator("#alpha-value")).to_have_text("50%")


def test_layers_are_those_of_the_default_model_before_any_answer(tab, url):
    methods = {**requests.get(f"{url}/methods", timeout=GUARD).json(), "model": "efficientnet_lite2"}
    tab.route("**/methods", lambda route: route.fulfill(json=methods))
    tab.goto(f"{url}/?example=cat&samples=3")
    expect(tab.locator("#problem")).to_be_visible()
    with tab.expect_request("**/models/efficientnet_lite2/layers"):
        tab.click("#layer")


def test_a_method_without_a_paper_is_shown_like_others(tab, url):
    catalogue = requests.get(f"{url}/methods", timeout=GUARD).json()
    for method in catalogue["methods"]:
        method["papers"] = []
    tab.route(re.compile("/methods($|\\?)"), lambda route: route.fulfill(json=catalogue))
    tab.goto(f"{url}/?example=cat&method=gradcam")
    page = answered(tab)
    expect(page.locator("#method-paper")).to_have_text("")
    expect(page.locator("#problem")).to_be_hidden()


@pytest.mark.parametrize("same", [True, False])
def test_classes_are_kept_for_a_model_that_has_the_same_ones(tab, url, same):
    def rename_labels(route):
        document = route.fetch().json()
        route.fulfill(json={**document, "labels": [f"another {label}" for label in document["labels"]]})

    if not same:
        tab.route("**/models/efficientnet_lite1", rename_labels)
    tab.goto(f"{url}/?example=cat&target=281")
    answered(tab)
    tab.click("#model")
    tab.locator("dialog input[value=efficientnet_lite1]").check()
    fields = explained_anew(tab, tab.get_by_role("button", name="Use this model").click)
    assert dict(fields)["model"] == "efficientnet_lite1"
    assert ("target" in dict(fields)) is same


@pytest.mark.parametrize("button", ["#layer", "#model"])
def test_a_chooser_that_cannot_list_says_why(page, button):
    upload(page)
    page.route(re.compile("/models"), lambda route: route.abort())
    page.click(button)
    expect(page.locator("#problem:visible, dialog [role=alert]")).to_contain_text("cannot be reached")


def test_views_of_a_model_whose_layers_cannot_be_listed_say_so(tab, url):
    problem = {"title": "No", "status": 422, "detail": "The model nope has no layers."}
    tab.route(re.compile("/layers$|/hooks/"), lambda route: route.fulfill(status=422, json=problem))
    tab.goto(f"{url}/?example=cat&show=compare&by=layer")
    expect(tab.locator("#cards")).to_contain_text("nope")
    tab.click("#tab-inside")
    expect(tab.locator("#maps")).to_contain_text("nope")
    for name in ("Switch off the 10 with the largest positive effect", "All on"):
        expect(tab.get_by_role("button", name=name)).to_be_disabled()
    expect(tab.locator("#more-maps")).to_be_hidden()


def test_a_model_without_layers_to_compare_says_so(tab, url):
    tab.route("**/layers", lambda route: route.fulfill(json={"model": "x", "layers": []}))
    tab.goto(f"{url}/?example=cat&show=compare&by=layer")
    expect(tab.locator("#cards")).to_contain_text("no layer with a grid")


def test_layers_that_are_found_late_are_not_compared_as_methods(tab, url):
    tab.goto(f"{url}/?models=efficientnet_lite0")
    upload(tab)
    tab.evaluate(LATE, ["/layers", 1000])
    tab.click("#tab-compare")
    expect(tab.locator(".card")).to_have_count(4)
    tab.locator("label", has=tab.locator("#by-layer")).click()
    tab.locator("label", has=tab.locator("#by-method")).click()
    tab.wait_for_timeout(1500)
    expect(tab.locator(".card h3")).to_have_text(["votes-detail", "gradcam", "layercam", "saliency"])


def test_an_unknown_way_to_compare_is_by_method(tab, url):
    tab.goto(f"{url}/?example=cat&show=compare&by=colour&compare=fem&compare=fem")
    expect(tab.locator(".card h3")).to_have_text(["fem"])
    expect(tab.locator("#chips-compare input:checked")).to_have_count(1)


def test_what_is_opened_is_the_map_of_its_card(tab, url):
    link = f"{url}/?example=cat&method=gradcam&layer=blocks.5&sign=signed&show=compare&compare=gradcam&compare=layercam"
    tab.goto(link)
    expect(tab.locator(".card progress")).to_have_count(0)
    for name, options in (("layercam", set()), ("gradcam", {("sign", "signed")})):
        tab.click("#tab-compare")
        fields = explained_anew(tab, tab.get_by_role("button", name=f"Open {name}", exact=True).click)
        assert set(fields) >= {("method", name), ("layer", "blocks.5"), *options}
        expect(tab.locator("#layer-name")).to_have_text("blocks.5")
        tab.goto(link)
        expect(tab.locator(".card progress")).to_have_count(0)


def test_what_failed_in_a_card_is_asked_again_by_who_comes_back(tab, url):
    tab.goto(f"{url}/?models=efficientnet_lite0")
    upload(tab)
    tab.route("**/explain", lambda route: route.abort())
    tab.click("#tab-compare")
    expect(tab.locator(".card .fault-box")).to_have_count(4)
    tab.unroute("**/explain")
    tab.click("#tab-compare")
    expect(tab.locator(".card .facts", has_text="tiger cat")).to_have_count(4)


def test_the_focus_stays_among_what_is_compared(tab, url):
    tab.goto(f"{url}/?example=cat&show=compare&compare=gradcam&compare=fem")
    expect(tab.locator(".card progress")).to_have_count(0)
    answered(tab)
    fem = tab.get_by_role("checkbox", name="fem", exact=True)
    fem.focus()
    tab.keyboard.press("Space")
    expect(tab.locator(".card")).to_have_count(1)
    expect(fem).to_be_focused()
    expect(tab.get_by_role("checkbox", name="gradcam", exact=True)).to_be_disabled()
    opener = tab.get_by_role("button", name="Open gradcam")
    opener.focus()
    tab.evaluate("async () => (await import('/static/js/state.js')).change({ answer: null })")
    expect(opener).to_be_focused()


def test_colours_that_tell_something_are_kept_where_the_system_chooses_them(tab, url):
    tab.emulate_media(forced_colors="active")
    tab.goto(f"{url}/?example=cat&against=281")
    answered(tab)

    def colours(selector):
        with suppress(OSError):  # a starved browser may send half a screenshot
            return len(np.unique(levels(tab.locator(selector).first.screenshot()).reshape(-1, 3), axis=0))

    assert until(lambda: colours("#bar-colours")) > 100
    assert tab.locator("#predictions .fill").first.evaluate("one => getComputedStyle(one).backgroundColor") == (
        "rgb(198, 95, 159)"
    )
    outline = "one => getComputedStyle(one).outlineStyle"
    assert tab.locator(".rather[aria-pressed=true]").evaluate(outline) == "solid"
    assert tab.locator(".rather[aria-pressed=false]").last.evaluate(outline) == "none"
    edges = tab.locator("[role=tab]").evaluate_all("all => all.map((one) => getComputedStyle(one).borderBottomWidth)")
    assert edges == ["3px", "0px", "0px", "0px"]
