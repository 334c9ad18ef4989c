import pytest
import torch
from torch import nn
from torch.nn import functional

from seewhy.explainers.errors import ModelOutputError, OptionError
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.perturbation.base import masked
from seewhy.explainers.methods.perturbation.extremal import SHARPNESS, ExtremalPerturbation, smooth_maximum
from tests import nets
from tests.grids import few


def test_the_smooth_maximum_by_hand():
    values = torch.zeros(1, 7, 9)
    values[0, 3, 4] = 1
    maximum = smooth_maximum(values, 0.4)  # its Gaussian reaches one cell
    near = torch.exp(torch.tensor(-1 / 0.32))
    share = torch.exp(SHARPNESS * near) / (torch.exp(SHARPNESS * near) + 8)
    torch.testing.assert_close(maximum[0, 3, 4], torch.tensor(1.0), rtol=0, atol=1e-6)
    torch.testing.assert_close(maximum[0, 2, 4], near * share)
    assert maximum[0, 1, 4] == maximum[0, 3, 0] == 0


def test_the_smooth_maximum_of_a_plain_mask_is_plain_inside():
    maximum = smooth_maximum(torch.full((1, 9, 9), 0.7), 1.0)
    assert (maximum[0, 3:6, 3:6] - 0.7).abs().max() < 0.05
    assert maximum.max() <= 0.7


@pytest.mark.parametrize("corner", few([0, 1], short=[1]))
def test_the_mask_covers_what_counts_and_has_its_area(corner):
    picture = torch.full((1, 1, 32, 48), 0.1)
    rows = slice(0, 16) if corner == 0 else slice(16, 32)
    picture[:, :, rows, 30:46] = 1  # a sixth of the picture
    picture[:, :, 8:24, 2:18] = -1
    explainer = ExtremalPerturbation(steps=150, cells=16, width=0.06, area=0.16, baseline="zero")
    attribution = explainer.explain(nets.Weighted((1.0,), (0.0,)), picture, torch.tensor([0]))
    assert attribution.maps.shape == (1, 16, 24)
    assert not attribution.signed
    mask = attribution.maps[0]
    assert abs(mask.mean() - 0.16) < 0.03
    bright = functional.interpolate(picture, size=(16, 24), mode="area")[0, 0] > 0.5
    assert mask[bright].mean() > 0.8
    assert mask[~bright].mean() < 0.06
    assert 0 <= mask.min() < mask.max() <= 1


def test_the_area_may_be_chosen_and_the_score_is_kept(images):
    net, images = nets.seeded(nets.Net), images[:2]
    targets = torch.tensor([0, 1])
    for area in (0.1, 0.4):
        explainer = ExtremalPerturbation(steps=80, cells=12, area=area)
        masks = explainer.explain(net, images, targets).maps
        assert (masks.mean(dim=(1, 2)) - area).abs().max() < 0.07
        hidden = baseline_of(images, "blur")
        large = functional.interpolate(masks[:, None], size=(64, 64), mode="bilinear")[:, 0]
        best, mirror = (
            net(masked(images, hidden, mask))[range(2), targets].detach() for mask in (large, large.flip(1).flip(2))
        )
        assert (best > mirror).all()


def test_a_contrast_chooses_another_part():
    picture = torch.full((1, 2, 16, 16), 0.0)
    picture[:, 0, :, :8] = 1
    picture[:, 1, :, 8:] = 1
    net = nets.Weighted((1.0, 0.9), (1.0, 0.0))
    explainer = ExtremalPerturbation(steps=60, cells=8, area=0.3, baseline="zero")
    plain = explainer.explain(net, picture, torch.tensor([0])).maps[0]
    contrast = explainer.explain(net, picture, torch.tensor([0]), torch.tensor([1])).maps[0]
    assert plain[:, :4].sum() > plain[:, 4:].sum()
    assert contrast[:, 4:].sum() > 5 * contrast[:, :4].sum()


DETACHING = nets.Wired(lambda net, images: net.net(images.detach()), net=nets.seeded(nets.Net))


@pytest.mark.parametrize("net", [DETACHING, nets.Wrapped(nets.seeded(nets.Net), torch.detach)], ids=["in", "out"])
def test_a_model_that_stops_gradients_is_refused(net: nn.Module, images, untouched):
    with pytest.raises(ModelOutputError, match="No gradient flows"):
        ExtremalPerturbation(steps=2).explain(untouched(net), images)


def test_a_gaussian_that_takes_too_much_memory_is_refused(images, untouched):
    with pytest.raises(OptionError, match="64 by 64 cells takes 106172416 values") as caught:
        ExtremalPerturbation(steps=1, cells=64, width=0.5).explain(untouched(nets.seeded(nets.Net)), images)
    assert caught.value.field == "width"
    ExtremalPerturbation(steps=1, cells=64, width=0.1).explain(nets.seeded(nets.Net), images[:1, :, :16, :16])


def test_few_pictures_share_a_pass_where_the_gaussian_is_large(images, monkeypatch):
    reports = []
    # 16 by 16 cells, and 9 by 9 under the Gaussian: room for two pictures of four.
    monkeypatch.setattr("seewhy.explainers.execution.chunks.MEMORY", 2 * 24 * 16 * 16 * 9 * 9)
    explainer = ExtremalPerturbation(steps=1, cells=16, width=0.1)
    progress = Progress(report=lambda *pair: reports.append(pair))
    maps = explainer.explain(nets.seeded(nets.Net), images, progress=progress).maps
    assert reports == [(step, 4) for step in range(5)]
    monkeypatch.undo()
    torch.testing.assert_close(maps, explainer.explain(nets.seeded(nets.Net), images).maps)
