"""The comparison: long work holds up nothing else and can be cancelled, and models share their classes."""

import re

import pytest
import torch
from playwright.sync_api import expect

from tests import nets
from tests.app.browsing import accessible, answered
from tests.app.conftest import EXAMPLES, opened
from tests.app.serving import application, declaration, live
from tests.waiting import GUARD

UNDERWAY = re.compile(r"^\d+%, .* left$")


def card(page, name):
    return page.locator(".card", has=page.get_by_role("button", name=f"Open {name}", exact=True))


@pytest.fixture
def comparing(tab, url):
    """The comparison of a method that takes long, under way."""
    tab.goto(f"{url}/?example=cat&compare=rise")
    answered(tab)
    tab.click("#tab-compare")
    expect(card(tab, "rise").locator(".facts")).to_have_text(UNDERWAY)
    return tab


def given_up(page):
    return page.expect_event("requestfailed", lambda request: request.url.endswith("/explain"))


@pytest.mark.slow
def test_another_picture_ends_what_is_compared(comparing):
    with given_up(comparing):
        comparing.set_input_files("#image", EXAMPLES / "coffee.png")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "cancel"), [("#tab-explain", "Cancel"), pytest.param("#tab-inside", "Escape", marks=pytest.mark.slow)]
)
def test_who_leaves_waits_for_nothing_and_what_is_cancelled_can_be_run_again(comparing, leave, cancel):
    page, rise = comparing, card(comparing, "rise")
    with given_up(page):
        page.click(leave)
    if leave == "#tab-explain":
        page.click("#predictions .class:has-text('tabby')")
        expect(page.locator("#answer-label")).to_have_text("tabby")
    page.click("#tab-compare")
    expect(rise.locator(".facts")).to_have_text(UNDERWAY)
    button = page.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_be_visible()
    with given_up(page):
        if cancel == "Escape":
            page.keyboard.press("Escape")
        else:
            button.click()
    expect(rise.locator(".facts")).to_have_text("Cancelled.")
    expect(rise.locator("progress")).to_have_count(0)
    expect(rise.locator(".map")).to_be_hidden()
    expect(button).to_be_hidden()
    again = page.get_by_role("button", name="Run rise again")
    if cancel == "Cancel":
        expect(again).to_be_focused()
    page.click("#tab-explain")
    answered(page)
    page.click("#tab-compare")
    expect(again).to_be_visible()  # what was cancelled is not asked by itself
    again.click()
    expect(rise.locator(".facts")).to_have_text(UNDERWAY)
    expect(again).to_be_hidden()
    expect(page.get_by_role("button", name="Open rise")).to_be_focused()


@pytest.mark.slow
def test_a_fill_that_hides_little_leads_to_the_other_one(tab, url):
    def warned(route):
        answer = route.fetch(headers={**route.request.headers, "accept": "application/json"})
        document = answer.json()
        proof = document["explanations"][0]["proof"]
        if proof["faithfulness"]["fill"] == "blur":
            proof.update(grade="not supported", warnings=["fill-hides-little"])
        route.fulfill(json=document)

    tab.route("**/explain", warned)
    tab.goto(f"{url}/?example=coffee")
    answered(tab)
    expect(tab.locator("#diagnostics")).to_contain_text("Hiding changes too little for a test.")
    expect(
        tab.get_by_role("button", name="Compare other methods")
    ).to_be_visible()  # another map may mark a part that matters
    tab.get_by_role("button", name="Hide with the mean colour").click()
    expect(tab.locator("#proof")).to_contain_text("with it painted over, 'espresso' falls")
    expect(tab.locator("#proof")).to_be_focused()
    expect(tab.locator("#diagnostics")).not_to_contain_text("Hiding changes")
    assert "proof_fill=mean" in tab.url
    tab.get_by_role("button", name="Hide by blurring").click()
    expect(tab.locator("#proof")).to_contain_text("with it blurred, 'espresso' falls")
    assert "proof_fill" not in tab.url
    blank = """async () => {
        const { showProof } = await import('/static/js/proof.js');
        const paragraph = document.createElement('p');
        const proof = { grade: 'blank', sentence: 'It is blank.', faithfulness: null, warnings: ['blank-map'] };
        showProof(paragraph, proof, null, { compare() {}, refill() {} });
        return paragraph.querySelectorAll('button').length;
    }"""
    assert tab.evaluate(blank) == 0  # nothing was hidden


@pytest.mark.slow
def test_a_map_that_is_not_borne_out_leads_to_a_comparison_of_methods(tab, url):
    tab.goto(f"{url}/?example=coffee")
    answered(tab)
    others = tab.get_by_role("button", name="Compare other methods")
    expect(tab.locator("#proof .grade")).to_have_attribute("data-grade", "supported")
    expect(others).to_be_hidden()
    fill = tab.get_by_role("button", name="Hide with the mean colour")
    expect(fill).to_be_hidden()
    tab.goto(f"{url}/?example=cat&target=285&method=gradcam")
    answered(tab)
    expect(tab.locator("#proof .grade")).to_have_attribute("data-grade", "not supported")
    expect(fill).to_be_visible()
    tab.goto(f"{url}/?example=cat&target=tabby")
    answered(tab)
    expect(tab.locator("#proof .grade")).to_have_attribute("data-grade", re.compile("^(spread|not supported)$"))
    others.click()
    expect(tab.locator("#panel-compare")).to_be_visible()
    expect(tab.locator(".card .grade")).to_have_count(4)
    expect(tab.locator(".card .facts")).to_have_text([re.compile("^tabby ")] * 4)
    for method in ("votes-detail", "lrp", "gradcam", "attnlrp"):
        expect(card(tab, method)).to_be_visible()
    tab.goto(f"{url}/?example=cat&target=moped")  # has too little to explain
    answered(tab)
    expect(tab.locator("#proof .grade")).to_have_attribute("data-grade", "not supported")
    expect(others).to_be_hidden()


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    """The address of a service with three custom models of three classes, of which two have the same ones."""
    folder = tmp_path_factory.mktemp("custom")
    torch.save(nets.seeded(nets.Net).state_dict(), folder / "w.pth")
    labels = {"lungs": ["well", "ill", "scar"], "lungs_2": ["scar", "well", "ill"], "fruit": ["apple", "pear", "plum"]}
    models = folder / "models.toml"
    models.write_text("".join(declaration(name, labels=classes) for name, classes in labels.items()))
    settings = {"models": models, "default_model": "lungs", "accelerator": "eager", "deadline": GUARD}
    with application(**settings) as app, live(app) as url:
        yield url


@pytest.mark.slow
def test_a_model_without_another_of_as_many_classes_is_told(browser, custom):
    def leave_out(route):
        answer = route.fetch()
        known = answer.json()
        known["models"] = [model for model in known["models"] if model["name"] not in ("fruit", "lungs_2")]
        route.fulfill(response=answer, json=known)

    with opened(browser, custom) as tab:
        tab.route(re.compile("/models$"), leave_out)
        tab.goto(f"{custom}/?example=cat&show=compare&compare=gradcam")
        tab.click("#model-add")
        expect(tab.locator("dialog")).to_contain_text("No other model has as many classes as lungs.")


@pytest.mark.slow
def test_models_are_compared_that_have_the_same_classes(browser, custom):
    with opened(browser, custom) as tab:
        tab.goto(f"{custom}/?example=cat&show=compare&compare=gradcam")
        chips = tab.locator("#chips-models label")
        expect(chips).to_have_text(["lungs", "lungs_2"])
        tab.click("#model-add")
        expect(tab.locator("dialog")).to_contain_text("3 of 3 models with the same number of classes as lungs can run")
        assert tab.locator("dialog [type=radio]").evaluate_all("all => all.map((radio) => radio.value).sort()") == [
            "fruit",
            "lungs",
            "lungs_2",
        ]
        tab.locator("dialog [value=fruit]").check()
        tab.get_by_role("button", name="Use this model").click()
        note = tab.locator("#compare-note")
        expect(note).to_contain_text("fruit has different classes from lungs. 2 of at most 24 maps.")
        accessible(tab)
        tab.get_by_role("checkbox", name="lungs_2").click()
        tab.get_by_role("checkbox", name="fruit").click()
        expect(note).to_have_text("2 of at most 24 maps. Each model explains its own best class, until you check one.")
        tab.click("#tab-explain")
        tab.click("#model")
        tab.locator("dialog [value=mobilenet_v2]").check()
        tab.get_by_role("button", name="Use this model").click()
        expect(tab.locator("#model-name")).to_have_text("mobilenet_v2")
        tab.click("#tab-compare")
        expect(chips.first).to_have_text("mobilenet_v2")
        expect(chips.filter(has_text="lungs")).to_have_count(0)


@pytest.mark.slow
def test_a_class_of_a_link_that_is_unknown_is_told_where_all_classes_are_listed(browser, custom):
    with opened(browser, custom) as tab:
        tab.goto(f"{custom}/?example=cat&target=scra")
        answered(tab)
        expect(tab.locator("#predictions .class")).to_have_count(3)
        message = "The model has no class 'scra'. Near matches: scar. The best class is explained."
        expect(tab.locator("#target-fault")).to_have_text(message)
        expect(tab.locator("#target-fault")).to_be_visible()
