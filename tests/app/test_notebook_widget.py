"""The widget of notebooks: its front end in a browser, with a stub of anywidget's model, and its traits in Python."""

import base64
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.results import widget_state
from seewhy.explainers.results.comparison import Comparison
from tests.app.browsing import accessible
from tests.app.conftest import EXAMPLES, is_fault
from tests.explainers.test_explanation import explanation_of

FILES = Path(widget_state.__file__).parent
SIZE = WIDTH, HEIGHT = 600, 400
BOX = (100.0, 20.0, 460.0, 380.0)

STUB = """async ([code, style, traits, buffers]) => {
    const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    for (const [name, text] of Object.entries(buffers)) {
        const bytes = new Uint8Array([0, ...decode(text)]); // as a part of a message, which begins where it happens to
        traits[name] = new DataView(bytes.buffer, 1);
    }
    const listeners = {};
    window.saved = [];
    window.model = {
        get: (name) => traits[name],
        set: (name, value) => { traits[name] = value; (listeners[`change:${name}`] ?? []).forEach((call) => call()); },
        save_changes: () => window.saved.push(structuredClone(traits.pixel)),
        on: (event, call) => (listeners[event] ??= []).push(call),
    };
    document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
    const module = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    await module.default.render({ model: window.model, el: document.querySelector("main") });
}"""


def cat_map(values, **changes):
    """An explanation of a map over the cat, of which the model saw a square."""
    with Image.open(EXAMPLES / "cat.png") as file:
        picture = file.convert("RGB").resize(SIZE)
    explanation = explanation_of(values)
    geometry = replace(explanation.geometry, width=WIDTH, height=HEIGHT, box=BOX)
    return replace(explanation, picture=picture, geometry=geometry, **changes)


COARSE = cat_map(np.random.default_rng(0).random((7, 7), np.float32).tolist())
FINE = cat_map(np.random.default_rng(1).normal(size=(900, 900)).tolist(), signed=True, method="saliency")
"""Finer than the picture."""

FURTHER = pytest.param(FINE, id="fine", marks=pytest.mark.slow)


@pytest.fixture
def shown(browser):
    """Return a function that shows maps and returns the tab; nothing may be loaded there, and nothing may fail."""
    tab, problems = browser.new_page(), []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text) if is_fault(message) else None)
    tab.on("request", lambda request: problems.append(request.url) if not request.url.startswith("blob:") else None)

    def show(*maps, **traits):
        state = widget_state.state_of(maps)
        state["_palettes"] = widget_state.palettes([shown.signed for shown in maps], None)
        buffers = {name: base64.b64encode(state.pop(name)).decode() for name in ("_picture", "_values", "_palettes")}
        state = json.loads(json.dumps(state))  # tuples become lists, as on their way to a browser
        traits = {"alpha": 0.5, "view": "overlay", "strongest": 25, "pixel": None, **state, **traits}
        tab.set_content("<!doctype html><html lang=en><title>A notebook</title><main></main>")
        files = [(FILES / name).read_text(encoding="utf-8") for name in ("widget.js", "widget.css")]
        tab.evaluate(STUB, [*files, traits, buffers])
        return tab

    yield show
    tab.close()
    assert problems == []


def drawn(tab):
    url = tab.evaluate("document.querySelector('canvas').toDataURL()")
    with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def set_trait(tab, name, value):
    tab.evaluate("([name, value]) => window.model.set(name, value)", [name, value])


def point_at(tab, x, y, which=0):
    box = tab.locator(".reader").nth(which).bounding_box()
    tab.mouse.move(box["x"] + (x + 0.5) / WIDTH * box["width"], box["y"] + (y + 0.5) / HEIGHT * box["height"])
    return tab.evaluate("window.model.get('pixel')")


@pytest.mark.parametrize("explanation", [pytest.param(COARSE, id="coarse"), FURTHER])
def test_the_browser_draws_what_python_draws(shown, explanation):
    tab = shown(explanation)
    for alpha in (0.5, 1.0, 0.0):
        set_trait(tab, "alpha", alpha)
        assert np.abs(drawn(tab) - np.asarray(explanation.overlay(alpha=alpha)).astype(int)).max() <= 3


@pytest.mark.parametrize("explanation", [pytest.param(COARSE, id="coarse"), FURTHER])
def test_the_pointer_reads_the_value_of_the_raw_heatmap(shown, explanation):
    tab = shown(explanation)
    low, high = render.value_range(explanation.raw_heatmap, explanation.signed)
    for x, y in ((100, 20), (459, 379), (250, 200), (333, 77), (50, 50)):
        pixel = point_at(tab, x, y)
        value = explanation.raw_heatmap[y, x]
        assert pixel == {"x": x, "y": y, "map": 0, "value": pytest.approx(value, abs=1e-5 * high)}
        assert tab.evaluate("window.saved.at(-1)") == pixel
        level = tab.evaluate("parseFloat(document.querySelector('.level').style.left)")
        assert level == pytest.approx(100 * (value - low) / (high - low), abs=0.01)
    assert tab.locator(".ends").inner_text().split("\n")[1] == "x 50, y 50: 0"
    tab.mouse.move(0, 0)
    assert tab.evaluate("window.model.get('pixel')") is None


def test_mask_and_contour_show_the_strongest_part(shown):
    tab = shown(COARSE, view="mask", strongest=10)
    left, top, right, bottom = map(int, BOX)
    inside = np.s_[top:bottom, left:right]
    values, picture = COARSE.raw_heatmap[inside], np.asarray(COARSE.picture).astype(int)[inside]
    strongest = values >= np.quantile(values, 0.9)
    bare = np.abs(drawn(tab)[inside] - picture).max(-1) <= 2
    assert bare[strongest].mean() > 0.999
    assert drawn(tab)[inside][~strongest].max() <= 55  # a fifth of the light
    set_trait(tab, "view", "contour")
    lines = np.abs(drawn(tab)[inside] - picture).max(-1) > 3
    edges = strongest[:, 1:] != strongest[:, :-1]
    assert lines[:, 1:][edges].mean() > 0.95
    assert lines.mean() < 0.15


def test_low_values_of_the_clear_view_leave_the_picture_as_it_is(shown):
    tab = shown(COARSE, view="clear")
    left, top, right, bottom = map(int, BOX)
    inside = np.s_[top:bottom, left:right]
    values, picture = COARSE.heatmap[inside], np.asarray(COARSE.picture).astype(int)[inside]
    colours = np.asarray(render.colour(values, False)).astype(int)
    opacity = values[..., None] ** 1.5
    assert np.abs(drawn(tab)[inside] - (picture + (colours - picture) * opacity)).max() <= 4


def test_a_map_of_less_than_a_pixel_is_drawn_as_one(shown):
    picture = COARSE.picture.resize((2400, 1600))  # of which the browser gets a third
    geometry = replace(COARSE.geometry, width=2400, height=1600, box=(101.0, 0.0, 102.0, 1600.0))
    explanation = replace(COARSE, picture=picture, geometry=geometry)
    line = drawn(shown(explanation, alpha=1.0))[:, 34]
    values = explanation.heatmap[1::3, 101]
    colours = np.asarray(render.colour(values[:, None], False)).astype(int)[:, 0]
    assert np.abs(line - colours).max() <= 8  # a third of 1,600 pixels is no whole number


def test_several_maps_share_the_pointer_and_the_controls(shown):
    tab = shown(COARSE, FINE)
    assert point_at(tab, 300, 100, which=1) == {
        "x": 300, "y": 100, "map": 1, "value": pytest.approx(FINE.raw_heatmap[100, 300], abs=1e-4)
    }  # fmt: skip
    readings = [line.split("\n")[1] for line in tab.locator(".ends").all_inner_texts()]
    assert readings == [
        f"x 300, y 100: {float(f'{explanation.raw_heatmap[100, 300]:.3g}'):g}" for explanation in (COARSE, FINE)
    ]
    tab.get_by_role("combobox", name="View").select_option("mask")
    assert tab.evaluate("window.model.get('view')") == "mask"
    tab.get_by_label("Strongest").fill("40")
    assert tab.evaluate("window.model.get('strongest')") == 40
    assert tab.locator("output").inner_text() == "40%"


def test_keys_move_the_pixel_and_a_screen_reader_says_its_value(shown):
    tab = shown(COARSE)
    tab.keyboard.press("Tab")
    reader = tab.get_by_role("slider", name="label 0 60.0% by gradcam: value at a pixel; arrow keys move it")
    assert tab.evaluate("window.model.get('pixel').x") == 300
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Shift+ArrowUp")
    pixel = tab.evaluate("window.model.get('pixel')")
    assert (pixel["x"], pixel["y"]) == (315, 199)
    assert reader.get_attribute("aria-valuetext").startswith("x 315, y 199: 0.")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.ariaLabel") == "View"
    assert tab.evaluate("window.model.get('pixel')") is None


def test_it_is_accessible_in_light_and_in_dark_notebooks(shown):
    tab = shown(COARSE, FINE)
    for theme in ("color: #222; background: #fff", "color: #ddd; background: #111; color-scheme: dark"):
        tab.evaluate("theme => document.body.setAttribute('style', theme)", theme)
        accessible(tab)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "seewhy.explainers.results.widget", raising=False)
    with pytest.raises(ImportError) as caught:
        COARSE.widget()
    assert str(caught.value) == 'widget needs the package anywidget: pip install "seewhy[notebook]"'


@pytest.fixture(scope="module")
def widgets():
    """The package, where it is installed."""
    return pytest.importorskip("anywidget")


def test_traits_are_checked_when_they_are_given_and_when_they_are_set(widgets):
    widget = COARSE.widget(view="mask", strongest=10, alpha=0.3, colormap="viridis")
    assert (widget.view, widget.strongest, widget.alpha, widget.pixel) == ("mask", 10, 0.3, None)
    wrong = {
        "view": ("heat", "There is no view 'heat'; choose from overlay, clear, contour, mask."),
        "alpha": (2.0, "alpha is 2.0; it must lie between 0 and 1."),
        "strongest": (0, "strongest is 0; it must lie between 1 and 99 (percent)."),
        "colormap": ("infern", "There is no colormap 'infern'. Near matches: inferno."),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(OptionError) as caught:
            COARSE.widget(**{name: value})
        assert str(caught.value) == message
        with pytest.raises(OptionError) as caught:
            setattr(widget, name, value)
        assert str(caught.value) == message
    assert (widget.view, widget.strongest, widget.alpha, widget.colormap) == ("mask", 10, 0.3, "viridis")


def test_wrong_types_and_misspelt_traits_are_refused_with_what_is_possible(widgets):
    wrong = {
        "alpha": ("x", "alpha is 'x'; it must be a float."),
        "view": (None, "view is None; it must be a string."),
        "strongest": (None, "strongest is None; it must be an integer."),
        "colormap": (["vik"], "colormap is ['vik']; it must be a string or None."),
        "alpa": (1, "A widget has no 'alpa'; it has alpha, view, strongest, colormap."),
    }
    for name, (value, message) in wrong.items():
        for shown in (COARSE, Comparison((COARSE, FINE))):
            with pytest.raises(OptionError) as caught:
                shown.widget(**{name: value})
            assert (str(caught.value), caught.value.field) == (message, name)
    assert COARSE.widget(strongest=np.int64(10), alpha=1).strongest == 10


def test_a_widget_says_what_it_shows(widgets):
    widget = Comparison((COARSE, FINE)).widget(alpha=0.3, view="mask")
    assert repr(widget) == f"MapWidget({COARSE.caption}; {FINE.caption}; mask, alpha 0.3)"


def test_each_trait_has_a_type():
    assert set(widget_state.WidgetTraits.__annotations__) == set(widget_state._TYPES)


def test_the_state_is_bytes_that_the_front_end_reads(widgets):
    widget = Comparison((COARSE, FINE)).widget()
    state = widget.get_state()
    assert {name: state[name] for name in ("_picture", "_values", "_maps")} == widget_state.state_of((COARSE, FINE))
    first = np.frombuffer(state["_values"], "<f4")[:49]
    assert np.array_equal(first, COARSE.map.ravel())
    assert state["_palettes"] == render.palette("inferno") + render.palette("icefire")
    widget.colormap = "vik"
    assert widget.get_state()["_palettes"] == 2 * render.palette("vik")
    assert "export default" in state["_esm"]
    assert ".seewhy" in state["_css"]


def test_maps_of_different_pictures_are_refused():
    other = replace(COARSE, picture=Image.new("RGB", SIZE))
    with pytest.raises(OptionError, match="one picture"):
        widget_state.state_of((COARSE, other))
