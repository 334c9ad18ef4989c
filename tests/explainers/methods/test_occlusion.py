import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.perturbation.occlusion import Occlusion
from tests import nets


@pytest.fixture
def linear() -> nn.Module:
    return nets.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, 5)))


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(2, 3, 4, 6, generator=generator)


def test_disjoint_patches_of_a_linear_model_hold_their_part_of_the_logit(linear, pictures):
    targets = torch.tensor([4, 1])
    parts = (linear[1].weight.detach()[targets].view(2, 3, 4, 6) * pictures).sum(dim=1)
    expected = parts.unfold(1, 2, 2).unfold(2, 2, 2).sum(dim=(3, 4))
    attribution = Occlusion(patch=2, stride=2).explain(linear, pictures, targets)
    assert nets.relative_error(attribution.maps[:, ::2, ::2], expected) < 1e-5
    assert torch.equal(attribution.maps[:, ::2, ::2], attribution.maps[:, 1::2, 1::2])
    single = Occlusion(patch=1, stride=1).explain(linear, pictures, targets)
    assert nets.relative_error(single.maps, parts) < 1e-5
    assert attribution.signed


def test_a_pixel_has_the_mean_of_the_falls_of_all_positions_that_hide_it():
    net = nets.Weighted((1.0,), (0.0,))
    picture = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    heatmap = Occlusion(patch=3, stride=2).explain(net, picture, torch.tensor([0])).maps[0]
    # Positions 0 and 2 on each axis; that at 2 is cut off after two pixels.
    whole = picture[0, 0]
    falls = [whole[:3, :3].sum(), whole[:3, 2:].sum(), whole[2:, :3].sum(), whole[2:, 2:].sum()]
    torch.testing.assert_close(heatmap[0, 0], falls[0])
    torch.testing.assert_close(heatmap[0, 2], (falls[0] + falls[1]) / 2)
    torch.testing.assert_close(heatmap[2, 2], sum(falls) / 4)
    torch.testing.assert_close(heatmap[3, 3], falls[3])


@pytest.mark.parametrize(("baseline", "level"), [("zero", 0.0), ("mean", 2.0)])
def test_baselines(baseline, level):
    net = nets.Weighted((1.0,), (0.0,))
    picture = torch.tensor([1.0, 2.0, 3.0, 2.0]).repeat(4, 1)[None, None]
    attribution = Occlusion(patch=1, stride=1, baseline=baseline).explain(net, picture, torch.tensor([0]))
    torch.testing.assert_close(attribution.maps, picture[:, 0] - level)


def test_a_blurred_baseline_leaves_a_plain_picture_as_it_is(linear):
    flat = torch.full((1, 3, 4, 6), 1.7)
    attribution = Occlusion(patch=2, stride=2, baseline="blur").explain(linear, flat)
    assert attribution.maps.abs().max() < 1e-5


def test_the_score_may_be_the_probability(linear, pictures):
    attribution = Occlusion(patch=2, stride=2, score="probability").explain(linear, pictures)
    hidden = pictures.clone()
    hidden[:, :, :2, :2] = 0
    before, after = (linear(images).softmax(dim=1)[[0, 1], attribution.targets] for images in (pictures, hidden))
    torch.testing.assert_close(attribution.maps[:, 0, 0], (before - after).detach())


@pytest.mark.parametrize(("options", "field"), [({"patch": 8, "stride": 9}, "stride"), ({"patch": 8}, "stride")])
def test_a_stride_that_leaves_pixels_out_is_refused(options, field):
    with pytest.raises(OptionError, match="at most the patch") as caught:
        get_method("occlusion").build(options)
    assert caught.value.field == field


def test_a_patch_larger_than_the_picture_is_refused(linear, pictures):
    with pytest.raises(OptionError, match="4x6"):
        Occlusion(patch=5, stride=1).explain(linear, pictures)
