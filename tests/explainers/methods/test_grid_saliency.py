"""Grid saliency on networks for which the context that a region needs is known."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from seewhy import GridSaliency, explain, wrap_model
from seewhy.explainers.errors import UnsuitableModelError
from seewhy.explainers.methods.catalogue import METHODS, passes_of
from seewhy.explainers.tasks.regions import Region
from tests import nets

CELL = (5, 1)
"""Of the grid of eight by eight, the one that decides."""


def far_cell(net, images):
    """The class of every position is told by the mean of one cell of the picture."""
    cells = functional.adaptive_avg_pool2d(images[:, :1], 8)
    cue = (cells[:, :, CELL[0], CELL[1]] * net.need).reshape(-1, 1, 1, 1) + 0 * images[:, :1]
    return {"out": torch.cat([4 * cue - 2, 2 - 4 * cue], dim=1)}


def needing(need):
    module = nets.Wired(far_cell, need=nn.Parameter(torch.tensor(need)))
    return wrap_model(module, ["cued", "other"], input_size=64, mean=(0, 0, 0), std=(1, 1, 1))


@pytest.fixture
def far():
    return needing(1.0)


def region(rows=slice(8, 24), columns=slice(40, 56)):
    mask = np.zeros((64, 64), dtype=bool)
    mask[rows, columns] = True
    return Region(0, mask=mask)


def test_the_cell_that_decides_is_the_context(far):
    images = torch.ones(1, 3, 64, 64)
    (saliency,) = GridSaliency().explain(far, images, (region(),)).maps
    assert saliency.shape == (8, 8)
    assert saliency[CELL] > 0.6
    others = saliency.clone()
    others[CELL] = 0
    near = others[CELL[0] - 1 : CELL[0] + 2, CELL[1] - 1 : CELL[1] + 2]  # which bilinear cells share its pixels with
    assert float(others.sum()) == pytest.approx(float(near.sum()))
    assert near.max() < saliency[CELL]


def test_what_is_visible_in_the_region_is_no_context(far):
    rows, columns = slice(8 * CELL[0] - 8, 8 * CELL[0] + 16), slice(8 * CELL[1] - 8, 8 * CELL[1] + 16)
    (saliency,) = GridSaliency().explain(far, torch.ones(1, 3, 64, 64), (region(rows, columns),)).maps
    assert not saliency.any()


@pytest.mark.slow
def test_without_need_there_is_no_context():
    (saliency,) = GridSaliency().explain(needing(0.0), torch.ones(1, 3, 64, 64), (region(),)).maps
    assert not saliency.any()


def test_a_cell_is_kept_while_it_is_worth_its_weight(far):
    images = torch.ones(1, 3, 64, 64)
    loss = torch.tensor([2.0, -2.0]).softmax(0)[0] - torch.tensor([-2.0, 2.0]).softmax(0)[0]
    for factor, is_kept in ((0.5, True), (2.0, False)):
        explainer = GridSaliency(sparsity=float(factor * loss), steps=30)
        (saliency,) = explainer.explain(far, images, (region(),)).maps
        assert bool(saliency[CELL] > 0.1) is is_kept


def test_steps_are_those_of_torchs_descent():
    """Written out with `torch.optim.SGD` and plain autograd."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.Tanh(), nn.Conv2d(4, 3, 5, padding=2))
    model = wrap_model(net, input_size=(32, 48), head="segmentation")
    images = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(32, 48, dtype=torch.bool)
    mask[10:20, 12:30] = True
    target = Region(1, mask=mask.numpy())
    maps = GridSaliency(steps=5, cells=4, rate=3.0, sparsity=0.002).explain(model, images, (target,)).maps
    cells = torch.full((1, 1, 4, 6), 0.5, requires_grad=True)
    optimiser = torch.optim.SGD([cells], lr=3.0, momentum=0.5)
    before = net(images).softmax(1)[0, 1].detach()
    for _ in range(5):
        large = functional.interpolate(cells, size=(32, 48), mode="bilinear")
        seen = torch.where(mask, 1.0, large)
        now = net(images * seen).softmax(1)[0, 1]
        loss = (before - now).clamp_min(0)[mask].mean() + 0.002 * cells.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        cells.data.clamp_(0, 1)
    assert torch.allclose(maps[0], cells[0, 0], atol=1e-5)
    assert maps.max() - maps.min() > 0.03


def test_pictures_of_a_batch_are_explained_alone(far):
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)) + 0.5
    targets = (region(), region(slice(0, 8)), region(slice(30, 60)))
    explainer = GridSaliency(steps=5)
    together = explainer.explain(far, images, targets).maps
    for row in range(3):
        alone = explainer.explain(far, images[row : row + 1], targets[row : row + 1]).maps
        assert torch.allclose(together[row], alone[0], atol=1e-5)
    assert not torch.equal(together[0], together[2])


def test_a_contrast_counts_the_lead_in_probability(far):
    images = torch.ones(1, 3, 64, 64)
    lead = GridSaliency(steps=1, rate=1e-3).explain(far, images, (region(),), torch.tensor([1])).maps
    alone = GridSaliency(steps=1, rate=1e-3).explain(far, images, (region(),)).maps
    # Of two classes the lead falls twice as fast as the probability.
    falls = [float(maps[0][CELL]) - 0.5 + 1e-3 * 0.05 for maps in (lead, alone)]
    assert falls[0] == pytest.approx(2 * falls[1], rel=1e-2)


def test_only_regions_have_a_context():
    for targets in (None, torch.tensor([1])):
        with pytest.raises(UnsuitableModelError, match="needs a segmenter"):
            GridSaliency().explain(nets.seeded(nets.Net), torch.rand(1, 3, 32, 32), targets)


def test_its_passes_are_counted(far):
    calls = []
    handle = far.module.register_forward_hook(lambda *_: calls.append(1))
    GridSaliency(steps=7).explain(far, torch.ones(1, 3, 64, 64), (region(),))
    handle.remove()
    passes = passes_of(GridSaliency(steps=7), far, (3, 64, 64))
    assert (passes.forwards, passes.backwards) == (8, 7)
    assert METHODS["grid-saliency"].needs == ("gradient", "region")


def test_a_picture_is_explained(far):
    picture = np.full((64, 64, 3), 255, np.uint8)
    result = explain(far, picture, "grid-saliency", target=region().mask)
    assert result.target.label == "cued"
    assert result.map[CELL] == result.map.max() > 0.6
    assert {note.code for note in result.diagnostics} == {"rounding-decides"}
    blank = explain(far, picture, "grid-saliency", target="pixel:50,10")  # all of the picture is the region
    assert "without any context" in blank.diagnostics[0].message
    assert [note.code for note in blank.diagnostics] == ["blank-map", "rounding-decides"]
