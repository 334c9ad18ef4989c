"""The grid of the page: maps of one picture by models, methods and classes, with one pointer over all of them."""

import io
import re

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from seewhy.explainers.core.percent import percent
from tests.app.browsing import accessible, answered, ask
from tests.app.conftest import EXAMPLES, opened
from tests.waiting import GUARD

pytestmark = pytest.mark.slow

CAT = EXAMPLES / "cat.png"
MODELS = ("efficientnet_lite0", "mobilenet_v2")
METHODS = ("gradcam", "fem")
CLASSES = ("tabby", "lynx")
GRID = "&".join(
    [f"models={name}" for name in MODELS]
    + [f"compare={name}" for name in METHODS]
    + [f"classes={name}" for name in CLASSES]
)
CELLS = [(model, label, method) for model in MODELS for label in CLASSES for method in METHODS]

AT_ONCE = """() => {
    const { fetch } = window;
    let running = 0;
    window.most = 0;
    window.fetch = async (path, given) => {
        const isCell = path === "/explain" && given.body.get("target") !== null;
        if (!isCell) return fetch(path, given);
        running += 1;
        window.most = Math.max(window.most, running);
        try {
            return await fetch(path, given);
        } finally {
            running -= 1;
        }
    };
}"""


def complete(page, count):
    expect(page.locator(".card .grade")).to_have_count(count)
    return page


@pytest.fixture(scope="module")
def grid(browser, url):
    """A grid of eight cells."""
    with opened(browser, url) as tab:
        tab.add_init_script(f"({AT_ONCE})()")
        tab.goto(f"{url}/?example=cat&show=compare&{GRID}")
        yield complete(tab, len(CELLS))


def values(page):
    return [share(text) for text in page.locator(".card .value").all_inner_texts()]


def share(text):
    """The value in “54.3% of maximum”."""
    return float(text.removesuffix("% of maximum").replace("−", "-")) / 100


def test_models_methods_and_classes_make_a_grid(grid, url):
    names = grid.locator(".card h3").all_inner_texts()
    assert names == [f"{method}, {label}, {model}" for model, label, method in CELLS]
    rows = grid.locator(".card").evaluate_all("all => all.map((card) => card.getBoundingClientRect().top)")
    assert [rows.count(top) for top in sorted(set(rows))] == [4, 4]  # a row a model
    for facts, (model, label, _) in zip(grid.locator(".facts").all_inner_texts(), CELLS, strict=True):
        predictions = ask(url, "/predict", CAT, model=model, top=20).json()["predictions"]
        (probability,) = (row["probability"] for row in predictions if row["label"] == label)
        assert facts.startswith(f"{label} {percent(probability)}, ")
    assert grid.evaluate("window.most") == 2
    expect(grid.locator("#compare-note")).to_have_text("8 of at most 24 maps.")
    accessible(grid)


def test_the_pointer_reads_the_same_place_in_all_cells(grid, url):
    box = grid.locator(".card .overlay").nth(5).bounding_box()
    grid.mouse.move(box["x"] + (200.5 / 451) * box["width"], box["y"] + (150.5 / 300) * box["height"])
    expect(grid.locator("#compare-pixel")).to_have_text("x 200, y 150")
    expect(grid.locator(".card .mark:visible")).to_have_count(len(CELLS))
    places = grid.locator(".card").evaluate_all(
        """cards => cards.map((card) => {
            const box = (name) => card.querySelector(name).getBoundingClientRect();
            const [mark, picture] = [box(".mark"), box(".overlay")];
            const [x, y] = [mark.x + mark.width / 2 - picture.x, mark.y + mark.height / 2 - picture.y];
            return [x / picture.width, y / picture.height];
        })"""
    )
    assert places == pytest.approx(np.tile([200.5 / 451, 150.5 / 300], (len(CELLS), 1)), abs=1e-3)
    for cell in (0, 7):
        model, label, method = CELLS[cell]
        answer = ask(url, picture=CAT, model=model, method=method, target=label, format="npz")
        with np.load(io.BytesIO(answer.content)) as arrays:
            assert values(grid)[cell] == pytest.approx(arrays["heatmaps"][0, 150, 200], abs=2e-3)
    grid.mouse.move(5, 5)
    expect(grid.locator(".card .mark:visible")).to_have_count(0)


def test_a_narrow_screen_stays_as_it_is_when_the_pointer_comes(grid):
    size = grid.viewport_size
    grid.set_viewport_size({"width": 390, "height": 844})
    top = "document.querySelector('#agreement').getBoundingClientRect().top + scrollY"
    before = grid.evaluate(top)
    grid.locator(".card .overlay").first.hover()
    expect(grid.locator(".card .value").first).to_have_text(re.compile(r"^−?\d+\.\d% of maximum$"))
    assert grid.evaluate(top) == pytest.approx(before, abs=0.5)
    grid.set_viewport_size(size)
    grid.mouse.move(5, 5)


def test_the_arrow_keys_read_all_cells(grid):
    reader = grid.locator("#compare-pixel")
    reader.focus()
    expect(reader).to_have_text("x 225, y 150")
    grid.keyboard.press("Shift+ArrowRight")
    expect(reader).to_have_text("x 226, y 150")
    told = reader.get_attribute("aria-valuetext")
    assert told.startswith("x 226, y 150: gradcam")
    assert [share(part.split(" ", 3)[3]) for part in told.partition(": ")[2].split("; ")] == values(grid)
    reader.blur()
    expect(grid.locator(".card .mark:visible")).to_have_count(0)


def test_a_cell_that_is_clicked_is_the_question_of_the_page(tab, url):
    tab.goto(f"{url}/?example=cat&show=compare&models=efficientnet_lite0&models=mobilenet_v2&compare=fem&classes=lynx")
    complete(tab, 2).locator(".card .overlay").nth(1).click()
    answered(tab)
    expect(tab.locator("#panel-explain")).to_be_visible()
    expect(tab.locator("#answer-label")).to_have_text("lynx")
    expect(tab.locator("#model-name")).to_have_text("mobilenet_v2")
    expect(tab.locator("#method")).to_have_value("fem")
    tab.click("#tab-compare")
    complete(tab, 2)  # the grid stays as it was
    expect(tab.get_by_role("button", name="Open fem, efficientnet_lite0")).to_be_visible()


def test_controls_are_named_as_controls_and_unseen_places_have_no_value(tab, url):
    tab.goto(f"{url}/?example=cat&show=compare&compare=fem&compare=random")
    complete(tab, 2)
    expect(tab.locator(".card h3")).to_have_text(["fem", "random (control)"])
    expect(tab.locator("#chips-compare label", has=tab.locator(":checked"))).to_have_text(["fem", "random (control)"])
    tab.locator(".card .overlay").first.hover(position={"x": 5, "y": 5})
    expect(tab.locator(".card .value")).to_have_text(["not seen", "not seen"])


def test_the_embedded_models_are_checked_at_first(tab, url):
    models = requests.get(f"{url}/models", timeout=GUARD).json()["models"]
    ready = [model["name"] for model in models if model["source"] == "embedded" and model["weights"]["available"]]
    assert set(MODELS) <= set(ready)
    tab.goto(f"{url}/?example=cat")
    answered(tab)
    tab.route("**/explain", lambda route: route.abort())
    tab.click("#tab-compare")
    expect(tab.locator(".card .fault-box")).to_have_count(len(ready) * min(4, 12 // len(ready)))
    expect(tab.get_by_role("checkbox", name="tabby", exact=True)).to_be_enabled()  # there is room for another class
    chosen = tab.locator("#chips-models :checked")
    assert [box.get_attribute("value") for box in chosen.all()] == ready
    tab.unroute("**/explain")
    tab.click("#tab-explain")
    tab.click("#model")
    expect(tab.get_by_text(f" of {len(models):,} models can run here now.")).to_be_visible()
    tab.locator(f"dialog input[value='{MODELS[1]}']").check()
    tab.get_by_role("button", name="Use this model").click()
    expect(tab.locator("#model-name")).to_have_text(MODELS[1])
    answered(tab)
    tab.route("**/explain", lambda route: route.abort())
    tab.click("#tab-compare")
    assert [box.get_attribute("value") for box in chosen.all()] == ready  # it is one of them


def test_check_boxes_choose_what_is_in_the_grid(tab, url):
    tab.goto(f"{url}/?example=cat&show=compare&compare=gradcam")
    expect(complete(tab, 1).locator("#classes-title + ul :checked")).to_have_count(1)
    tab.get_by_role("checkbox", name="mobilenet_v2", exact=True).click()
    expect(complete(tab, 2).locator("#classes-title + ul :checked")).to_have_count(0)  # each has its own best class
    expect(tab.locator("#compare-note")).to_contain_text("Each model explains its own best class")
    for name, count in (("tabby", 2), ("tabby", 2), ("tiger cat", 2), ("tabby", 4), ("efficientnet_lite0", 2)):
        tab.get_by_role("checkbox", name=name, exact=True).click()
        complete(tab, count)
    expect(tab.locator("#compare-note")).to_have_text("2 of at most 24 maps.")
    tab.select_option("#class-add", "lynx")
    complete(tab, 3)
    expect(tab).to_have_url(
        f"{url}/?show=compare&example=cat&compare=gradcam&models=mobilenet_v2&classes=tiger+cat&classes=tabby&classes=lynx"
    )


def test_a_full_grid_takes_no_more(tab, url):
    tab.route("**/explain", lambda route: route.abort())
    lists = {
        "models": MODELS,
        "compare": ("gradcam", "fem", "layercam"),
        "classes": ("tabby", "lynx", "tiger cat", "cup"),
    }
    tab.goto(f"{url}/?example=cat&show=compare&" + "&".join(f"{key}={name}" for key in lists for name in lists[key]))
    expect(tab.locator(".card .fault-box")).to_have_count(24)
    expect(tab.locator("#compare-note")).to_have_text("24 of at most 24 maps.")
    for name in ("saliency", "efficientnet_lite1"):
        expect(tab.get_by_role("checkbox", name=name, exact=True)).to_be_disabled()
    expect(tab.locator("#compare-add, #model-add")).to_have_count(2)
    expect(tab.locator("#compare-add:enabled, #model-add:enabled")).to_have_count(0)
    tab.get_by_role("checkbox", name="fem", exact=True).click()
    expect(tab.locator(".card")).to_have_count(16)
    expect(tab.get_by_role("checkbox", name="saliency", exact=True)).to_be_enabled()
