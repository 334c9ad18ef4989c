"""ODAM and D-RISE against the equations of their papers, written out."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from seewhy import DRISE, ODAM, HiResCAM, HookSession, compare, explain, wrap_model
from seewhy.explainers.errors import UnsuitableModelError
from tests.explainers.detectors import LABELS, SIDE, detector
from tests.grids import few


@pytest.fixture(scope="module", params=few(["SSD", "RetinaNet", "Faster R-CNN"], ["SSD"]))
def model(request):
    return wrap_model(detector(request.param), LABELS)


@pytest.fixture(scope="module")
def image():
    return torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def overlap(box, others):
    """Return the intersection over union of a box and others, one by one."""
    left, top = torch.maximum(box[0], others[:, 0]), torch.maximum(box[1], others[:, 1])
    right, bottom = torch.minimum(box[2], others[:, 2]), torch.minimum(box[3], others[:, 3])
    common = (right - left).clamp_min(0) * (bottom - top).clamp_min(0)
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    return common / ((box[2] - box[0]) * (box[3] - box[1]) + areas - common)


@pytest.mark.parametrize("sign", ["positive", "signed"])
def test_odam_adds_the_levels_as_they_are(sign, model, image):
    result = explain(model, image, "odam", target="box:1", sign=sign)
    assert result.layers == model.default_layers
    total = 0
    for layer in model.default_layers:
        alone = explain(model, image, "hirescam", target="box:1", layer=layer, sign=sign).map
        level = torch.from_numpy(alone)[None, None]
        total += functional.interpolate(level, size=result.map.shape, mode="bilinear")[0, 0].numpy()
    assert np.allclose(result.map, total, atol=1e-5 * np.abs(total).max())


def test_boxes_that_odam_explains_share_the_forward_pass(model, image):
    passes = []
    with HookSession(model) as hooks:
        hooks.before_forward(lambda _, args: passes.append(len(args[0])), "backbone")
        results = explain(model, image, "odam", target=["box:0", "box:4"])
    assert passes == [1]
    assert not np.array_equal(results[0].map, results[1].map)
    joint = compare(model, image, ["odam", "hirescam", "gradcam"], target="box:4")
    assert np.allclose(joint[0].map, results[1].map, atol=1e-4 * results[1].map.max())


def test_drise_weighs_masks_by_how_like_the_box_is_still_found(model, image):
    explainer = DRISE(samples=40, cells=4, seed=3, sign="signed")
    target = explain(model, image, "drise", target="box:1", samples=40, cells=4, seed=3, sign="signed")
    masks = []

    def note(_, args):
        masks.append(args[0])

    with HookSession(model) as hooks:
        hooks.before_forward(note, "")
        again = explainer.explain(model, image[None], (model.task.target("box:1"),))
    assert np.array_equal(again.maps[0].numpy(), target.map)
    task, scoring = model.task, model.task.detector.scoring
    box = again.targets[0]
    reference = task.detector.layout.unpack(again.outputs)
    scores = reference.scores(scoring)[0, box.number]
    copies = torch.cat([part for part in masks if len(part) > 1 or part is not masks[0]])[-40:]
    shown = (copies.abs().sum(dim=1) / image.abs().sum(dim=0)).double()  # the baseline is black
    weights = []
    for row in range(40):
        with torch.no_grad():
            found = task.detector.layout.unpack(task.outputs(model.module(copies[row : row + 1])))
        likely = found.scores(scoring)[0]
        similar = overlap(torch.tensor(box.box), found.boxes_of(box.label)[0])
        similar = similar * functional.cosine_similarity(likely, scores[None], dim=1)
        if found.objectness is not None:
            similar = similar * found.objectness[0].sigmoid()
        weights.append(similar.nan_to_num(0).max())
    weights = torch.stack(weights).double()
    means = torch.einsum("r,rhw->hw", weights, shown) / shown.sum(dim=0) - weights.mean()
    assert np.allclose(target.map, means.numpy(), atol=1e-4 * means.abs().max().item())


def test_boxes_that_drise_explains_share_their_passes(model, image):
    copies = []
    with HookSession(model) as hooks:
        hooks.before_forward(lambda _, args: copies.append(len(args[0])), "")
        results = explain(model, image, "drise", target=["box:0", "box:4"], samples=24, cells=4)
    assert sum(copies) <= 1 + 1 + 2 + 24  # the memory of a pass is measured once
    alone = explain(model, image, "drise", target="box:4", samples=24, cells=4)
    assert np.allclose(results[1].map, alone.map, atol=1e-4 * np.abs(alone.map).max())


def test_the_error_that_drise_tells_is_that_of_its_seeds():
    model = wrap_model(detector("SSD"), LABELS)
    image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    results = [explain(model, image, "drise", samples=40, cells=4, sign="signed", seed=seed) for seed in range(6)]
    maps = np.stack([result.map for result in results])
    spread = maps.std(axis=0, ddof=1).max() / np.abs(maps.mean(axis=0)).max()
    shares = []
    for result in results:
        (note,) = (note for note in result.diagnostics if note.code == "monte-carlo-error")
        shares.append(int(note.message.split("at most ")[1].split("%")[0]) / 100)
    assert np.mean(shares) == pytest.approx(spread, rel=0.5)


def test_drise_is_for_detectors(lite0):
    with pytest.raises(UnsuitableModelError, match="needs a detector; use rise"):
        DRISE(samples=2).explain(lite0, torch.zeros(1, 3, 224, 224))


def test_odam_of_one_layer_is_hirescam(lite0):
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = HiResCAM().explain(lite0, images).maps
    assert torch.allclose(ODAM().explain(lite0, images).maps, expected, atol=1e-5 * float(expected.max()))
