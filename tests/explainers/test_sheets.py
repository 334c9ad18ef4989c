"""Contact sheets of pictures of all proportions."""

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy.explainers import Geometry
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import CapturedTensor, FeatureMap, contact_sheet
from tests import nets
from tests.grids import few

SIZES = [(16, 16), (32, 32), (451, 300), (300, 451), (2000, 40), (40, 2000), (1, 1)]

PAGES = [
    *((1, 100), (16, 100)),
    *(pytest.param(*page, marks=pytest.mark.slow) for page in [(1, 16), (16, 300), (100, 2048)]),
]
"""Numbers of maps, and longest sides."""


def sheet(size: tuple[int, int], count: int, by_effect: bool = False, **style: object) -> Image.Image:
    """Draw maps over a blue picture."""
    source = CapturedTensor("features.18.0", "output", 0, "0", torch.ones(1, count, 7, 7))
    maps = [FeatureMap(source, 1000 + index, 1.0, torch.ones(7, 7)) for index in range(count)]
    geometry = Geometry(*size, (0.0, 0.0, float(size[0]), float(size[1])))
    return contact_sheet(maps, Image.new("RGB", size, "blue"), geometry, Style(alpha=0, **style), by_effect)


def blue(image: Image.Image) -> np.ndarray:
    """Return where there are tiles."""
    values = np.asarray(image).astype(int)
    return (values[..., 2] > 200) & (values[..., :2] < 60).all(axis=2)


def widths(image: Image.Image) -> list[int]:
    """Return how wide each column is that has a tile, the last one apart."""
    across = np.flatnonzero(np.diff(blue(image).any(axis=0), prepend=False) == 1)
    return np.diff(across[::2]).tolist()


@pytest.mark.parametrize("view", ["overlay", "side-by-side"])
@pytest.mark.parametrize("size", SIZES, ids=nets.label)
@pytest.mark.parametrize(("count", "limit"), PAGES)
def test_a_sheet_keeps_within_its_longest_side(count, limit, size, view):
    assert max(sheet(size, count, max_side=limit, view=view).size) <= limit


@pytest.mark.parametrize("size", SIZES, ids=nets.label)
@pytest.mark.parametrize("count", few([1, 16, 50], short=[16]))
def test_tiles_and_captions_are_large_enough(count, size):
    image = sheet(size, count, max_side=2048)
    assert image.width >= 144
    assert all(width >= 144 for width in widths(image))
    assert blue(image).sum() / count > (4_000 if max(size) / min(size) > 10 else 30_000)


@pytest.mark.parametrize("size", SIZES, ids=nets.label)
def test_the_columns_follow_the_proportions_of_the_picture(size):
    wide, high = sheet(size, 16).size
    assert 0.4 < wide / high < 2.1


@pytest.mark.parametrize("size", [(16, 16), (451, 300), (2000, 40)], ids=nets.label)
def test_the_title_says_what_is_drawn_and_to_which_scale(size):
    titles = []
    for options in ({}, {"by_effect": True}, {"scale": (0.0, 2.0)}):
        title = sheet(size, 16, **options).crop((0, 0, 400, 40))
        assert not blue(title).any()
        titles.append(title.tobytes())
    assert len(set(titles)) == 3
    heading = np.asarray(sheet(size, 1).convert("L"))[:40]
    assert all(heading[line : line + 20].min() < 100 for line in (0, 20)), "two lines"
    assert heading[:, -3:].min() == 255, "which fit the narrowest sheet"
