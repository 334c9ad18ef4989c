"""The included measurements of embedded networks, and the command that makes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy import explain, wrap_model
from seewhy.explainers.core import faithfulness
from seewhy.explainers.core.calibration import ENOUGH
from seewhy.explainers.core.choices import AREA, FILLS
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.trust.embedded import calibration_of, sanity_of
from seewhy.models import Registry
from seewhy.models.spec import LoadedModel
from seewhy.models.zoo import EMBEDDED
from tests.app.conftest import EXAMPLES
from tests.grids import few
from tests.nets import Net
from tools.trust import calibrate
from tools.trust.photographs import crops


@pytest.mark.parametrize("name", EMBEDDED)
def test_each_embedded_network_has_a_calibration_and_what_is_known_of_methods(name):
    digest, spec = EMBEDDED[name].sha256, Registry(None, None).spec(name)
    size = spec.preprocess.size

    def included(digest=digest, size=size, area=AREA, fill="blur"):
        preprocess = replace(spec.preprocess, size=size)
        model = LoadedModel(replace(spec, preprocess=preprocess), None, None, torch.device("cpu"), None, digest)
        return calibration_of(model, area, fill)

    for fill in FILLS:
        calibration = included(fill=fill)
        assert not calibration.of_contrasts.are_probabilities
        for part in (calibration, calibration.of_contrasts):
            assert part.model == name
            assert len(part.scores) > 2 * ENOUGH
            assert list(part.scores) == sorted(part.scores)
            assert 0.01 <= part.false_alarms_at_95 <= 0.1
    assert not sanity_of(digest, size, "gradcam").is_same_for_every_class
    assert sanity_of(digest, size, "eigencam").is_same_for_every_class
    assert sanity_of(digest, size, "edges").ignores_the_model
    assert included(size=(64, 64)) is included(area=0.5) is included(digest=None) is None


COFFEE = {"gradcam": "partly supported", "votes-detail": "supported"}


@pytest.mark.parametrize("method", few(COFFEE, short=["votes-detail"]))
def test_evidence_for_a_close_up_is_spread_and_for_things_it_is_not(lite0, method):
    expected = {"cat": "spread", "coffee": COFFEE[method], "rocket": "supported", "astronaut": "supported"}
    grades = {name: explain(lite0, EXAMPLES / f"{name}.png", method, proof=True).proof.grade for name in expected}
    assert grades == expected


@pytest.mark.slow
def test_a_method_that_ignores_the_model_is_never_fully_supported(lite0):
    proof = explain(lite0, EXAMPLES / "astronaut.png", "centre", proof=True).proof
    assert {"same-for-every-class", "ignores-the-model"} <= {*proof.warnings}
    assert proof.grade != "supported"


def test_crops_of_one_photograph_are_one_group_and_neighbours_differ(monkeypatch):
    monkeypatch.setattr(faithfulness, "LIKELY", 0.0)
    monkeypatch.setattr(calibrate, "NULL_METHODS", ("gradcam",))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = wrap_model(Net(), input_size=16)
    noise = np.random.default_rng(0).integers(0, 256, (5, 24, 24, 3), dtype=np.uint8)
    pictures = [Image.fromarray(part) for part in noise]
    calibration = calibrate.calibration(model, pictures, "mean")
    assert calibration.pictures == 5
    assert len(calibration.scores) == len(crops(pictures)) * 3
    sizes = [picture.size for picture in crops(pictures)]
    assert sizes[:5] == [(24, 24)] * 5
    assert max(sizes[5:]) < (24, 24)
    assert METHODS.keys() >= {*calibrate.NULL_METHODS}
