import pytest
import torch

from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.trust.marking import SIGMA, blurred, mirrored, resized, top_share, turned


def test_resizing_interpolates_between_the_centres_of_cells():
    (row,) = resized(torch.tensor([[[0.0, 1.0]]]), (1, 8))
    expected = [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1]
    torch.testing.assert_close(row[0], torch.tensor(expected))


@pytest.mark.parametrize("reach", [(0.0, 0.0, 1.0, 1.0), (0.1, 0.2, 0.7, 0.9)])
def test_a_map_lies_where_the_drawing_shows_it(reach):
    slope = torch.arange(5.0)[:, None] / 4 + torch.arange(4.0) ** 2 / 9
    drawn = Geometry(24, 40, (0.0, 0.0, 24.0, 40.0), reach).lay_back(slope.numpy())
    (placed,) = resized(slope[None], (40, 24), reach)
    tolerance = 1e-5 if reach[0] == 0 else 0.02  # a drawing resamples such maps twice
    torch.testing.assert_close(placed, torch.from_numpy(drawn), atol=tolerance, rtol=0)


def test_exactly_the_share_is_marked_and_of_zeros_the_first():
    maps = torch.tensor([[[0.0] * 3, [0.0] * 3], [[-1.0, -2, -3], [-4, -5, -6]]])
    assert top_share(maps, 0.5).tolist() == [[[True] * 3, [False] * 3]] * 2
    assert top_share(maps, 0.0).sum() == 0
    assert top_share(maps, 1.0).all()


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0), (0.5, 0.5001), (-3e38, 3e38)])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.6])
def test_a_sparse_map_marks_what_is_nearest_to_its_bright_spot(share, low, high):
    spot = torch.full((1, 224, 200), low)
    spot[0, 120, 90] = high
    distances = torch.hypot(torch.arange(224.0)[:, None] - 120, torch.arange(200.0) - 90)
    (marked,) = top_share(spot, share)
    assert marked.sum() == round(share * spot.numel())
    assert distances[marked].max() < 1.3 * distances[~marked].min()
    others = torch.randn(5, 224, 200, generator=torch.Generator().manual_seed(0)).relu()
    batch = top_share(torch.cat([others, spot]), share)
    assert (batch[-1] == marked).all()
    assert batch.flatten(1).sum(1).tolist() == [marked.sum()] * 6


def test_of_a_plateau_above_all_else_the_inside_is_marked():
    maps = torch.zeros(1, 96, 96)
    maps[0, 20:76, 20:76] = 1
    (marked,) = top_share(maps, 0.1)
    assert marked[40:56, 40:56].all()
    assert not marked[:30].any()


def test_equal_values_next_to_large_ones_are_marked_before_those_next_to_small_ones():
    maps = torch.full((1, 64, 64), 0.5)
    maps[0, 30:34, 16:20] = 1
    maps[0, 30:34, 44:48] = 0
    (marked,) = top_share(maps, 0.5)
    assert marked[:, :30].all()
    assert not marked[:, 34:].any()


def test_the_marked_pixels_are_the_largest_ones():
    maps = torch.randn(3, 17, 13, generator=torch.Generator().manual_seed(0))
    marked = top_share(maps, 0.25)
    assert marked.flatten(1).sum(1).tolist() == [round(0.25 * 17 * 13)] * 3
    assert (maps.where(marked, torch.inf).amin((1, 2)) > maps.where(~marked, -torch.inf).amax((1, 2))).all()


def test_the_blur_is_a_gaussian_of_the_shorter_side_and_keeps_a_plain_picture():
    dot = torch.zeros(1, 1, 112, 200)
    dot[..., 56, 100] = 1
    spread = blurred(dot)[0, 0]
    places = torch.arange(200) - 100.0
    variance = (spread.sum(0) * places**2).sum()
    torch.testing.assert_close(variance.sqrt(), torch.tensor(SIGMA * 112), atol=0.01, rtol=0)
    plain = torch.full((1, 3, 20, 30), 0.7, dtype=torch.float16)
    assert blurred(plain).dtype == torch.float16
    torch.testing.assert_close(blurred(plain), plain)


def test_turning_and_mirroring():
    maps = torch.arange(6.0).view(1, 2, 3)
    assert turned(maps).tolist() == [[[5, 4, 3], [2, 1, 0]]]
    assert mirrored(maps).tolist() == [[[2, 1, 0], [5, 4, 3]]]
