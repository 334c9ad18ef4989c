"""Back and Forward on the page, and the state in its links."""

import pytest
from playwright.sync_api import expect

from tests.app.browsing import answered, explained_anew, later, upload

pytestmark = pytest.mark.slow


@pytest.fixture
def asking(tab, url):
    """A picture about which several questions were asked, after a page of another site."""
    tab.goto("about:blank")
    tab.goto(url)
    upload(tab)
    for act in (
        lambda: tab.click("#predictions .class:has-text('tabby')"),
        lambda: tab.select_option("#method", "saliency"),
        tab.get_by_role("button", name="Contrast with tiger cat").click,
    ):
        later(tab)
        explained_anew(tab, act)
    tab.evaluate("window.same = true")
    return tab


def test_back_leads_to_the_question_before(asking, url):
    page = asking
    assert page.url == f"{url}/?method=saliency&target=281&against=282"
    explained_anew(page, page.go_back)
    assert page.url == f"{url}/?method=saliency&target=281"
    expect(page.locator("#contrast")).to_be_hidden()
    fields = explained_anew(page, page.go_back)
    assert page.url == f"{url}/?target=281"
    assert ("target", "281") in fields
    assert ("method", "votes-detail") in fields  # the recommended one
    expect(page.locator("#method")).to_have_value("votes-detail")
    explained_anew(page, page.go_back)
    expect(page.locator("#answer-label")).to_have_text("tiger cat")
    explained_anew(page, page.go_forward)
    expect(page.locator("#answer-label")).to_have_text("tabby")
    assert page.evaluate("window.same")  # nothing was loaded anew


def test_back_leads_to_the_picture_before(page, url):
    upload(page)
    later(page)
    upload(page, "coffee.png")
    later(page)
    explained_anew(page, lambda: page.select_option("#method", "layercam"))
    explained_anew(page, page.go_back)
    expect(page.locator("#answer-label")).to_have_text("espresso")
    page.go_back()
    expect(page.locator("#answer-label")).to_have_text("tiger cat")
    assert page.locator("#stage .below").evaluate("one => one.decode().then(() => one.naturalWidth)") == 451
    page.go_forward()
    expect(page.locator("#answer-label")).to_have_text("espresso")


def test_back_leads_from_view_to_view_without_asking_anew(page):
    upload(page)
    later(page)
    page.click("#tab-inside")
    expect(page.locator(".tile")).to_have_count(24)
    expect(page.locator("#trace svg")).to_have_count(3)
    expect(page.locator("#effect-list li")).to_have_count(5)
    urls = []
    page.on("request", lambda request: urls.append(request.url))
    page.go_back()
    expect(page.locator("#panel-explain")).to_be_visible()
    page.wait_for_timeout(300)
    assert [url for url in urls if not url.startswith("blob:")] == []


def test_options_and_a_dialog_follow_back(page):
    upload(page)
    page.click("#options > summary")
    later(page)
    explained_anew(page, lambda: page.select_option("#method", "smoothgrad"))
    field = page.locator("#options-list [name=samples]")
    usual = field.input_value()
    later(page)
    explained_anew(page, lambda: page.click("#predictions .class:has-text('tabby')"))
    field.fill("3")
    explained_anew(page, lambda: field.press("Enter"))
    page.click("#model")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(field).to_have_value(usual)
    expect(page.locator("#options-count")).to_have_text("all at their defaults")


def test_quick_changes_and_sliders_are_one_step(page):
    upload(page)
    later(page)
    before = page.evaluate("history.length")
    page.locator("#method").focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        later(page, 400)
    for step in range(10):
        page.locator("#alpha").fill(str(step / 10))
    answered(page)
    assert page.evaluate("history.length") == before + 1


def test_an_unknown_method_of_a_link_is_no_step(tab, url):
    tab.goto(f"{url}/?example=cat&method=gradcm")
    answered(tab)
    before = tab.evaluate("history.length")
    later(tab)
    explained_anew(tab, lambda: tab.click("#predictions .class:has-text('tabby')"))
    explained_anew(tab, tab.go_back)
    expect(tab.locator("#method")).to_have_value("votes-detail")
    assert tab.evaluate("history.length") == before + 1


def test_a_step_of_before_the_page_was_loaded_anew(tab, url):
    tab.goto(f"{url}/?example=cat")
    answered(tab)
    later(tab)
    tab.get_by_role("button", name="A cup of coffee on a table").click()
    expect(tab.locator("#answer-label")).to_have_text("espresso")
    tab.reload()
    answered(tab)
    tab.go_back()
    expect(tab.locator("#answer-label")).to_have_text("tiger cat")


def test_a_copied_link_holds_the_view_that_is_shown(tab, url):
    query = "&compare=gradcam&compare=fem&inside=blocks.5&off=3%2C5"
    tab.goto(f"{url}/?example=cat&target=281{query}")
    answered(tab)
    tab.click("#copy-link")
    assert tab.evaluate("navigator.clipboard.readText()") == f"{url}/?example=cat&model=efficientnet_lite0&target=281"
    expect(tab).to_have_url(f"{url}/?example=cat&inside=blocks.5&target=281&compare=gradcam&compare=fem&off=3%2C5")
