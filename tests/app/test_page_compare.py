"""What takes long in the comparison holds up nothing else, and can be cancelled."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browsing import answered
from tests.app.conftest import EXAMPLES
from tests.grids import few


def card(page, name):
    return page.locator(".card", has=page.get_by_role("heading", name=name, exact=True))


@pytest.fixture
def comparing(page, url):
    """The comparison of a method that takes long, under way."""
    page.goto(f"{url}/?example=cat&compare=rise")
    answered(page)
    page.click("#tab-compare")
    expect(card(page, "rise").locator(".facts")).to_have_text(re.compile(r"^\d+%, .* left$"))
    return page


def given_up(page):
    return page.expect_event("requestfailed", lambda request: request.url.endswith("/explain"), timeout=10_000)


@pytest.mark.parametrize("leave", few(["#tab-explain", "#tab-inside"], short=["#tab-inside"]))
def test_who_leaves_the_comparison_waits_for_none_of_it(comparing, leave):
    page = comparing
    with given_up(page):
        page.click(leave)
    if leave == "#tab-explain":
        page.click("#predictions .class:has-text('tabby')")
        expect(page.locator("#answer-label")).to_have_text("tabby", timeout=20_000)
    page.click("#tab-compare")
    expect(card(page, "rise").locator(".facts")).to_have_text(re.compile(r"^\d+%, .* left$"))


@pytest.mark.slow
def test_another_picture_ends_what_is_compared(comparing):
    page = comparing
    with given_up(page):
        page.set_input_files("#image", EXAMPLES / "coffee.png")


@pytest.mark.parametrize("way", few(["Escape", "Cancel"], short=["Cancel"]))
def test_what_is_compared_can_be_cancelled_and_run_again(comparing, way):
    page = comparing
    rise = card(page, "rise")
    button = page.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_be_visible()
    with given_up(page):
        if way == "Escape":
            page.keyboard.press("Escape")
        else:
            button.click()
    expect(rise.locator(".facts")).to_have_text("Cancelled.")
    expect(rise.locator("progress")).to_have_count(0)
    expect(rise.locator(".map")).to_be_hidden()
    expect(button).to_be_hidden()
    again = page.get_by_role("button", name="Run rise again")
    if way == "Cancel":
        expect(again).to_be_focused()
    page.click("#tab-explain")
    answered(page)
    page.click("#tab-compare")
    expect(again).to_be_visible()  # what was cancelled is not asked by itself
    again.click()
    expect(rise.locator(".facts")).to_have_text(re.compile(r"^\d+%, .* left$"))
    expect(again).to_be_hidden()
    expect(page.get_by_role("button", name="Open rise")).to_be_focused()
