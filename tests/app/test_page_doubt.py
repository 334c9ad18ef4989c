"""Modest headlines on the page: of an unsure model, and of a blank heatmap."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browsing import accessible, answered, ask, explained_anew, upload
from tests.app.conftest import EXAMPLES


def size(page):
    """The size of the headline, in pixels."""
    return float(page.locator("#answer-label").evaluate("label => parseFloat(getComputedStyle(label).fontSize)"))


@pytest.mark.slow
def test_an_unsure_answer_has_a_modest_headline(page, url):
    upload(page)
    best = ask(url, "/predict").json()["predictions"][0]
    assert best["probability"] < 0.5
    expect(page.locator("#doubt")).to_have_text(
        f"The model is unsure: it gives its best class, {best['label']}, only {best['probability']:.1%}."
    )
    guess = page.get_by_text("Perhaps", exact=True)
    expect(guess).to_be_visible()
    expect(page.locator("#status")).to_contain_text("The model is unsure")  # of screen readers
    modest = size(page)
    accessible(page)
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    expect(guess).to_be_hidden()  # tabby is asked about, not guessed
    expect(page.locator("#doubt")).to_be_visible()
    upload(page, "coffee.png")
    assert ask(url, "/predict", EXAMPLES / "coffee.png").json()["predictions"][0]["probability"] > 0.5
    expect(guess).to_be_hidden()
    expect(page.locator("#doubt")).to_be_hidden()
    assert size(page) > modest
    best, other, *_ = ask(url, "/predict", EXAMPLES / "coffee.png").json()["predictions"]
    explained_anew(page, lambda: page.click(f"#predictions .class:has-text('{other['label']}')"))
    expect(page.locator("#doubt")).to_have_text(f"The model says {best['label']}: {best['probability']:.1%}.")
    assert size(page) == modest


def test_the_answer_comes_below_the_picture_and_its_tools_on_phones(cat_page):
    wide = cat_page.viewport_size
    figure, title = (cat_page.locator(name).bounding_box() for name in ("#figure", "#classes #answer-title"))
    assert title["x"] > figure["x"] + figure["width"]
    cat_page.set_viewport_size({"width": 390, "height": 844})
    places = ("#stage", "#marking", "#answer-title", "#bar", "#proof")
    tops = [cat_page.locator(name).bounding_box()["y"] for name in places]
    assert tops == sorted(tops)
    assert tops[3] < 844  # in the first view
    cat_page.set_viewport_size(wide)
    expect(cat_page.locator("#classes #answer-title")).to_be_visible()


@pytest.mark.slow
def test_a_control_has_the_grade_and_the_sentence_of_its_proof(tab, url):
    tab.goto(f"{url}/?example=cat&method=random&compare=random")
    answered(tab)
    proof = ask(url, method="random", proof="true", format="json").json()["explanations"][0]["proof"]
    expect(tab.locator("#proof .grade")).to_contain_text(proof["grade"])
    expect(tab.locator("#proof")).to_contain_text(proof["sentence"])
    expect(tab.locator("#meaning")).to_have_text("A control: its colours say nothing about the model.")
    tab.click("#tab-compare")
    expect(tab.locator(".card .grade")).to_contain_text(proof["grade"])
    accessible(tab)


@pytest.mark.slow
def test_a_blank_heatmap_is_called_blank(tab, url):
    tab.goto(f"{url}/?example=cat&method=gradcam&target=giant%20panda")
    answered(tab)
    blank = re.compile("[.] The heatmap is blank[.]")
    expect(tab.locator("#doubt")).to_have_text(blank)
    expect(tab.locator("#diagnostics")).to_contain_text("Try the option sign: signed, another layer, or")
    expect(tab.locator("#meaning")).to_have_text("Blank: the map has the same value everywhere.")
    expect(tab.locator("#status")).to_contain_text(blank)
    accessible(tab)
    explained_anew(tab, lambda: tab.click("#predictions .class:has-text('tiger cat')"))
    expect(tab.locator("#meaning")).to_have_text("Bright: evidence for 'tiger cat'.")
    expect(tab.locator("#doubt")).not_to_have_text(blank)
