"""Probes answer at once, whatever the models are doing."""

import threading
import time

import pytest

from app import create_app
from app.settings import Settings
from tests.app.test_engine import hold, loaded, module  # noqa: F401


@pytest.fixture
def own_app(module):  # noqa: F811
    """An application whose models are slow ones; `app.gate` holds up loading."""
    made = create_app(Settings(default_model="resnet18", download=True))
    made.gate = threading.Event()

    def load(name):
        made.gate.wait(20)
        return loaded(module, name)

    made.extensions["seewhy"].engine._load = load
    yield made
    made.gate.set()
    module.gate.set()
    made.extensions["seewhy"].engine.stop()


def probe(app, path):
    started = time.monotonic()
    status = app.test_client().get(path).status_code
    assert time.monotonic() - started < 1
    return status


def test_probes_do_not_wait_for_a_model_that_loads(own_app):
    assert [probe(own_app, path) for path in ("/healthz", "/readyz", "/readyz", "/metrics")] == [200, 503, 503, 200]
    own_app.gate.set()
    deadline = time.monotonic() + 10
    while probe(own_app, "/readyz") != 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert probe(own_app, "/readyz") == 200


def test_probes_do_not_wait_for_a_model_at_work(own_app, module):  # noqa: F811
    own_app.gate.set()
    engine = own_app.extensions["seewhy"].engine
    while probe(own_app, "/readyz") != 200:
        time.sleep(0.01)
    occupying = hold(engine, module)
    threading.Thread(target=lambda: engine.stop()).start()
    assert [probe(own_app, path) for path in ("/healthz", "/metrics")] == [200, 200]
    module.gate.set()
    occupying.join()
