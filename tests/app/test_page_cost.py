"""The page before work, and after a cancel or an error: everything that it shows belongs to one question."""

import json
import re

import pytest
import requests
from playwright.sync_api import expect

from seewhy.explainers.core.costs import evaluate
from tests.app.browsing import accessible, answered, explained_anew, upload
from tests.waiting import GUARD

pytestmark = pytest.mark.slow

DEADLINE = 60


@pytest.fixture
def slow(tab, url):
    """The page of a service whose passes take 10 ms, and which has a minute for each request."""
    catalogue = requests.get(f"{url}/methods", timeout=GUARD).json()
    for method in catalogue["methods"]:
        if method["seconds_per_pass"] is not None:
            method |= {"seconds_per_pass": 0.01, "most_passes": 12_000}
    tab.route("**/methods", lambda route: route.fulfill(json={**catalogue, "deadline": DEADLINE}))
    tab.goto(url)
    return upload(tab)


def choose(page, method):
    """Choose a method whose answer never comes."""
    page.route("**/explain", lambda route: None)
    page.select_option("#method", method)
    expect(page.locator("#progress")).to_be_visible()


BEGUN = """() => {
    const { fetch } = window;
    window.fetch = (path, given) => {
        if (path !== "/explain") return fetch(path, given);
        const start = (stream) => stream.enqueue(new TextEncoder().encode('event: progress\\ndata: {"done": 0}\\n\\n'));
        const headers = { "Content-Type": "text/event-stream" };
        return Promise.resolve(new Response(new ReadableStream({ start }), { headers }));
    };
}"""
"""Lets the service take each question, without an answer."""


def state(page):
    """What the page says of its question: the address, the method, the class, and of what the map is."""
    shown = page.inner_text("#answer-label"), page.locator("#stage .below").get_attribute("alt")
    return page.url, page.locator("#method").input_value(), page.inner_text("#model-name"), *shown


@pytest.mark.parametrize("samples", ["-3", "0", "2.5", ""])
def test_passes_of_a_number_that_is_refused_are_not_told(slow, samples):
    choose(slow, "rise")
    expect(slow.locator("#method-cost")).to_have_text("1,001 passes, about 10 s")
    change = "async (samples) => (await import('/static/js/state.js')).change({ options: { samples } })"
    slow.evaluate(change, samples)
    expect(slow.locator("#method-cost")).to_have_text(
        re.compile("^[^-\\d]*1 [+] samples forward passes$|^samples [+] 1")
    )


def test_a_method_says_what_it_costs_before_it_runs(slow):
    for method, words in (
        ("gradcam", "2 passes, less than a second"),
        ("sscam", "12,801 passes, about 2 min: the limit here is 60 s"),
        ("ablationcam", "1,281 short passes, at most 13 s"),
        ("rise", "1,001 passes, about 10 s"),
    ):
        choose(slow, method)
        expect(slow.locator("#method-cost")).to_have_text(words)
    expect(slow.locator("#progress-text")).to_have_text("Sending the picture…")
    slow.keyboard.press("Escape")
    slow.evaluate(BEGUN)
    choose(slow, "rise")
    expect(slow.locator("#progress-text")).to_have_text(words)
    expect(slow.locator("#method option[value=rise]")).to_have_text(f"rise ({words})")
    expect(slow.locator("#method option[value=gradcam]")).to_have_text("gradcam")
    expect(slow.locator("#method option[value=sscam]")).to_have_text("sscam (12,801 passes: too long here)")
    # Other load makes passes slow now, but the service tries it.
    expect(slow.locator("#method option[value=iscam]")).to_have_text("iscam (11,521 passes, about 2 min)")


def test_a_cost_follows_the_time_of_the_first_answer(tab, url):
    catalogue = requests.get(f"{url}/methods", timeout=GUARD).json()
    paces = iter((0.01, 0.02, 0.04))

    def reply(route):
        pace = next(paces)
        methods = [{**method, "seconds_per_pass": pace} for method in catalogue["methods"]]
        route.fulfill(json={**catalogue, "methods": methods})

    tab.route("**/methods", reply)
    tab.goto(url)
    upload(tab)
    expect(tab.locator("#method option[value=rise]")).to_have_text("rise (1,001 passes, about 20 s)")
    explained_anew(tab, lambda: tab.click("#predictions .class:has-text('tabby')"))
    expect(tab.locator("#method option[value=rise]")).to_have_text("rise (1,001 passes, about 20 s)")


def test_what_runs_a_part_of_the_model_says_how_long_it_takes_once_it_has_run(page):
    upload(page)
    page.select_option("#method", "recipro-cam")
    answered(page)
    expect(page.locator("#method-cost")).to_have_text(re.compile("^50 short passes, (less than a|about)"))
    expect(page.locator("#method option[value=recipro-cam]")).to_contain_text("(50 short passes, ")


def test_a_cost_follows_the_options(slow):
    choose(slow, "rise")
    slow.click("#options > summary")
    slow.fill("[name=samples]", "2500")
    slow.press("[name=samples]", "Tab")
    expect(slow.locator("#method-cost")).to_have_text("2,501 passes, about 25 s")
    choose(slow, "sobol")
    slow.fill("[name=cells]", "4")
    slow.press("[name=cells]", "Tab")
    expect(slow.locator("#method-cost")).to_have_text(re.compile("^[0-9,]+ passes, about"))


def test_the_page_evaluates_costs_as_the_service_does(page, url):
    values = {"samples": 3, "cells": 8, "steps": 5, "channels": 40, "positions": 49, "segments": 7, "concepts": 2}
    methods = requests.get(f"{url}/methods", timeout=GUARD).json()["methods"]
    passes = page.evaluate(
        "async (all) => (({ costOf }) => all.map((one) => costOf(one).passes))(await import('/static/js/cost.js'))",
        [{**method, "options": {}, "quantities": values} for method in methods],
    )
    assert passes == [
        sum(evaluate(method["cost"][name], values) for name in ("forwards", "backwards")) for method in methods
    ]


def test_a_cancel_returns_to_the_question_that_is_shown(slow):
    explained_anew(slow, lambda: slow.click("#predictions .class:has-text('tabby')"))
    before = state(slow)
    for cancel in (slow.get_by_role("button", name="Cancel").click, lambda: slow.keyboard.press("Escape")):
        choose(slow, "rise")
        slow.locator("#options").evaluate("options => options.open = true")
        slow.fill("[name=samples]", "2500")
        slow.press("[name=samples]", "Enter")
        assert "samples=2500" in slow.url
        cancel()
        expect(slow.locator("#progress")).to_be_hidden()
        assert state(slow) == before
        expect(slow.locator("#predictions [aria-pressed=true] .label")).to_have_text(["tabby"])
        expect(slow.locator("#options-count")).to_have_text("all at their defaults")
        expect(slow.locator("#method-cost")).to_have_text("2 passes, less than a second")


def test_a_cancel_before_any_answer_can_be_taken_back(page):
    page.route("**/explain", lambda route: None)
    page.get_by_role("button", name="A cup of coffee").click()
    expect(page.locator("#progress")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#problem")).to_contain_text("nothing has been explained yet")
    page.unroute("**/explain")
    page.get_by_role("button", name="Try again").click()
    answered(page)
    expect(page.locator("#problem")).to_be_hidden()


def test_an_error_returns_to_the_question_that_is_shown_and_what_was_typed_stays(page):
    upload(page)
    explained_anew(page, lambda: page.select_option("#method", "smoothgrad"))
    before = state(page)
    page.click("#options > summary")
    page.fill("[name=samples]", "0")
    page.press("[name=samples]", "Enter")
    expect(page.locator("[data-field=samples] .fault")).to_be_visible()
    expect(page.locator("[name=samples]")).to_have_value("0")
    assert state(page) == before
    expect(page.locator("#options-count")).to_have_text("all at their defaults")
    page.fill("#target", "qqqqqqqq")
    page.press("#target", "Enter")
    expect(page.locator("#target-fault")).to_have_text("The model has no class 'qqqqqqqq'.")  # commands are for others
    page.fill("#target", "tabbby")
    page.press("#target", "Enter")
    expect(page.locator("#target-fault")).to_contain_text("tabby")
    expect(page.locator("#target")).to_have_value("tabbby")
    assert state(page) == before
    fields = explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    assert "samples" not in dict(fields)
    expect(page.locator("[name=samples]")).to_have_value("25")


def test_an_error_of_a_model_returns_to_the_model_that_is_shown(page):
    upload(page)
    before = state(page)
    page.click("#model")
    page.locator("dialog input[value=mobilenet_v2]").check()
    page.route("**/explain", lambda route: route.abort())
    page.get_by_role("button", name="Use this model").click()
    expect(page.locator("#problem")).to_contain_text("cannot be reached")
    assert state(page) == before
    page.unroute("**/explain")
    fields = explained_anew(page, page.get_by_role("button", name="Try again").click)
    assert ("model", "mobilenet_v2") in fields


def test_the_list_of_methods_tells_the_costs_of_the_chosen_model(slow, url):
    catalogue = requests.get(f"{url}/methods?model=mobilenet_v2", timeout=GUARD).json()
    methods = [{**method, "quantities": {}, "seconds_per_pass": 0.02} for method in catalogue["methods"]]
    slow.route("**/methods?model=mobilenet_v2", lambda route: route.fulfill(json={**catalogue, "methods": methods}))
    slow.route("**/explain", lambda route: None)
    expect(slow.locator("#method option[value=rise]")).to_have_text("rise (1,001 passes, about 10 s)")
    slow.click("#model")
    slow.locator("dialog input[value=mobilenet_v2]").check()
    slow.get_by_role("button", name="Use this model").click()
    expect(slow.locator("#method option[value=rise]")).to_have_text("rise (1,001 passes, about 20 s)")


def refuse_work(page, detail):
    """Answer each question as a service does that has no time for so many samples."""
    problem = {"type": "urn:seewhy:problem:too-much-work", "title": "x", "status": 422, "detail": detail}
    problem["errors"] = [{"field": "samples", "message": detail}]
    body = json.dumps(problem)
    page.route(
        "**/explain", lambda route: route.fulfill(status=422, content_type="application/problem+json", body=body)
    )


def test_an_option_that_takes_too_long_goes_back(slow):
    explained_anew(slow, lambda: slow.select_option("#method", "smoothgrad"))
    before, samples = state(slow), slow.locator("#options-list [name=samples]")
    refuse_work(slow, "This takes too many passes.")
    slow.click("#options > summary")
    former = samples.input_value()
    samples.fill("9000")
    samples.press("Enter")
    expect(slow.locator("#problem-text")).to_have_text("This takes too many passes.")
    expect(samples).to_have_value(former)
    assert state(slow) == before


def test_what_takes_too_long_is_offered_with_less(slow):
    before = state(slow)
    detail = (
        "This takes 12,801 passes through lite (sscam), at least 121 s here, but a request has 60 s (SEEWHY_DEADLINE)."
    )
    refuse_work(slow, detail)
    slow.select_option("#method", "sscam")
    expect(slow.locator("#problem-text")).to_have_text(detail.replace(" (SEEWHY_DEADLINE)", ""))
    assert state(slow) == before
    accessible(slow)
    slow.route("**/explain", lambda route: None)
    slow.get_by_role("button", name="Run with 3 samples").click()
    expect(slow.locator("#method-cost")).to_have_text("3,841 passes, about 40 s")
    assert slow.url.endswith("?method=sscam&samples=3")


def test_the_dialog_of_models_opens_before_their_list_comes(page, url):
    answer = requests.get(f"{url}/models", timeout=GUARD).json()
    listed = ("resnet18", "efficientnet_lite1", "mobilenet_v2", "efficientnet_lite0")
    models = sorted(
        (model for model in answer["models"] if model["name"] in listed), key=lambda one: listed.index(one["name"])
    )
    for model in models:
        model["loaded"] = model["name"] == "mobilenet_v2"
    models.append({**models[1], "name": "mine", "source": "own"})
    waiting = []
    page.route("**/models", lambda route: waiting.append(route))
    upload(page)
    with page.expect_request("**/models"):
        page.click("#model")
    expect(page.locator("dialog")).to_contain_text("Listing the models…")
    page.wait_for_function("() => document.activeElement.type === 'search'")
    waiting[0].fulfill(json={**answer, "models": models})
    names = page.locator("dialog .choices strong")
    # The current one, one that was added, a loaded one, one that can run, and one without weights.
    expect(names).to_have_text(["efficientnet_lite0", "mine", "mobilenet_v2", "efficientnet_lite1", "resnet18"])
    expect(page.locator("dialog")).to_contain_text("4 of 5 models can run here now.")
    expect(page.locator("dialog .reason")).to_contain_text("the service’s folder of weights")
    assert "SEEWHY" not in page.inner_text("dialog")
