import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.perturbation.random_masks import RISE
from tests import nets


def constant(noise: float = 0.0) -> nn.Module:
    """Logits that are always the same, but for the rounding that a mask may cause."""
    logits = torch.tensor([[1.0, 2.0]])
    return nets.Wired(lambda _, images: logits + noise * images.mean(dim=(1, 2, 3))[:, None].sin() * torch.ones(2))


@pytest.mark.parametrize("score", ["probability", "logit"])
def test_the_map_of_a_constant_model_is_zero(score, large_passes):
    for noise in (0.0, 1e-6):
        net, pictures = constant(noise), torch.rand(2, 3, 8, 10)
        maps = RISE(samples=1000, cells=3, score=score, sign="signed").explain(net, pictures).maps
        assert torch.equal(maps, torch.zeros(2, 8, 10))


def test_a_constant_score_blanks_only_its_own_picture(generator):
    pictures = torch.stack([torch.zeros(1, 8, 8), torch.rand(1, 8, 8, generator=generator)])
    result = RISE(samples=40, cells=3, score="logit", sign="signed").explain(nets.Weighted((1.0,), (0.0,)), pictures)
    assert not result.maps[0].any()
    assert result.maps[1].all()


def test_masks_of_one_cell_show_all_or_nothing(images):
    net = nets.seeded(nets.Net)
    targets = [0, 1, 2, 0]
    attribution = RISE(samples=20, cells=1, sign="signed").explain(net, images, torch.tensor(targets))
    generator = torch.Generator().manual_seed(0)
    share = (torch.rand(20, 1, 1, generator=generator) < 0.5).float().mean()
    whole, nothing = (net(batch).softmax(dim=1)[range(4), targets].detach() for batch in (images, 0 * images))
    expected = whole - (share * whole + (1 - share) * nothing)
    torch.testing.assert_close(attribution.maps, expected[:, None, None].expand(4, 64, 64), rtol=1e-4, atol=1e-6)


def test_the_map_is_the_average_of_the_masks_by_the_equation(images):
    net = nets.seeded(nets.Net)
    samples, cells, picture = 12, 4, images[:1, :, :30, :50]
    generator = torch.Generator().manual_seed(5)
    grids = (torch.rand(samples, cells, cells, generator=generator) < 0.6).float()
    tops = torch.randint(8, (samples,), generator=generator)
    lefts = torch.randint(13, (samples,), generator=generator)
    large = functional.interpolate(grids[:, None], size=(5 * 8, 5 * 13), mode="bilinear")[:, 0]
    masks = torch.stack(
        [mask[top : top + 30, left : left + 50] for mask, top, left in zip(large, tops, lefts, strict=True)]
    )
    scores = net(picture * masks[:, None]).double().softmax(dim=1)[:, 2].detach()
    masks = masks.double()
    expected = (scores[:, None, None] * masks).sum(dim=0) / masks.sum(dim=0) - scores.mean()
    options = {"samples": samples, "cells": cells, "probability": 0.6, "seed": 5}
    attribution = RISE(**options, sign="signed").explain(net, picture, torch.tensor([2]))
    assert nets.relative_error(attribution.maps[0].double(), expected) < 1e-3
    assert not RISE(**options).explain(net, picture).signed


def test_masks_that_leave_pixels_unseen_are_refused():
    with pytest.raises(OptionError, match="more samples") as caught:
        RISE(samples=1, probability=0.05).explain(constant(), torch.rand(1, 3, 32, 32))
    assert caught.value.field == "samples"


def test_the_masks_are_centred(large_passes):
    """The grid is cropped at every place, so no pixel is shown more often than another."""
    visibility = torch.zeros(16, 16)

    def see(_: nn.Module, images: Tensor) -> Tensor:
        if len(images) > 1:
            visibility.add_(images[:, 0].sum(dim=0))
        return images.sum(dim=(2, 3))

    for seed in range(3):
        RISE(samples=1000, cells=4, seed=seed).explain(nets.Wired(see), torch.ones(1, 2, 16, 16))
    assert (visibility / 3000 - 0.5).abs().max() < 0.05


def test_different_cells_make_different_maps(images):
    net = nets.seeded(nets.Net)
    maps = [RISE(samples=20, cells=cells).explain(net, images).maps for cells in (3, 7)]
    for first, second in itertools.pairwise(maps):
        assert not torch.allclose(first, second)


def test_more_cells_than_memory_has_room_for_are_refused():
    with pytest.raises(OptionError, match="64 by 64 cells have 81920000 cells; at most 20000000 are allowed") as caught:
        RISE(samples=20_000, cells=64).explain(constant(), torch.rand(1, 3, 8, 8))
    assert caught.value.field == "samples"
