"""Sanity of methods, measured while the service is idle."""

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy.app.memory.budget import MemoryBudget
from seewhy.app.pipeline import sanity
from seewhy.app.pipeline.sanity import SanityChecks
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.sanity import networks_of
from tests import nets
from tests.app.conftest import encoded
from tests.app.serving import application, declare
from tests.waiting import until

EIGENCAM = ((METHODS["eigencam"], METHODS["eigencam"].build({})),)

UNSUITABLE = {"rise": {}, "gradcam": {"sign": "absolute"}}
"""Many passes; options that are not the default."""


def net():
    """Random features of three classes, which the models file names."""
    return nets.seeded(nets.Net)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(sanity, "QUIET", 0.01)


@pytest.fixture
def service(tmp_path):
    torch.save(net().state_dict(), tmp_path / "w.pth")
    with application(models=declare(tmp_path, f"{__name__}:net"), default_model="mine") as app:
        yield app


def pictures(count):
    noise = np.random.default_rng(0).integers(0, 256, (count, 24, 24, 3), dtype=np.uint8)
    return [encoded(Image.fromarray(part)) for part in noise]


def prove(client, picture):
    query = "method=eigencam&proof=true&format=json"
    response = client.post(f"/explain?{query}", data=picture, content_type="image/png")
    assert response.status_code == 200, response.get_data(as_text=True)
    return response.get_json()["explanations"][0]["proof"]["sanity"]


@pytest.mark.slow
def test_sanity_comes_after_eight_pictures(service):
    client = service.test_client()
    first, *others = pictures(8)
    assert [prove(client, picture) for picture in (first, first, *others)] == [None] * 9
    measured = until(lambda: prove(client, first))
    assert measured["pictures"] == 8
    assert measured["same_for_an_unlikely_class"] == 1  # principal components know no class
    assert measured["same_with_random_model"] < 0.9
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "sanity"])


class Engine:
    """An engine whose model works all the time."""

    def __init__(self, model):
        self._model = model
        self.jobs = 0

    @property
    def worked(self):
        return time.monotonic()

    def loaded(self, _):
        return self._model

    def submit(self, *_):
        self.jobs += 1


def offer(checks, model, count=8):
    for image in torch.randn(count, *model.spec.image_shape, generator=torch.Generator().manual_seed(0)):
        checks.offer(model, EIGENCAM, image)


@pytest.fixture
def model(service):
    return service.extensions["seewhy"].models.registry.load("mine")


def test_a_busy_service_is_left_alone_and_pictures_are_dropped(model, monkeypatch):
    monkeypatch.setattr(sanity, "PATIENCE", 0.05)
    engine = Engine(model)
    checks = SanityChecks(engine, MemoryBudget(10**9), enabled=True)
    offer(checks, model)
    until(lambda: checks._thread is None)
    assert engine.jobs == 0
    assert not checks._wishes
    assert checks.of(model, EIGENCAM[0][1]) is None


def test_what_is_switched_off_ships_or_is_no_classifier_is_not_measured(model, lite0):
    budget = MemoryBudget(10**9)
    assert SanityChecks(Engine(model), budget, enabled=True).measures(model)
    assert not SanityChecks(Engine(model), budget, enabled=False).measures(model)
    assert not SanityChecks(Engine(lite0), budget, enabled=True).measures(lite0)
    unsuitable = [(METHODS[name], METHODS[name].build(options)) for name, options in UNSUITABLE.items()]
    checks = SanityChecks(Engine(model), budget, enabled=True)
    checks.offer(model, unsuitable, torch.zeros(model.spec.image_shape))
    assert not checks._wishes


def test_random_copies_share_what_is_not_shuffled(model):
    _, head, whole = networks_of(model)
    ours, theirs = dict(model.module.named_parameters()), dict(head.module.named_parameters())
    assert [name for name in ours if ours[name] is not theirs[name]] == ["head.weight", "head.bias"]
    assert not any(ours[name] is value for name, value in whole.module.named_parameters())
    for name, value in whole.module.named_parameters():
        torch.testing.assert_close(value.flatten().sort().values, ours[name].flatten().sort().values)
    assert not torch.equal(ours["conv.weight"], whole.module.conv.weight)


def test_pictures_of_few_models_are_kept(model, monkeypatch):
    monkeypatch.setattr(sanity, "MOST_MODELS", 0)
    checks = SanityChecks(Engine(model), MemoryBudget(10**9), enabled=True)
    offer(checks, model, 1)
    assert not checks._wishes
