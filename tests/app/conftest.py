import io
import json
import os
import re
import resource
import shutil
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from seewhy.app.cli import main
from seewhy.app.pipeline.jobs import Deadline
from seewhy.models import Registry
from tests.app.serving import application, container_variables, free_port, start
from tests.waiting import GUARD

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="session")
def app():
    with application(deadline=GUARD) as app:  # however slow the machine
        yield app


@pytest.fixture(scope="session")
def service(app):
    return app.extensions["seewhy"]


@pytest.fixture(scope="session")
def sharing(service):
    """Return a context in which all services take the default model that the first one has loaded."""
    model, load = service.models.model(None, Deadline.after(GUARD)), Registry.load

    def take(registry, name, *args, **options):
        return model if name == model.name else load(registry, name, *args, **options)

    @contextmanager
    def patched():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Registry, "load", take)
            yield

    return patched


@pytest.fixture
def one_model(sharing):
    """Let services of the test take the model that is loaded already."""
    with sharing():
        yield


@pytest.fixture
def run(one_model):
    """Run the command in this process."""

    def invoke(*arguments, **options):
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)

    return invoke


@pytest.fixture
def app_of(one_model):
    """Make applications with other settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(application(**settings))


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


class Tight:
    """A service that has little of everything, for tests of what it is from outside.

    Four threads, three requests at a time, one proxy that is believed, few files at the start, and none that it may
    write but in one folder; its logs are JSON. A method of one's own is there; who imports OpenTelemetry leaves a mark.
    """

    def __init__(self, folder):
        self.folder, self.port, self.log = folder, free_port(), folder / "log"
        self.url = f"http://127.0.0.1:{self.port}"
        page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
        (folder / "my_methods.py").write_text(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0])
        (folder / "opentelemetry").mkdir()
        (folder / "opentelemetry" / "__init__.py").write_text("open(__file__ + '.imported', 'w')")
        settings = {"THREADS": 4, "MAX_IN_FLIGHT": 3, "TRUSTED_PROXIES": 1, "METHODS": "my_methods"}
        settings |= {"LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
        settings["DEADLINE"] = 3600  # long methods are not refused, however slow the machine
        variables = {f"SEEWHY_{name}": str(value) for name, value in settings.items()} | container_variables(folder)
        variables |= {"HOME": "/proc/home", "TMPDIR": str(folder), "PYTHONPATH": f"{folder}:{ROOT}"}
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            with self.log.open("w") as log:  # nobody can make a file in /proc, root neither
                self.process = start(self.port, "/proc", stderr=log, **variables)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def lines(self):
        """Return what it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().rpartition("\n")[0].splitlines()]


@pytest.fixture(scope="session")
def tight(tmp_path_factory):
    tight_service = Tight(tmp_path_factory.mktemp("tight"))
    yield tight_service
    tight_service.process.terminate()
    assert tight_service.process.wait(GUARD) == 0


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


@pytest.fixture(scope="package")
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
        "--in-process-gpu",
        "--disable-extensions",
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
            reduced_motion="reduce",
        )
        context.set_default_timeout(1000 * GUARD)
        yield context
        context.close()


@contextmanager
def opened(browser, url):
    """A tab for the page, empty as yet; at the end nothing may have gone wrong in it."""
    browser.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    tab, problems = browser.new_page(), []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text) if is_fault(message) else None)
    yield tab
    tab.close()
    assert problems == []


@pytest.fixture
def tab(browser, url):
    with opened(browser, url) as tab:
        yield tab


@pytest.fixture
def page(tab, url):
    """The page, opened."""
    tab.goto(url)
    tab.wait_for_selector("body[data-ready]")
    return tab


@pytest.fixture(scope="package")
def answered_tab(browser, url):
    """The page with the answer to the picture of the cat."""
    from tests.app.browsing import upload  # which takes Chromium's tools and this module

    with opened(browser, url) as tab:
        tab.goto(url)
        yield upload(tab)


@pytest.fixture
def cat_page(answered_tab):
    """The page with the answer to the picture of the cat, for tests that leave its question as it was."""
    yield answered_tab
    answered_tab.select_option("#look", "clear")


def is_fault(message):
    """Whether a message of the console tells of a fault; answers of 4xx are the test's own doing."""
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")
