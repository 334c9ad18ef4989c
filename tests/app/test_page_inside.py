"""The view into the model: its tree leads to feature maps, their effects, and the trace."""

import io
import json
import re
import shutil

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, ask, upload
from tests.app.conftest import EXAMPLES, opened
from tests.waiting import GUARD

LAYER = "blocks.4"
BOX = (94, 18, 358, 282)
"""What the model sees of the cat: left, top, right, bottom."""


@pytest.fixture(scope="module")
def shared(browser, url):
    with opened(browser, url) as tab:
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.goto(f"{url}/?show=inside&inside={LAYER}")
        upload(tab)
        settled(tab)
        yield tab


@pytest.fixture
def inside(shared, url):
    """The view of a layer, with all channels on and no dialog."""
    if shared.locator("dialog").count():
        shared.keyboard.press("Escape")
    if shared.locator("#off-none").is_enabled():
        shared.click("#off-none")
    if f"inside={LAYER}" not in shared.url:
        tree(shared, LAYER).click()
    settled(shared)
    return shared


def settled(page):
    expect(page.locator(".tile").first).to_be_visible()
    expect(page.locator("#maps")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#trace svg")).to_have_count(3)


def tree(page, path):
    return page.locator(f"#network-tree button[value='{path}']")


@pytest.fixture(scope="module")
def activations(url):
    """The output of the layer for the cat (C, H, W)."""
    answer = ask(url, "/hooks/capture", layer=LAYER, format="npz")
    with np.load(io.BytesIO(answer.content)) as arrays:
        return arrays[f"{LAYER}/output/0"][0]


def effect(url, channels):
    edits = json.dumps([{"layer": LAYER, "op": "zero", "channels": channels}])
    document = ask(url, "/hooks/intervene", edits=edits).json()
    return [document[side]["target"]["probability"] for side in ("before", "after")]


def test_the_tree_leads_to_feature_maps_and_to_the_part_of_the_trace(inside, url):
    layers = requests.get(f"{url}/models/efficientnet_lite0/layers", timeout=GUARD).json()["layers"]
    buttons = inside.locator("#network-tree button").evaluate_all("all => all.map((one) => one.value)")
    assert sorted(buttons) == sorted(layer["path"] for layer in layers if layer["cam"] and layer["path"])
    expect(inside.locator("#network-tree [aria-current]")).to_have_attribute("value", LAYER)
    band = inside.locator(".trace .band").bounding_box()
    tree(inside, "blocks.6").click()
    expect(inside.locator("#maps-count")).to_contain_text("24 of 320 feature maps")
    tree(inside, "bn2").click()
    expect(inside.locator("#maps-count")).to_have_text("24 of 1,280 feature maps, largest effect first")
    tree(inside, "blocks.6").click()
    expect(inside.locator("#maps-count")).to_contain_text("24 of 320 feature maps")
    expect(inside.locator("#network-tree [aria-current]")).to_have_attribute("value", "blocks.6")
    assert "inside=blocks.6" in inside.url
    moved = inside.locator(".trace .band").bounding_box()
    assert moved["x"] >= band["x"] + band["width"]
    label = inside.locator(".groups span", has_text="blocks.6").bounding_box()
    assert [moved[side] for side in ("x", "width")] == pytest.approx([label[side] for side in ("x", "width")], abs=1.5)


@pytest.mark.slow
def test_lines_lead_from_each_module_to_those_that_read_it(inside):
    """The blocks of a network are a chain; in an open block, its input goes past the modules to its output."""
    drawn = inside.locator("#network-tree .graph path:not(.tip)")
    names = inside.locator("#network-tree [data-path]").evaluate_all("all => all.map((row) => row.dataset.path)")
    assert names[0] == ""
    assert {"blocks.4", "blocks.4.1", "blocks.4.1.", "blocks.4.1.conv_pw"} <= {*names}
    assert "blocks.4." not in names  # it returns what its last block made
    chain = drawn.count()
    assert chain == inside.locator("#network-tree .graph circle").count() - 1
    assert all("Q" not in line for line in drawn.evaluate_all("all => all.map((line) => line.getAttribute('d'))"))
    for path in (LAYER, f"{LAYER}.1"):
        inside.locator(f"#network-tree summary[aria-label='Modules of {path}']").click()
    turned = inside.locator("#network-tree .graph path[d*=Q]")
    expect(turned).to_have_count(1)
    expect(inside.locator("#network-tree .graph .tip")).to_have_count(1)
    row = inside.locator(f"#network-tree [data-path='{LAYER}.1.']")
    row.hover()
    expect(inside.locator("#network-tree .graph path.on")).to_have_count(3)  # from the last module, past them, onwards
    expect(turned).to_have_class("on")
    middle = row.bounding_box()["y"] + row.bounding_box()["height"] / 2
    line = turned.bounding_box()
    assert line["y"] + line["height"] == pytest.approx(middle, abs=1.5)
    start = inside.locator(f"#network-tree [data-path='{LAYER}.0']").bounding_box()
    assert line["y"] == pytest.approx(start["y"] + start["height"] / 2, abs=1.5)
    for path in (f"{LAYER}.1", LAYER):
        inside.locator(f"#network-tree summary[aria-label='Modules of {path}']").click()
    expect(drawn).to_have_count(chain)


@pytest.mark.slow
def test_a_map_that_is_switched_off_stays_where_it_is(inside):
    control = inside.locator(".tile input").nth(9)
    control.scroll_into_view_if_needed()
    inside.evaluate("window.scrollTo(0, 0)")
    control.focus()
    place = control.bounding_box()["y"]
    inside.keyboard.press("Space")
    expect(inside.locator("#effect-panel")).to_be_visible()
    inside.wait_for_function("() => document.querySelector('#effect-image').complete")
    assert control.bounding_box()["y"] == pytest.approx(place, abs=2)
    summary = inside.locator("#effect-summary")
    expect(summary).to_contain_text("Without channel")
    expect(summary).to_be_in_viewport(ratio=1)
    expect(summary).to_have_attribute("aria-live", "polite")
    inside.evaluate("document.querySelector('.tile').scrollIntoView({ block: 'end' })")
    assert summary.bounding_box()["y"] + summary.bounding_box()["height"] == pytest.approx(900, abs=1)


@pytest.mark.slow
def test_places_that_share_the_highest_value_are_counted(inside, url):
    """The activation behind `bn2` ends at 6, which many places of some channels reach."""
    with np.load(io.BytesIO(ask(url, "/hooks/capture", layer="bn2", format="npz").content)) as arrays:
        maps = arrays["bn2/output/0"][0]
    ties = (maps == 6).sum(axis=(1, 2))
    tree(inside, "bn2").click()
    expect(inside.locator("#maps-count")).to_contain_text("of 1,280")
    shown = inside.locator(".tile input").evaluate_all("all => all.map((one) => Number(one.value))")
    channel = max(shown, key=lambda number: ties[number])
    assert ties[channel] > 3
    inside.get_by_role("button", name=f"Enlarge channel {channel}", exact=True).click()
    dialog = inside.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{ties[channel]} of 49 places reach 6; 3 of them are outlined.")


@pytest.mark.slow
def test_the_layers_before_and_behind_are_named_and_lead_on(inside):
    around = inside.locator("#neighbours")
    expect(around).to_have_text("Its input comes from blocks.3. Its output goes to blocks.5. ")
    around.get_by_role("button", name="blocks.3").click()
    expect(inside.locator("#inside-layer-name")).to_have_text("blocks.3")
    expect(around).to_have_text("Its input comes from blocks.2. Its output goes to blocks.4. ")
    tree(inside, "conv_stem").click()
    expect(around).to_have_text("Its input comes from the picture. Its output goes to bn1. ")


@pytest.mark.slow
def test_rows_read_what_functions_join(inside):
    """A block of a residual sum and a concatenation, closed and open."""
    script = """async ([layers, open]) => {
        const { connections, neighbours } = await import('/static/js/graph.js');
        return [connections(layers, (path) => open.includes(path)), neighbours(layers, "block.second")];
    }"""
    layers = [
        {"path": path, "inputs": inputs, "parts": parts}
        for path, inputs, parts in [
            ("", [""], []),
            ("stem", [""], []),
            ("block", ["stem"], ["stem", "block.second"]),
            ("block.first", ["stem"], []),
            ("block.second", ["block.first"], []),
            ("head", ["block", "stem"], []),
        ]
    ]
    closed, around = inside.evaluate(script, [layers, []])
    assert closed == [["", "stem"], ["stem", "block"], ["block", "head"], ["stem", "head"]]
    assert around == {"reads": ["block.first"], "readBy": ["block."]}
    opened, _ = inside.evaluate(script, [layers, ["block"]])
    assert sorted(opened) == [
        ["", "stem"],
        ["block.", "head"],
        ["block.first", "block.second"],
        ["block.second", "block."],
        ["stem", "block."],
        ["stem", "block.first"],
        ["stem", "head"],
    ]


@pytest.mark.slow
def test_a_feature_map_opens_large_with_its_strongest_places(inside, activations):
    tile = inside.locator(".tile button").nth(1)
    channel = int(re.search(r"\d+", tile.get_attribute("aria-label"))[0])
    tile.click()
    dialog = inside.get_by_role("dialog", name=f"Channel {channel} of {LAYER}")
    expect(dialog).to_be_visible()
    places = dialog.get_by_role("list", name="Strongest places").locator("li")
    expect(places).to_have_count(3)
    row, column = np.unravel_index(np.abs(activations[channel]).argmax(), activations[channel].shape)
    value, x, y = re.fullmatch(r"(\S+) at x (\d+), y (\d+)", places.first.inner_text()).groups()
    assert float(value.replace("−", "-")) == pytest.approx(activations[channel, row, column], rel=5e-3)
    side = (BOX[2] - BOX[0]) / activations.shape[2]
    assert int(x) == pytest.approx(BOX[0] + (column + 0.5) * side, abs=2)
    assert int(y) == pytest.approx(BOX[1] + (row + 0.5) * side, abs=2)
    white = dialog.locator("canvas").evaluate(
        """(canvas, [x, y]) => {
            const scale = canvas.width / 451;
            const { data } = canvas.getContext("2d").getImageData(scale * x - 3, scale * y, 7, 1);
            return Math.max(...[...data].filter((_, place) => place % 4 !== 3));
        }""",
        [BOX[0] + column * side, BOX[1] + (row + 0.5) * side],
    )
    assert white == 255  # the outline
    accessible(inside)


@pytest.mark.slow
def test_the_chosen_module_is_seen_where_the_system_chooses_the_colours(inside):
    inside.emulate_media(forced_colors="active")
    style = "(one, name) => getComputedStyle(one)[name]"
    chosen = inside.locator("#network [aria-current]")
    assert chosen.evaluate(style, "outlineStyle") == "solid"
    sketch = chosen.locator(".sketch span")
    assert sketch.evaluate(style, "backgroundColor") == chosen.evaluate(style, "color")
    assert inside.locator(".trace .band").evaluate(style, "borderLeftStyle") == "solid"
    inside.emulate_media(forced_colors="none")


@pytest.mark.slow
def test_a_channel_is_switched_off_and_a_sentence_says_what_that_does(inside, url):
    inside.locator(".tile button").first.click()
    dialog = inside.get_by_role("dialog")
    channel = int(re.search(r"\d+", dialog.locator("h2").inner_text())[0])
    before, after = effect(url, [channel])
    verb = "falls" if after < before else "rises"
    sentence = f"Without channel {channel} of {LAYER}, tiger cat {verb} from {before:.1%} to {after:.1%}."
    expect(dialog.get_by_role("status")).to_contain_text(sentence)
    expect(dialog.get_by_role("status")).to_contain_text(re.compile(r"\. The logit (falls|rises) by \d+\.\d\d\.$"))
    wide = inside.viewport_size
    inside.set_viewport_size({"width": 320, "height": 500})
    overlaps = "parts => parts.filter((part) => part.scrollHeight > part.clientHeight).map((part) => part.outerHTML)"
    assert dialog.locator(".channel > :is(p, ol)").evaluate_all(overlaps) == []
    inside.set_viewport_size(wide)
    dialog.get_by_role("button", name="Switch off").click()
    expect(dialog.get_by_role("button", name="Switched off")).to_have_attribute("aria-pressed", "true")
    inside.keyboard.press("Escape")
    expect(inside.locator(f".tile input[value='{channel}']")).not_to_be_checked()
    expect(inside.locator("#effect-summary")).to_contain_text(sentence)
    assert inside.url.endswith(f"off={channel}")


@pytest.mark.slow
def test_of_a_contrast_what_is_estimated_is_said_and_both_classes_are_told(tab, url):
    tab.goto(f"{url}/?example=cat&target=tiger+cat&against=tabby&show=inside&inside={LAYER}&off=3")
    expect(tab.locator("#inside-about")).to_have_text("the logit of tiger cat, not to its lead over tabby")
    changes = r"(falls|rises) from [\d.]+% to [\d.]+%"
    summary = re.compile(rf"Without channel 3 of {LAYER}, tiger cat {changes}; tabby {changes}\.")
    expect(tab.locator("#effect-summary")).to_have_text(summary)


@pytest.mark.slow
def test_a_channel_is_sought_in_the_other_pictures(page, url):
    page.goto(f"{url}/?show=inside&inside={LAYER}")
    page.set_input_files("#image", [EXAMPLES / f"{name}.png" for name in ("cat", "coffee", "rocket")])
    expect(page.locator("#thumbnails .grade")).to_have_count(3)
    settled(page)
    page.locator(".tile button").first.click()
    dialog = page.get_by_role("dialog")
    channel = int(re.search(r"\d+", dialog.locator("h2").inner_text())[0])
    dialog.get_by_role("button", name="Find it in 2 other pictures").click()
    rows = dialog.locator(".elsewhere button")
    expect(rows).to_have_count(2)
    said = "Searched 2 of 2 other pictures. The strongest responses come first."
    expect(dialog.get_by_text("Searched")).to_have_text(said)
    peaks = {}
    for name in ("coffee", "rocket"):
        answer = ask(url, "/hooks/capture", EXAMPLES / f"{name}.png", layer=LAYER, format="npz")
        with np.load(io.BytesIO(answer.content)) as arrays:
            peaks[f"{name}.png"] = np.abs(arrays[f"{LAYER}/output/0"][0, channel]).max()
    for row in rows.all():
        expect(row).to_be_in_viewport(ratio=1)
    found = [text.split() for text in rows.all_inner_texts()]
    assert [name for _, name in found] == sorted(peaks, key=peaks.get, reverse=True)
    assert [float(value.strip("−")) for value, _ in found] == pytest.approx(
        sorted(peaks.values(), reverse=True), rel=5e-3
    )
    accessible(page)
    rows.first.click()
    expect(dialog).to_have_count(0)
    expect(page.locator("#thumbnails [aria-selected=true]")).to_have_attribute("title", found[0][1])


@pytest.mark.slow
def test_the_newest_pictures_are_searched_first_and_the_others_on_demand(page, url, tmp_path):
    page.route(
        "**/elsewhere.js",
        lambda route: route.fulfill(response=(got := route.fetch()), body=got.text().replace("MOST = 24", "MOST = 1")),
    )
    page.goto(f"{url}/?show=inside&inside={LAYER}")
    names = ["one/cup.png", "other/cup.png", "cat.png"]
    for name, picture in zip(names, ("coffee", "rocket", "cat"), strict=True):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXAMPLES / f"{picture}.png", tmp_path / "all" / name)
    page.wait_for_selector("body[data-ready]")
    page.set_input_files("#folder", tmp_path / "all")
    expect(page.locator("#thumbnails .grade")).to_have_count(3)
    settled(page)
    page.locator(".tile button").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Find it in the 1 newest of 2 other pictures").click()
    expect(dialog.get_by_text("Searched 1 of 2 other pictures.")).to_be_visible()
    rows = dialog.locator(".elsewhere button")
    expect(rows).to_have_text([re.compile("all/other/cup.png$")])
    dialog.get_by_role("button", name="Search 1 more").click()
    expect(dialog.get_by_text("Searched 2 of 2 other pictures.")).to_be_visible()
    assert sorted(text.split()[1] for text in rows.all_text_contents()) == ["all/one/cup.png", "all/other/cup.png"]
    expect(dialog.get_by_role("button", name="more")).to_be_hidden()


@pytest.mark.slow
def test_a_feature_map_opens_once_the_part_that_the_model_sees_is_known(tab, url):
    held = []
    tab.route("**/explain", lambda route: held.append(route))
    tab.goto(f"{url}/?show=inside&inside={LAYER}")
    tab.wait_for_selector("body[data-ready]")
    tab.set_input_files("#image", EXAMPLES / "cat.png")
    enlarge = tab.locator(".tile button").first
    expect(enlarge).to_be_visible()
    expect(enlarge).to_be_disabled()
    for route in held:
        route.continue_()
    tab.unroute("**/explain")
    enlarge.click()
    expect(tab.get_by_role("dialog")).to_be_visible()


@pytest.mark.slow
def test_the_box_that_switches_a_map_off_covers_nothing_of_it_and_suits_a_finger(inside):
    tile = inside.locator(".tile").first
    picture, box, caption = (tile.locator(name).bounding_box() for name in ("canvas", "input", "label"))
    assert box["y"] >= picture["y"] + picture["height"]
    assert caption["height"] >= 24
    tile.locator("label .effect").click()
    expect(tile).to_have_class("tile off")


@pytest.mark.slow
def test_the_titles_of_the_chart_fit_a_phone(shared, request):
    request.addfinalizer(lambda: shared.set_viewport_size({"width": 1280, "height": 900}))
    shared.set_viewport_size({"width": 390, "height": 844})
    title = shared.locator(".trace figcaption").nth(1)
    former = title.inner_text()
    request.addfinalizer(lambda: title.evaluate("(title, text) => (title.textContent = text)", former))
    title.evaluate("title => title.textContent = `Share of zeros: ${'none in the output of any module '.repeat(3)}`")
    shared.get_by_role("button", name="Enlarge the trace").click()
    box = title.bounding_box()
    assert box["x"] + box["width"] <= 390
    assert box["height"] > 25
    shared.get_by_role("button", name="Reduce the trace").click()


@pytest.mark.slow
def test_arrow_keys_lead_from_channel_to_channel(inside):
    names = inside.locator(".tile button").evaluate_all("all => all.slice(0, 2).map((one) => one.ariaLabel)")
    first, second = (f"Channel {re.search(r'[0-9]+', name)[0]} of {LAYER}" for name in names)
    inside.locator(".tile button").first.press("Enter")
    expect(inside.get_by_role("dialog", name=first)).to_be_visible()
    inside.keyboard.press("ArrowRight")
    expect(inside.get_by_role("dialog", name=second)).to_be_visible()
    expect(inside.get_by_role("status").last).to_contain_text(f"Without {second[0].lower()}{second[1:]}")
    inside.get_by_role("button", name="Previous channel").click()
    expect(inside.get_by_role("dialog", name=first)).to_be_visible()
    inside.get_by_role("button", name="Close").click()
    expect(inside.locator("dialog")).to_have_count(0)


@pytest.fixture(scope="module")
def modules(url):
    """What the trace says of each module: the statistics of its output, and the norm of the gradient."""
    events = ask(url, "/hooks/trace").json()["events"]
    tensors = {kind: {} for kind in ("after_forward", "output_gradient")}
    for event in events:
        if event["kind"] in tensors:
            tensors[event["kind"]][event["path"]] = event["tensors"][0]["statistics"]
    return tensors


def values_of(text):
    return [float(part.replace("−", "-")) for part in re.findall(r"[-−]?\d[\d.]*(?:e[-+]\d+)?", text)]


@pytest.mark.slow
def test_the_trace_is_read_by_the_pointer_and_by_keys(inside, modules):
    paths = list(modules["after_forward"])
    reading = inside.locator("#trace-tools .reading")
    chart = inside.locator(".trace .reader")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    place = paths.index("blocks.3.1.conv_pw")
    inside.mouse.move(box["x"] + (place + 0.5) * box["width"] / len(paths), box["y"] + 20)
    expect(reading).to_contain_text("blocks.3.1.conv_pw Conv2d")
    output = modules["after_forward"]["blocks.3.1.conv_pw"]
    mean, deviation, least, most = values_of(reading.inner_text().partition("output")[2])[:4]
    assert [mean, deviation] == pytest.approx([output["mean"], output["std"]], rel=1e-2)
    assert [least, most] == pytest.approx([output["min"], output["max"]], rel=1e-2)
    norm = values_of(reading.inner_text().partition("gradient norm")[2])[0]
    assert norm == pytest.approx(modules["output_gradient"]["blocks.3.1.conv_pw"]["norm"], rel=1e-2)
    chart.focus()
    inside.keyboard.press("Home")
    expect(reading).to_contain_text(f"{paths[0]} ")
    inside.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(f"^{re.escape(paths[1])} "))
    inside.keyboard.press("End")
    expect(reading).to_contain_text(f"{paths[-1]} ")


@pytest.mark.slow
def test_a_module_of_the_trace_leads_to_the_feature_maps_around_it(inside):
    chart = inside.locator(".trace .reader")
    chart.focus()
    inside.keyboard.press("Home")
    inside.keyboard.press("Enter")
    expect(inside.locator("#maps-count")).to_contain_text("24 of 32 feature maps")
    expect(inside.locator("#network-tree [aria-current]")).to_have_attribute("value", "conv_stem")
    box, label = chart.bounding_box(), inside.locator(".groups span", has_text="blocks.5").bounding_box()
    inside.mouse.click(label["x"] + label["width"] / 2, box["y"] + box["height"] / 2)
    expect(inside.locator("#network-tree [aria-current]")).to_have_attribute("value", re.compile(r"^blocks\.5\."))


@pytest.mark.slow
def test_the_summary_of_the_trace_says_how_many_maps_are_zero(inside, url):
    first, *_ = ask(url, "/hooks/trace").json()["summary"]["dead_maps"]
    said = f"{first['path']} ({len(first['channels'])} of {first['total']})"
    expect(inside.locator("#trace-summary")).to_contain_text(
        f"feature maps that are zero everywhere in this picture: {said}, "
    )


@pytest.mark.slow
def test_the_trace_is_enlarged(inside):
    frame = inside.locator("#trace")
    width = inside.locator(".trace").bounding_box()["width"]
    inside.get_by_role("button", name="Enlarge the trace").click()
    assert inside.locator(".trace").bounding_box()["width"] == pytest.approx(2 * width, abs=2)
    inside.get_by_role("button", name=f"Enlarge {LAYER}").click()
    band, around = inside.locator(".trace .band").bounding_box(), frame.bounding_box()
    assert around["x"] - 1 <= band["x"] <= band["x"] + band["width"] <= around["x"] + around["width"] + 1
    assert band["width"] > around["width"] / 2.1
    accessible(inside)
    inside.locator(".trace .reader").focus()
    for _ in range(4):
        inside.keyboard.press("-")
    expect(inside.get_by_role("button", name="Reduce the trace")).to_be_disabled()
    assert inside.locator(".trace").bounding_box()["width"] == pytest.approx(width, abs=2)


@pytest.mark.slow
def test_on_a_narrow_screen_a_dialog_is_the_tree(tab, url):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{url}/?example=cat&show=inside")
    answered(tab)
    expect(tab.locator("#network")).to_be_hidden()
    expect(tab.locator("#inside-layer-name")).to_have_text("bn2")
    assert tab.locator("#tab-inside").bounding_box()["height"] == tab.locator("#tab-explain").bounding_box()["height"]
    expect(tab.locator("#trace svg")).to_have_count(3)
    names = tab.locator(".groups span:not(.cut)")
    assert "blocks.5" in names.all_inner_texts()
    assert names.evaluate_all("names => names.every((name) => name.scrollWidth <= name.clientWidth)")
    tab.click("#inside-layer")
    tab.get_by_label("Find a layer").fill("blocks.6")
    tab.locator("dialog input[value='blocks.6']").check()
    tab.get_by_role("button", name="Use this layer").click()
    expect(tab.locator("#inside-layer-name")).to_have_text("blocks.6")


@pytest.mark.slow
def test_the_explained_class_is_named_and_listed_even_if_it_is_improbable(tab, url):
    tab.goto(f"{url}/?example=cat&show=inside&inside={LAYER}&target=moped")
    settled(tab)
    about = tab.locator("#panel-inside .maps > .help").first
    expect(about).to_contain_text("an estimate of its contribution to the logit of moped.")
    expect(tab.locator("#effect-list .label")).to_contain_text(["tiger cat", "moped"])
    tab.locator(".tile input").first.uncheck()
    expect(tab.locator("#effect-summary")).to_contain_text("moped")
    expect(tab.locator("#effect-list .label")).to_contain_text(["tiger cat", "moped"])
