"""The pages where the service wants a key, in a real browser."""

import pytest
from playwright.sync_api import expect

from seewhy.app import create_app
from seewhy.app.http.keys import new_key
from seewhy.app.settings import Settings
from tests.app.browsing import upload
from tests.app.conftest import EXAMPLES
from tests.app.serving import live


@pytest.fixture(scope="module")
def guarded(service, tmp_path_factory):
    """A service that wants a key, and a key."""
    key, line = new_key("alice")
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(line)
    app = create_app(Settings(api_keys=file))
    app.extensions["seewhy"] = service
    with live(app) as url:
        yield url, key


@pytest.fixture
def opened(browser):
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.slow
def test_the_page_asks_for_a_key_and_keeps_it_while_the_tab_is_open(opened, guarded):
    url, key = guarded
    opened.goto(url)
    opened.wait_for_selector("dialog")
    opened.keyboard.press("Escape")
    expect(opened.locator("body")).to_contain_text("Send an API key")
    opened.get_by_role("button", name="Try again").click()
    opened.fill("#key", "wrong")
    opened.get_by_role("button", name="Use this key").click()
    expect(opened.locator("dialog")).to_contain_text("is not valid")
    opened.fill("#key", key)
    opened.press("#key", "Enter")
    expect(opened.locator("dialog")).to_have_count(0)
    opened.wait_for_selector("body[data-ready]")
    upload(opened)
    expect(opened.locator("#answer-label")).to_have_text("tiger cat")
    opened.reload()
    opened.wait_for_selector("body[data-ready]")
    expect(opened.locator("dialog")).to_have_count(0)


@pytest.mark.slow
def test_the_page_of_the_api_tries_a_route_with_the_key_that_it_is_given(opened, guarded):
    url, key = guarded
    opened.goto(f"{url}/docs")
    opened.locator(".auth-wrapper .authorize").first.click()
    opened.locator(".auth-container input").fill(key)
    opened.locator(".auth-btn-wrapper .authorize").click()
    opened.locator(".auth-btn-wrapper .btn-done").click()
    block = opened.locator("#operations-Pictures-predict")
    block.locator(".opblock-summary-control").click()
    block.locator(".try-out__btn").click()
    block.locator("input[type=file]").set_input_files(EXAMPLES / "cat.png")
    with opened.expect_response("**/predict") as answered:
        block.locator(".execute").click()
    assert answered.value.status == 200
