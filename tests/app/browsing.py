"""Common actions of tests of the page."""

import base64
import io
import re

import numpy as np
import requests
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect

from tests.app.conftest import EXAMPLES
from tests.waiting import GUARD


def levels(picture):
    """The pixels of an encoded picture, or of a file."""
    with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def ask(url, path="/explain", picture=EXAMPLES / "cat.png", **fields):
    """Ask the service what the page asks it."""
    answer = requests.post(f"{url}{path}", files={"image": picture.read_bytes()}, data=fields, timeout=GUARD)
    assert answer.status_code == 200, answer.text
    return answer


def clipboard(page):
    return page.evaluate("navigator.clipboard.readText()")


def answered(page):
    """Wait until the page shows the answer to all that was asked."""
    expect(page.locator("#figure")).to_have_class(re.compile("answered"))
    expect(page.locator("#figure")).to_have_attribute("aria-busy", "false")
    page.wait_for_function("() => !document.querySelector('#stage .map').hidden")
    return page


def upload(page, name="cat.png"):
    page.wait_for_selector("body[data-ready]")
    former = page.locator("#stage .below").get_attribute("src")
    page.set_input_files("#image", EXAMPLES / name)
    expect(page.locator("#stage .below")).not_to_have_attribute("src", former or "")
    return answered(page)


def later(page, milliseconds=600):
    """Let the page's clock go on by some time, and stand: what comes within 500 ms is one step with the one before."""
    page.evaluate("by => { const now = performance.now() + by; performance.now = () => now; }", milliseconds)


def page_pixels(page):
    """The pixels of picture and heatmap as the page shows them and would save them, at their own size."""
    # Read where the page hands them to the browser: a download takes longer than all else.
    encoded = page.evaluate(
        """() => new Promise((done) => {
            const { createObjectURL } = URL, { click } = HTMLAnchorElement.prototype;
            HTMLAnchorElement.prototype.click = () => {};
            URL.createObjectURL = (blob) => {
                if (blob.type !== "image/png") return createObjectURL(blob); // a thumbnail, made meanwhile
                URL.createObjectURL = createObjectURL;
                const reader = new FileReader();
                reader.onload = () => {
                    HTMLAnchorElement.prototype.click = click;
                    done(reader.result.split(",")[1]);
                };
                reader.readAsDataURL(blob);
                return "#";
            };
            document.getElementById("save-png").click();
        })"""
    )
    return levels(base64.b64decode(encoded))


def overlay_pixels(page):
    """The pixels that the page would save with the view that the service draws."""
    look = "async (look) => (await import('/static/js/state.js')).change({ look })"
    former = page.locator("#look").input_value()
    page.evaluate(look, "overlay")
    pixels = page_pixels(page)
    page.evaluate(look, former)
    return pixels


def explained_anew(page, act):
    """Do something that asks anew, and return the pairs of names and values that were sent."""
    # The body of a form with a file is not told to those who listen to requests.
    page.evaluate(
        """() => {
            window.asked = null;
            window.plainFetch ??= window.fetch;
            window.fetch = (path, given) => {
                if (path === "/explain") {
                    window.asked = [...given.body].filter(([, value]) => typeof value === "string");
                }
                return window.plainFetch(path, given);
            };
        }"""
    )
    act()
    page.wait_for_function("() => window.asked")
    answered(page)
    return [tuple(pair) for pair in page.evaluate("window.asked")]


def accessible(page, *rules):
    """Hold that nothing on the page keeps anybody out, as far as a program can tell; by all rules, or by some."""
    # Of what is right it would list all places.
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    violations = Axe().run(page, options=options).response["violations"]
    names = {rule["id"] for rule in violations if rule["impact"] in ("serious", "critical")}
    names |= {"landmark-unique", *rules}
    grave = [(rule["id"], rule["nodes"]) for rule in violations if rule["id"] in names]
    assert [(name, [node["html"] for node in nodes]) for name, nodes in grave] == []
