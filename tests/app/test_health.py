"""Probes answer at once, whatever the models are doing."""

import hashlib
import io
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from seewhy.app.pipeline.jobs import Deadline
from seewhy.models import ModelError
from seewhy.models.zoo import EMBEDDED
from tests import nets
from tests.app.serving import application, declare
from tests.app.test_engine import allocate, give_up, hold, loaded, module, out_of_cuda_memory  # noqa: F401
from tests.waiting import GUARD, until


def loads_by(engine, load):
    engine._options = replace(engine._options, load=load)


@pytest.fixture
def own_app(module):  # noqa: F811
    """An application whose models are slow ones; `app.gate` holds up loading."""
    with application(default_model="resnet18", download=True) as app:
        app.gate = threading.Event()

        def load(name):
            app.gate.wait(GUARD)
            return loaded(module, name)

        loads_by(app.extensions["seewhy"].models.engine, load)
        yield app
        app.gate.set()
        module.gate.set()


def probe(app, path):
    started = time.monotonic()
    status = app.test_client().get(path).status_code
    assert time.monotonic() - started < GUARD / 2  # it does not wait for the model
    return status


def test_probes_do_not_wait_for_a_model_that_loads(own_app):
    assert [probe(own_app, path) for path in ("/healthz", "/readyz", "/readyz", "/metrics")] == [200, 503, 503, 200]
    client = own_app.test_client()
    refused = client.get("/readyz")
    assert (refused.json["type"], refused.headers["Retry-After"]) == ("urn:seewhy:problem:not-ready", "5")
    assert (client.get("/ping").status_code, client.get("/ping").json) == (503, {"status": "Unhealthy"})
    own_app.gate.set()
    until(lambda: probe(own_app, "/readyz") == 200)
    answers = [client.get(path).json["status"] for path in ("/healthz", "/readyz", "/ping")]
    assert answers == ["alive", "ready", "Healthy"]


def test_probes_do_not_wait_for_a_model_at_work(own_app, module):  # noqa: F811
    own_app.gate.set()
    engine = own_app.extensions["seewhy"].models.engine
    until(lambda: probe(own_app, "/readyz") == 200)
    with hold(engine, module):
        threading.Thread(target=lambda: engine.stop()).start()
        assert [probe(own_app, path) for path in ("/healthz", "/metrics")] == [200, 200]


def test_readiness_goes_on_saying_why_while_a_model_is_tried_again(own_app, module, monkeypatch):  # noqa: F811
    attempts = []

    def load(name):
        attempts.append(name)
        if len(attempts) == 1:
            raise ModelError("its weights are damaged")
        own_app.gate.wait(20)
        return loaded(module, name)

    loads_by(own_app.extensions["seewhy"].models.engine, load)
    monkeypatch.setattr("seewhy.app.pipeline.model_store.RETRY_SECONDS", 0.0)
    becomes(own_app, "model-unusable")
    assert len(attempts) == 2
    assert own_app.test_client().get("/readyz").get_json()["detail"] == "its weights are damaged"
    own_app.gate.set()
    becomes(own_app, "ready")


def test_probes_try_again_now_and_then_and_take_no_place(own_app, module, monkeypatch):  # noqa: F811
    attempts = []
    service = own_app.extensions["seewhy"]
    default = service.settings.default_model

    def load(name):
        if name == default:
            attempts.append(name)
            raise ModelError("its weights are damaged")
        return loaded(module, name)

    loads_by(service.models.engine, load)
    becomes(own_app, "model-unusable")
    assert [probe(own_app, "/readyz") for _ in range(20)] == [503] * 20
    assert len(attempts) == 1
    with pytest.raises(ModelError):
        service.models.model(default, Deadline.after(GUARD))
    assert len(attempts) == 2  # who asks for it does not wait
    names = [f"other-{number}" for number in range(service.settings.max_models)]
    for name in names:
        service.models.engine.model(name, Deadline.after(GUARD))
    monkeypatch.setattr("seewhy.app.pipeline.model_store.RETRY_SECONDS", 0.0)
    service._tried = time.monotonic()
    assert [probe(own_app, "/readyz") for _ in range(3)] == [503] * 3
    assert len(attempts) == 2
    assert all(service.models.engine.loaded(name) for name in names)
    # It is tried all the same, and one makes room.
    monkeypatch.setattr("seewhy.app.pipeline.model_store.FULL_RETRY_SECONDS", 0.0)
    probe(own_app, "/readyz")
    becomes(own_app, "model-unusable")
    assert len(attempts) > 2
    assert sum(service.models.engine.loaded(name) is not None for name in names) == len(names) - 1
    service.models.stop()


def fail():
    raise RuntimeError("a model that raises")


class Faulty(nets.Net):
    """A classifier that is told what to do before each pass."""

    def forward(self, images):
        return super().forward(images * self.do())

    do = staticmethod(lambda: 1.0)


@pytest.fixture
def declared(tmp_path):
    """Make services whose default model is one of our own, with weights that are written later."""
    with ExitStack() as stack:

        def make(architecture="tests.nets:Net", digest=None, **settings):
            models = declare(tmp_path, architecture, sha256=digest)
            app = stack.enter_context(application(models=models, default_model="mine", **settings))
            return app, tmp_path / "w.pth"

        yield make


def becomes(app, code):
    """Wait until /readyz says so, and from then on nothing else; /healthz is well all the while."""
    reports = []

    def stays():
        reports.append(app.test_client().get("/readyz").get_json().get("type", "ready").rpartition(":")[2])
        assert probe(app, "/healthz") == 200
        return reports[-3:] == [code] * 3

    until(stays)


@pytest.mark.fault(
    "weights of the default model that are missing, incomplete or those of another model",
    "503 with the reason, also from `/readyz`; once the weights are fixed, the service recovers without a restart",
)
@pytest.mark.parametrize(
    "digest", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["with a digest", "without"]
)
def test_readiness_tells_of_weights_that_cannot_be_used_until_they_can(declared, digest, monkeypatch):
    buffer = io.BytesIO()
    torch.save(nets.seeded(nets.Net).state_dict(), buffer)
    content = buffer.getvalue()
    foreign_weights = io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), foreign_weights)
    monkeypatch.setattr("seewhy.app.pipeline.model_store.RETRY_SECONDS", 0.0)
    app, file = declared(digest=hashlib.sha256(content).hexdigest() if digest else None)
    becomes(app, "weights-unavailable")
    for wrong in (content[: len(content) // 2], foreign_weights.getvalue(), b""):
        file.write_bytes(wrong)
        becomes(app, "model-unusable")
        refused = app.test_client().get("/readyz")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert "mine: The weights" in refused.get_json()["detail"]
    file.write_bytes(content)
    becomes(app, "ready")
    assert probe(app, "/readyz") == 200


@pytest.mark.fault("embedded weights that were modified", "503 with the file and both digests, also from `/readyz`")
def test_readiness_tells_of_embedded_weights_that_were_altered(monkeypatch):
    digest = EMBEDDED["efficientnet_lite0"].sha256[:8] + 56 * "0"
    monkeypatch.setattr("seewhy.models.weights.sha256_of", lambda path: digest)
    with application() as app:
        becomes(app, "model-unusable")
        detail = app.test_client().get("/readyz").get_json()["detail"]
    assert EMBEDDED["efficientnet_lite0"].file_name in detail
    assert f"its SHA-256 is {digest}, not {EMBEDDED['efficientnet_lite0'].sha256}" in detail


@pytest.mark.fault(
    "a model that raises an exception, exits, runs out of memory or returns NaN",
    "500, or 503 for memory; `/readyz` and `/healthz` return 200, and the next request is handled",
)
@pytest.mark.parametrize(
    ("do", "status", "code"),
    [
        (fail, 500, "internal"),
        (Mock(side_effect=SystemExit(3)), 500, "model-failed"),
        (lambda: float("nan"), 500, "model-failed"),
        (allocate, 503, "out-of-memory"),
        pytest.param(give_up, 503, "out-of-memory", marks=pytest.mark.slow),
        pytest.param(out_of_cuda_memory, 503, "out-of-memory", marks=pytest.mark.slow),
    ],
    ids=["raises", "exits", "NaN", "allocates", "MemoryError", "CUDA"],
)
def test_a_model_that_fails_leaves_a_service_that_is_ready(declared, monkeypatch, cat, do, status, code):
    app, file = declared("tests.app.test_health:Faulty")
    torch.save(nets.seeded(Faulty).state_dict(), file)
    becomes(app, "ready")

    def explained():
        return app.test_client().post("/explain?method=saliency", data=cat, content_type="image/png")

    assert explained().status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "do", staticmethod(do))
        failed = explained()
        assert (failed.status_code, failed.get_json()["type"]) == (status, f"urn:seewhy:problem:{code}")
        assert ("Retry-After" in failed.headers) is (status == 503)
        assert [probe(app, path) for path in ("/healthz", "/readyz")] == [200, 200]
    assert explained().status_code == 200
    assert [probe(app, path) for path in ("/healthz", "/readyz")] == [200, 200]


@pytest.mark.slow
@pytest.mark.fault("the default model is unloaded for others", "nothing; `/readyz` returns 200 and loads nothing")
def test_readiness_lasts_while_the_default_model_makes_room(declared, cat):
    app, file = declared(max_models=1)
    torch.save(nets.seeded(nets.Net).state_dict(), file)
    becomes(app, "ready")
    post = partial(app.test_client().post, data=cat, content_type="image/png")
    assert post("/predict?model=efficientnet_lite0").status_code == 200
    assert [probe(app, "/readyz") for _ in range(3)] == [200] * 3
    engine = app.extensions["seewhy"].models.engine
    assert engine.loaded("mine") is None
    assert engine.loaded("efficientnet_lite0") is not None
    file.unlink()
    assert post("/predict").status_code == 503
    becomes(app, "weights-unavailable")
    torch.save(nets.seeded(nets.Net).state_dict(), file)
    becomes(app, "ready")
    assert post("/predict").status_code == 200


@pytest.mark.fault("a fully loaded service", "503 for pictures; `/readyz` and `/healthz` return 200")
def test_a_service_with_no_room_is_ready_all_the_same(declared, cat):
    app, file = declared(max_in_flight=1, deadline=3600.0)
    torch.save(nets.seeded(nets.Net).state_dict(), file)
    becomes(app, "ready")
    stream = app.test_client().post(
        "/explain?method=rise&samples=8000", data=cat, headers={"Accept": "text/event-stream"}, content_type="image/png"
    )
    next(stream.response)
    for refused in (
        app.test_client().post("/predict", data=cat, content_type="image/png"),
        app.test_client().get("/models/resnet18/layers"),
    ):
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert [probe(app, path) for path in ("/healthz", "/readyz", "/ping", "/v2/health/ready")] == [200] * 4
    assert [probe(app, path) for path in ("/metrics", "/openapi.json", "/nowhere")] == [200, 200, 404]
    stream.close()
    assert app.test_client().get("/models/resnet18/layers").status_code == 200
    assert app.test_client().post("/predict", data=cat, content_type="image/png").status_code == 200
