import io
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy.app import create_app
from seewhy.app.settings import Settings
from tests.app.serving import free_port, start
from tests.waiting import GUARD

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def app():
    made = create_app(Settings(deadline=GUARD))  # however slow the machine
    yield made
    made.extensions["seewhy"].engine.stop()


@pytest.fixture(scope="session")
def service(app):
    return app.extensions["seewhy"]


@pytest.fixture(scope="session")
def port():
    return free_port()


@pytest.fixture(scope="session")
def url(served, port):
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def served(port):
    """The first process of the service at `url`."""
    process = start(port, SEEWHY_DEADLINE="3600")  # long methods are not refused, however slow the machine
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(GUARD) == 0


@pytest.fixture
def client(app):
    return app.test_client()


@pytest.fixture(scope="session")
def cat():
    return (EXAMPLES / "cat.png").read_bytes()


@pytest.fixture(scope="session")
def coffee():
    return (EXAMPLES / "coffee.png").read_bytes()


@pytest.fixture
def post(client):
    """Post a picture as a multipart form; options are keywords, lists are repeated fields."""

    def send(picture, path="/explain", headers=None, **fields):
        data = {**fields, "image": (io.BytesIO(picture), "picture")}
        return client.post(path, data=data, content_type="multipart/form-data", headers=headers)

    return send


@pytest.fixture
def pixels():
    """Decode an answer into an (H, W, 3) array."""

    def decode(response):
        assert response.status_code == 200, response.get_data(as_text=True)
        return np.asarray(Image.open(io.BytesIO(response.data)).convert("RGB")).astype(int)

    return decode


def encoded(picture, form="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = shutil.which("chromium")
    if chromium is None:
        assert "CI" not in os.environ, "chromium is not installed"
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=1000 * GUARD)
    switches = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=chromium,
            args=switches,
            viewport={"width": 1280, "height": 900},
            color_scheme="light",
        )
        context.set_default_timeout(1000 * GUARD)
        yield context
        context.close()


@pytest.fixture
def page(browser, url):
    """The page, opened; at the end nothing may have gone wrong in it."""
    browser.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    opened = browser.new_page()
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if is_fault(said) else None)
    opened.goto(url)
    opened.wait_for_selector("body[data-ready]")
    yield opened
    opened.close()
    assert problems == []


def is_fault(said):
    """Whether a message of the console tells of a fault; answers of 4xx are the test's own doing."""
    return said.type in ("error", "warning") and not said.text.startswith("Failed to load resource")
