"""The page in a real browser: its other views, and its accessibility."""

import io
import json
import re
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import requests
import torch
from PIL import Image, ImageOps
from playwright.sync_api import expect

from docs.screens import IMAGES, VIEWS, take
from tests import nets
from tests.app.browsing import accessible, answered, ask, explained_anew, levels, upload
from tests.app.conftest import EXAMPLES, opened
from tests.app.shapes import HEIGHT, WIDTH, served
from tests.grids import few
from tests.waiting import GUARD

NARROW = {"width": 390, "height": 844}


def example(page, url, query=""):
    page.goto(f"{url}/?example=cat{query}")
    return page


def compared(page, count):
    expect(page.locator(".card")).to_have_count(count)
    expect(page.locator(".card progress")).to_have_count(0)


def looked_inside(page):
    expect(page.locator(".tile")).to_have_count(24)
    expect(page.locator("#trace svg")).to_have_count(3)
    expect(page.locator("#effect-list li")).to_have_count(5)


@pytest.mark.slow
def test_methods_are_compared_side_by_side(tab, url):
    tab.goto(f"{url}/?models=efficientnet_lite0")
    upload(tab)
    tab.click("#tab-compare")
    compared(tab, 4)
    expect(tab.locator(".card h3")).to_have_text(["votes-detail", "gradcam", "layercam", "saliency"])
    for facts in tab.locator(".facts").all_inner_texts():
        assert "tiger cat" in facts
        assert re.search(r", \d\S*\sm?s$", facts)
    pairs = ask(url, method="votes-detail,gradcam,layercam,saliency", format="json").json()["agreement"]
    names = tab.locator("#agreement thead th").all_inner_texts()
    cells = tab.locator("#agreement tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent.replace('−', '-')))"
    )
    assert len(pairs) == 6
    for pair in pairs:
        row, column = (names.index(name) for name in pair["methods"])
        assert float(cells[row][column]) == pytest.approx(pair["rank_correlation"], abs=6e-3)
        assert cells[column][row] == cells[row][column]
    accessible(tab)


@pytest.mark.slow
def test_layers_are_compared(tab, url):
    example(tab, url, "&show=compare&by=layer")
    expect(tab.locator(".card h3")).to_have_text(["blocks.1", "blocks.2", "blocks.4", "bn2"])
    compared(tab, 4)
    tab.click("#compare-layers")
    tab.get_by_label("Find a layer").fill("blocks.3")
    tab.locator("dialog input[value='blocks.3']").check()
    tab.get_by_role("button", name="Use these layers").click()
    compared(tab, 5)
    expect(tab.locator("#agreement-table tbody tr")).to_have_count(5)
    tab.get_by_role("button", name="Open blocks.3", exact=True).click()
    answered(tab)
    expect(tab.locator("#layer-name")).to_have_text("blocks.3")


@pytest.mark.slow
def test_what_cannot_be_compared_says_why_in_its_card(tab, url):
    example(tab, url, "&show=compare&compare=gradcam&compare=gradcm")
    compared(tab, 2)
    expect(tab.locator(".card").nth(1).get_by_role("alert")).to_contain_text("gradcam")


@pytest.fixture(scope="module")
def inside(browser, url):
    """The view into the model, of a layer that is not the default one."""
    with opened(browser, url) as tab:
        tab.goto(f"{url}/?show=inside&inside=blocks.5")
        upload(tab)
        looked_inside(tab)
        yield tab


@pytest.mark.slow
def test_feature_maps_are_ranked_by_effect(inside, url):
    fields = {"layer": "blocks.5", "kind": ["output", "grad_output"], "format": "npz"}
    with np.load(io.BytesIO(ask(url, "/hooks/capture", **fields).content)) as arrays:
        effects = (arrays["blocks.5/output/0"] * arrays["blocks.5/grad_output/0"]).sum((0, 2, 3))
    order = np.argsort(-np.abs(effects))[:24]
    assert (effects[order] < 0).any()
    tiles = inside.locator(".tile input").evaluate_all("all => all.map((one) => [one.value, one.labels[0].innerText])")
    for channel, (number, label) in zip(order, tiles[:24], strict=True):
        assert effects[int(number)] == pytest.approx(effects[channel], abs=1e-3)
        assert label.split() == f"ch {number} {effects[int(number)]:+.2f}".replace("-", "−").split()
    inside.click("#more-maps")
    expect(inside.locator(".tile")).to_have_count(len(tiles) + 24)


@pytest.mark.slow
def test_an_answer_that_comes_later_draws_the_tiles_but_replaces_none(page, url):
    held = []
    page.route("**/explain", lambda route: held.append(route))  # Playwright marks what it calls
    with page.expect_request("**/explain"):
        example(page, url, "&show=inside&inside=blocks.5")
    expect(page.locator(".tile")).to_have_count(24)
    drawn = "document.querySelector('.tile canvas').toDataURL()"
    page.evaluate(f"window.before = {drawn}, window.tile = document.querySelector('.tile button')")
    held[0].continue_()
    page.wait_for_function(f"() => {drawn} !== before")
    assert page.evaluate("tile.isConnected")  # a click on it is not lost


@pytest.mark.slow
def test_the_answer_moves_when_channels_are_switched_off(inside, url):
    boxes = inside.locator(".tile input")
    channels = [int(boxes.nth(place).get_attribute("value")) for place in (0, 3)]
    boxes.nth(0).uncheck()
    boxes.nth(3).uncheck()
    edits = json.dumps([{"layer": "blocks.5", "op": "zero", "channels": channels}])
    document = ask(url, "/hooks/intervene", edits=edits).json()
    before, after = (document[side]["target"]["probability"] for side in ("before", "after"))
    moves = f"{'falls' if after < before else 'rises'} from {before:.1%} to {after:.1%}."
    expect(inside.locator("#effect-summary")).to_contain_text(f"Without 2 channels of blocks.5, tiger cat {moves}")
    expect(inside.locator("#effect-title")).to_have_text("Without 2 channels of blocks.5")
    image = inside.locator("#effect-image")
    size = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    width, height = image.evaluate(size)
    assert width > 300
    shown = image.bounding_box()
    assert width / height < shown["width"] / shown["height"] == pytest.approx(3 * 451 / 300, rel=0.02)  # no captions
    assert inside.url.endswith(f"off={channels[0]}%2C{channels[1]}")
    accessible(inside)
    inside.click("#off-strongest")
    expect(inside.locator("#effect-title")).to_have_text("Without 10 channels of blocks.5")
    inside.click("#off-none")
    expect(inside.locator("#effect-title")).to_have_text("With all channels")
    expect(inside.locator("#effect-panel")).to_be_hidden()


def test_channels_can_be_switched_off_after_a_proof_with_the_mean_colour(tab, url):
    tab.goto(f"{url}/?example=cat&proof_fill=mean&show=inside&inside=blocks.5")
    looked_inside(tab)
    tab.click("#off-strongest")
    expect(tab.locator("#effect-summary")).to_contain_text("Without 10 channels of blocks.5")


def tab_to(page, selector):
    """Press the tabulator until an element has the focus."""
    for _ in range(120):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached")


@pytest.mark.slow
def test_the_keyboard_is_enough_and_nothing_keeps_anybody_out(page):
    accessible(page)
    tab_to(page, "#examples button")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    answered(page)
    tab_to(page, "#reader")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#mark")).to_be_visible()
    tab_to(page, "#wipe")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#wipe")).to_have_attribute("aria-valuenow", "5")
    tab_to(page, "#predictions li:nth-child(3) .class")
    explained_anew(page, lambda: page.keyboard.press("Enter"))
    expect(page.locator("#answer-label")).to_have_text("tabby")
    assert page.evaluate("document.activeElement.matches('#predictions li:nth-child(3) .class')")
    tab_to(page, "#predictions li:nth-child(4) .rather")
    explained_anew(page, lambda: page.keyboard.press("Enter"))
    expect(page.locator("#contrast")).to_be_visible()
    accessible(page)
    tab_to(page, "#layer")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to(page, "dialog summary[aria-label='Modules of blocks']")
    page.keyboard.press("Enter")
    expect(page.locator("dialog input[value='blocks.6']")).to_be_visible()
    accessible(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "layer"
    page.locator("#main").focus()
    tab_to(page, "[role=tab]")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-compare"
    expect(page.locator("#panel-compare")).to_be_visible()


STATES = {
    "empty": lambda page, url: (page.goto(url), page.wait_for_selector("body[data-ready]")),
    "answered": lambda page, url: answered(example(page, url, "&method=lrp&epsilon=0.5&against=281")),
    "marked": lambda page, url: (
        answered(example(page, url, "&mark=hide:126,60,226,180")),
        expect(page.locator("#predictions .moved").first).to_be_visible(),
    ),
    "compare": lambda page, url: (example(page, url, "&show=compare&models=efficientnet_lite0"), compared(page, 4)),
    "likeness": lambda page, url: (
        example(page, url, "&show=likeness&reference=coffee"),
        expect(page.locator("#pairs button")).to_have_count(5),
    ),
    "inside": lambda page, url: (
        example(page, url, "&show=inside&off=112%2C977"),
        expect(page.locator("#effect-title")).to_have_text("Without 2 channels of bn2"),
        expect(page.locator("#effect-panel")).to_be_visible(),
        expect(page.locator(".tile.off")).to_have_count(2),
        expect(page.locator("#trace svg")).to_have_count(3),
    ),
    "channel": lambda page, url: (
        example(page, url, "&show=inside&inside=blocks.5"),
        page.locator(".tile button").first.click(),
        expect(page.locator("dialog [role=status]")).to_contain_text("of blocks.5, tiger cat"),
    ),
    "layers": lambda page, url: (
        answered(example(page, url)),
        page.click("#layer"),
        page.locator("dialog input[value=bn2]").wait_for(),
    ),
    "models": lambda page, url: (
        answered(example(page, url)),
        page.click("#model"),
        page.locator("dialog .absent").first.wait_for(),
    ),
    "fault": lambda page, url: (example(page, url, "&target=tabbby"), page.locator(".faulty").wait_for()),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.slow
def test_each_view_is_for_everybody_light_or_dark_and_on_a_narrow_screen(tab, url, name):
    wide = tab.viewport_size
    tab.set_viewport_size(NARROW)
    STATES[name](tab, url)
    for width in (360, NARROW["width"]):
        tab.set_viewport_size(NARROW | {"width": width})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    beyond = tab.evaluate(
        """width => [...document.querySelectorAll("main :is(button, input, select, h1, h2, h3, p, canvas, img)")]
            .filter((one) => !one.closest(".scroll, .visually-hidden, [hidden]") && one.getClientRects().length)
            .filter((one) => one.getBoundingClientRect().right > width + 1)
            .map((one) => one.outerHTML)""",
        NARROW["width"],
    )
    assert beyond == []
    tab.set_viewport_size(wide)
    accessible(tab)
    tab.emulate_media(color_scheme="dark", reduced_motion="reduce")
    accessible(tab, "color-contrast")  # all else is the same


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 390])
def test_the_keyboard_follows_what_is_seen_from_top_to_bottom(tab, url, width):
    tab.set_viewport_size({"width": width, "height": 844})
    answered(example(tab, url))
    tops = tab.evaluate(
        """() => ["figcaption", ".side"]
            .flatMap((part) => [...document.querySelectorAll(`${part} :is(a, button, input, select, summary)`)])
            .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled)
            .filter((one) => innerWidth < 960 || one.closest(".side")) // else they stand side by side
            .map((one) => one.getBoundingClientRect())
            .map(({ top, bottom }) => (top + bottom) / 2)"""
    )
    assert len(tops) > 20
    assert [later - former for former, later in pairwise(tops) if later < former - 15] == []


@pytest.fixture(scope="module")
def cat(browser, url):
    """The page with an answer, of which tests change the size and the colours alone."""
    with opened(browser, url) as tab:
        yield answered(example(tab, url))


def test_the_picture_stays_in_sight_and_what_belongs_to_it_beside_it(cat):
    cat.set_viewport_size({"width": 1440, "height": 900})
    for name in ("stage", "proof", "marking", "bar", "reading", "model", "method", "layer", "options", "drawing"):
        box = cat.locator(f"#{name}").bounding_box()
        assert box["y"] + box["height"] <= 900, name
    cat.set_viewport_size({"width": 1100, "height": 900})
    cat.locator("#drawing > summary").click()
    cat.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert cat.locator("#stage").bounding_box()["y"] >= 0
    cat.locator("#drawing > summary").click()


@pytest.mark.slow
def test_the_colours_and_their_values_stay_in_sight_below_a_strip_and_with_a_marked_part(tab, url):
    tab.set_viewport_size({"width": 1440, "height": 900})
    answered(example(tab, url))
    upload(tab, "astronaut.png")
    expect(tab.locator("#thumbnails .share")).to_have_count(2)
    tab.locator("#stage").click(position={"x": 90, "y": 90})
    expect(tab.locator("#fires-list button").first).to_be_in_viewport()
    for name in ("stage", "proof", "bar", "reading"):
        expect(tab.locator(f"#{name}")).to_be_in_viewport(ratio=1)
    stage = tab.locator("#stage").bounding_box()
    tab.mouse.move(stage["x"] + 90, stage["y"] + 90)
    tab.mouse.down()
    tab.mouse.move(stage["x"] + 150, stage["y"] + 150)
    tab.mouse.up()
    expect(tab.locator("#marking-said")).to_contain_text("Without your marked part")
    for name in ("stage", "proof", "bar", "reading", "marking-said"):
        expect(tab.locator(f"#{name}")).to_be_in_viewport(ratio=1)
    accessible(tab)


@pytest.mark.slow
def test_no_line_is_cut_in_half_above_what_the_marked_part_tells(tab, url):
    STATES["marked"](tab, url)
    tab.click("#fires-open")
    expect(tab.locator("#fires-list button")).to_have_count(5)
    for height in range(700, 900, 5):  # the panel lies over all that is above it, line by line
        tab.set_viewport_size({"width": 1440, "height": height})
        tab.evaluate("scrollTo(0, 0)")
        panel = tab.locator("#result").bounding_box()
        rows = tab.screenshot(clip={"x": panel["x"], "y": panel["y"] - 4, "width": panel["width"], "height": 3})
        assert levels(rows).std((0, 1)).max() < 1, height


@pytest.mark.slow
def test_the_value_of_a_pixel_is_as_high_as_the_hint_on_a_narrow_screen(cat):
    cat.set_viewport_size(NARROW)
    line = cat.locator(".numbers:has(#reading)")
    before = line.bounding_box()["height"]
    cat.locator("#stage").hover()
    expect(cat.locator("#reading")).to_contain_text("x ")
    assert line.bounding_box()["height"] == before
    cat.set_viewport_size({"width": 1440, "height": 900})


PLACES = """() => {
    const cards = [...document.querySelectorAll(".card")];
    const nameOf = (one) => one.id || one.dataset.focus || `${one.className} ${cards.indexOf(one.closest(".card"))}`;
    const left = "#result, #progress, .visually-hidden, #mark, #spot, #marker, #stroke";
    return Object.fromEntries([...document.querySelectorAll("main :is([id], [data-focus], .card, .card .grade)")]
        .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(left))
        .map((one) => [nameOf(one), one.getBoundingClientRect()])
        .map(([name, { top, bottom }]) => [name, [top, bottom > Math.max(0, top) && top < innerHeight]]));
}"""
"""The upper edges of all that the page shows but the panel of results, and whether each is in the first view."""


@contextmanager
def nothing_moves(page):
    """Hold that what is in sight stays where it is."""
    before = page.evaluate(PLACES)
    yield
    after = page.evaluate(PLACES)
    kept = [name for name, (_, is_in_sight) in before.items() if is_in_sight and name in after]
    assert len(kept) > 10
    moved = {name: (before[name][0], after[name][0]) for name in kept if abs(after[name][0] - before[name][0]) > 2}
    assert moved == {}


def in_sight(page, *names):
    for name in names:
        expect(page.locator(name)).to_be_in_viewport(ratio=0.99)


SIZES = {"wide": (1440, 900), "medium": (1100, 800), "narrow": (390, 844)}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_nothing_moves_under_the_hand_and_what_an_action_brings_is_in_sight(tab, url, size):
    width, height = SIZES[size]
    tab.set_viewport_size({"width": width, "height": height})
    held = []
    tab.route("**/explain", lambda route: held.append(route))
    with tab.expect_request("**/explain"):
        tab.goto(f"{url}/?example=coffee")
    expect(tab.locator("#progress")).to_be_visible()
    with nothing_moves(tab):
        held[0].continue_()
        tab.unroute("**/explain")
        answered(tab)
        expect(tab.locator("#predictions li")).to_have_count(5)
    in_sight(tab, "#answer", "#marking", "#bar")
    others = ("#proof", "#save-png", "#copy-link") if size == "wide" else ()
    in_sight(tab, *others)

    stage = tab.locator("#stage").bounding_box()
    place = lambda x, y: (stage["x"] + x * stage["width"], stage["y"] + y * stage["height"])  # noqa: E731
    with nothing_moves(tab):
        tab.click("#marking-on")
        in_sight(tab, "#marking-said")
        tab.mouse.move(*place(0.3, 0.2))
        tab.mouse.down()
        tab.mouse.move(*place(0.6, 0.6), steps=4)
        tab.mouse.up()
        expect(tab.locator("#marking-said")).to_contain_text("Without your marked part, espresso falls")
        expect(tab.locator("#predictions .moved").first).to_be_attached()
    name, share, moved = (tab.locator(f"#predictions .{part}").first for part in ("label", "share", "moved"))
    for part, text in ((name, "elongated"), (share, ">99.9%"), (moved, " +0.1 pp")):
        part.evaluate("(part, text) => (part.firstChild ?? part.appendChild(new Text())).data = text", text)
    assert name.evaluate("name => name.scrollWidth <= name.clientWidth")
    with nothing_moves(tab):  # a long name takes two lines
        name.evaluate("name => name.textContent = 'German short-haired pointer'")
        assert name.evaluate(
            "name => name.scrollWidth <= name.clientWidth && getComputedStyle(name).overflow === 'visible'"
        )
    in_sight(tab, "#stage", "#marking", "#marking-said", *others)
    if size != "narrow":
        in_sight(tab, "#predictions")
    with nothing_moves(tab):
        tab.mouse.click(*place(0.5, 0.75))
        expect(tab.locator("#fires-list button")).to_have_count(5)
    in_sight(tab, "#stage", "#marking", "#fires-list li:first-child", *others)
    with nothing_moves(tab):
        tab.click("#fires-close")
        tab.click("#marking-undo")
        expect(tab.locator("#whole")).to_be_hidden()

    second, other = tab.locator("#predictions .class").nth(1), tab.locator("#predictions .rather").first
    if size == "narrow":
        explained_anew(tab, second.click)
        in_sight(tab, "#stage", "#answer", "#proof")
        return
    for act in (
        second.click,
        other.click,
        lambda: tab.click("#contrast-clear"),
        lambda: tab.select_option("#method", "saliency"),
    ):
        with nothing_moves(tab):
            explained_anew(tab, act)
            expect(tab.locator("#answer-label")).to_have_text("cup")
        in_sight(tab, "#answer", "#proof")


@pytest.mark.parametrize("size", few(SIZES, short=[]))
def test_cards_stay_in_place_and_their_parts_stand_at_equal_heights(tab, url, size):
    width, height = SIZES[size]
    tab.set_viewport_size({"width": width, "height": height})
    models = "&models=efficientnet_lite0&models=mobilenet_v2"
    answered(example(tab, url, f"{models}&compare=votes-detail&compare=gradcam"))
    held = []
    tab.route("**/explain", lambda route: held.append(route))
    tab.click("#tab-compare")
    expect(tab.locator(".card")).to_have_count(4)
    expect(tab.locator("#class-add")).to_be_visible()
    expect(tab.locator("#compare-cancel")).to_be_visible()
    with nothing_moves(tab):
        for route in held:
            route.continue_()
        tab.unroute("**/explain")
        compared(tab, 4)
        expect(tab.locator(".card .grade")).to_have_count(4)
        expect(tab.locator("#compare-cancel")).to_be_hidden()
    grades = [(box["y"], box["x"]) for box in (one.bounding_box() for one in tab.locator(".card .grade").all())]
    cards = [box["x"] for box in (one.bounding_box() for one in tab.locator(".card").all())]
    for first, second in ((0, 1), (2, 3)):
        assert grades[first][0] == grades[second][0]
    assert len({round(x - card) for (_, x), card in zip(grades, cards, strict=True)}) == 1


@pytest.mark.slow
def test_a_preview_leaves_what_the_model_does_not_see_as_it_is(tab, url):
    answered(example(tab, url))
    corner = """(() => {
        const context = document.createElement("canvas").getContext("2d");
        context.drawImage(document.querySelector("#stage .map"), 0, 0);
        return context.getImageData(20, 20, 1, 1).data.join();
    })()"""
    before = tab.evaluate(corner)
    tab.select_option("#method", "rise")
    expect(tab.locator("#figure")).to_have_class(re.compile("refining"))
    assert tab.evaluate(corner) == before
    tab.keyboard.press("Escape")


@pytest.mark.slow
def test_what_a_link_names_in_vain_is_told_until_its_setting_changes_or_it_is_dismissed(tab, url):
    tab.goto(f"{url}/?method=nope&look=nope")
    problem, fault = tab.locator("#problem"), tab.locator("#method-fault")
    expect(problem).to_contain_text("no method 'nope'")
    in_sight(tab, "#problem", "#title")
    assert problem.bounding_box()["y"] < tab.locator("#title").bounding_box()["y"]
    tab.locator("#examples button").first.click()
    answered(tab)
    expect(fault).to_contain_text("no method 'nope'")
    expect(problem).to_contain_text("no view 'nope'")
    explained_anew(tab, lambda: tab.locator("#predictions .class").nth(1).click())
    expect(fault).to_be_visible()
    explained_anew(tab, lambda: tab.select_option("#method", "gradcam"))
    expect(fault).to_be_hidden()
    expect(problem).to_have_text(re.compile("^There is no view 'nope'. The default one is used."))
    tab.get_by_role("button", name="Dismiss").click()
    expect(problem).to_be_hidden()


@pytest.mark.slow
def test_nothing_speaks_of_a_pointer_where_there_is_none(tab, url):
    example(tab, url)
    answered(tab)
    expect(tab.locator("#reading")).to_have_text("Point at the picture to read a value.")
    help_text = tab.locator("#choosing")
    expect(help_text).to_contain_text("Use vs or Shift-click to contrast", use_inner_text=True)
    tab.set_viewport_size(NARROW)
    tab.reload()
    answered(tab)
    expect(tab.locator("#reading")).to_have_text("Touch the picture to read a value.")
    expect(help_text).to_contain_text("Use vs to contrast", use_inner_text=True)
    tab.locator("#stage").click()
    expect(tab.locator("#reading")).to_contain_text("x ")


@pytest.mark.slow
def test_what_is_wider_than_the_screen_says_so(page, url):
    STATES["compare"](page, url)
    hint = page.locator("#agreement .sideways")
    expect(hint).to_be_hidden()
    page.set_viewport_size(NARROW)
    expect(hint).to_be_visible()
    names = page.locator("#agreement tbody th").first
    place = names.bounding_box()
    page.locator("#agreement .scroll").evaluate("one => one.scrollTo(200, 0)")
    assert names.bounding_box()["x"] == pytest.approx(place["x"], abs=5)  # names of rows stay in sight


@pytest.mark.slow
def test_the_trace_is_dark_where_the_page_is(page, url):
    brightness = {}
    STATES["inside"](page, url)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shot = Image.open(io.BytesIO(page.locator("#trace").screenshot())).convert("L")
        brightness[scheme] = np.median(np.asarray(shot))
    assert brightness["light"] > 200
    assert brightness["dark"] < 60


def test_the_page_is_light_or_dark_as_its_reader_likes(cat):
    brightness = {}
    for scheme in ("dark", "light"):
        cat.emulate_media(color_scheme=scheme)
        colours = cat.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        brightness[scheme] = [sum(int(part) for part in colour[4:-1].split(",")) for colour in colours]
    assert brightness["light"][0] > 700 > 150 > brightness["light"][1]
    assert brightness["dark"][0] < 150 < 650 < brightness["dark"][1]


@pytest.mark.slow
def test_nothing_moves_for_those_who_want_that(page):
    moving = "[...document.querySelectorAll('*')].some((one) => parseFloat(getComputedStyle(one).transitionDuration))"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moving)
    page.emulate_media(reduced_motion="reduce")
    assert not page.evaluate(moving)


def test_the_page_runs_nothing_that_is_not_its_own(browser, url):
    """What an attacker might bring in is blocked: inline styles and scripts, markup made from text, other hosts."""
    policy = requests.get(url, headers={"Accept": "text/html"}, timeout=60).headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    for directive in ("default-src", "object-src", "base-uri", "form-action", "frame-ancestors"):
        assert f"{directive} 'none'" in policy
    page = browser.new_page()
    page.goto(url)
    blocked = page.evaluate(
        """() => {
            const told = [];
            document.addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
            document.body.setAttribute("style", "color: red");
            try { document.body.innerHTML += "<p>"; } catch (error) { told.push(error.name); }
            fetch("http://192.0.2.1/").catch(() => {});
            return new Promise((done) => {
                const look = (left) => told.length > 2 || !left ? done(told) : setTimeout(look, 10, left - 1);
                look(500);
            });
        }"""
    )
    page.close()
    assert {"style-src-attr", "TypeError", "connect-src"} <= set(blocked)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.slow
def test_pictures_of_the_page_show_it_as_it_is(browser, url, name):
    """Roughly: fonts differ between machines."""
    screenshot, committed = levels(take(browser, url, *VIEWS[name])), levels(IMAGES / name)
    assert screenshot.shape == committed.shape
    assert np.abs(screenshot - committed).mean() < 12


@pytest.mark.parametrize("name", ["astronaut", "cat", "coffee", "rocket"])
def test_examples_of_the_page_are_those_of_the_repository(url, name):
    served, small = (
        requests.get(f"{url}/static/examples/{name}{rest}", timeout=GUARD).content for rest in (".png", "-small.jpg")
    )
    assert served == (EXAMPLES / f"{name}.png").read_bytes()
    with Image.open(io.BytesIO(served)) as picture:
        cut = ImageOps.fit(picture, (360, 240))
    assert np.abs(levels(small) - np.asarray(cut)).mean() < 5


@pytest.mark.slow
def test_the_page_explains_the_very_picture_of_the_documentation(page, url):
    buttons = page.locator("#examples img").evaluate_all("all => all.map(({ src }) => src)")
    assert len(buttons) == 4
    assert sum(len(requests.get(address, timeout=GUARD).content) for address in buttons) < 100_000
    page.locator("#examples button").first.click()
    answered(page)
    (best, *_) = ask(url, "/predict", EXAMPLES / "cat.png").json()["predictions"]
    expect(page.locator("#answer-probability")).to_have_text(f"{best['probability']:.1%}")


class Flat(torch.nn.Module):
    """Has no layer with a grid of features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * HEIGHT * WIDTH, 3))

    def forward(self, images):
        return self.layers(images)


@pytest.mark.slow
def test_a_network_without_layers_for_maps_is_explained_by_another_method(browser, tmp_path):
    with served(tmp_path, Flat(), ["a", "b", "c"], "softmax") as url, opened(browser, url) as tab:
        example(tab, url)
        expect(tab.locator("#method")).to_have_value("saliency")
        answered(tab)
        expect(tab.locator("#layer-fault")).to_be_hidden()
        tab.click("#tab-compare")
        names = ["saliency", "input-x-gradient", "occlusion"]
        expect(tab.locator(".card h3")).to_have_text(names)
        expect(tab.locator(".card .grade")).to_have_count(len(names))
        tab.click("#tab-inside")
        expect(tab.locator("#maps .fault-box")).to_contain_text("so there are no feature maps")
        expect(tab.locator("#network-tree .name")).to_contain_text(["layers"])
        expect(tab.locator("#trace .plot").first).to_be_visible()


class Tokens(nets.Transformer):
    """Looks at patches of four pixels."""

    def __init__(self):
        super().__init__(3)
        torch.manual_seed(0)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.3)


@pytest.mark.slow
def test_the_channels_of_tokens_are_maps_over_the_picture(browser, tmp_path):
    with served(tmp_path, Tokens(), ["a", "b", "c"], "softmax") as url, opened(browser, url) as tab:
        tab.set_viewport_size(NARROW)
        tab.goto(f"{url}/?example=cat&show=inside")
        expect(tab.locator(".tile")).to_have_count(12)
        layer = tab.locator("#inside-layer-name").inner_text()
        answer = ask(url, "/hooks/capture", layer=layer, format="npz")
        with np.load(io.BytesIO(answer.content)) as arrays:
            tokens = arrays[f"{layer}/output/0"][0]
        rows, columns = HEIGHT // 4, WIDTH // 4
        assert len(tokens) == 1 + rows * columns
        tile = tab.locator(".tile button").first
        channel = int(re.search(r"\d+", tile.get_attribute("aria-label"))[0])
        tile.click()
        place = np.abs(tokens[1:, channel]).argmax()
        first = tab.get_by_role("list", name="Strongest places").locator("li").first
        value, x, y = re.fullmatch(r"(\S+) at x (\d+), y (\d+)", first.inner_text()).groups()
        assert float(value.replace("−", "-")) == pytest.approx(tokens[1 + place, channel], rel=5e-3)
        left, top, right, bottom = ask(url, format="json").json()["explanations"][0]["heatmap"]["box"]
        assert int(x) == pytest.approx(left + (place % columns + 0.5) * (right - left) / columns, abs=2)
        assert int(y) == pytest.approx(top + (place // columns + 0.5) * (bottom - top) / rows, abs=2)
        tab.get_by_role("button", name="Switch off", exact=True).click()
        tab.keyboard.press("Escape")
        expect(tab.locator("#effect-title")).to_have_text(f"Without channel {channel} of {layer}")
        expect(tab.locator("#effect-summary")).to_contain_text("Without channel")
        assert tab.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


@pytest.mark.slow
def test_an_error_of_switched_off_channels_is_as_wide_as_the_screen_and_stands_alone(page, url):
    page.set_viewport_size(NARROW)
    example(page, url, "&show=inside")
    looked_inside(page)
    page.locator(".tile input").first.uncheck()
    expect(page.locator("#effect-panel")).to_be_visible()
    expect(page.locator("#effect-summary")).to_contain_text("Without channel")
    problem = {"title": "No", "status": 422, "detail": "The output of this layer cannot be replaced; name another one."}
    page.route("**/hooks/intervene", lambda route: route.fulfill(status=422, json=problem))
    page.locator(".tile input").nth(1).uncheck()
    fault = page.locator("#effect-summary .fault-box")
    expect(fault).to_contain_text("name another one")
    expect(page.locator("#effect-summary")).not_to_contain_text("Without")  # that was about the channels before
    assert fault.bounding_box()["width"] == page.locator("#maps").bounding_box()["width"]
    expect(page.locator("#effect-panel")).to_be_hidden()
