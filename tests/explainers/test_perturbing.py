"""Common parts of methods that perturb pictures: superpixels and masks."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.perturbation.base import masked, superpixels

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pictures(generator) -> Tensor:
    """Three wide pictures that are no noise."""
    coarse = torch.randn(3, 3, 4, 6, generator=generator)
    fine = torch.randn(3, 3, 16, 24, generator=generator)
    return nn.functional.interpolate(coarse, size=(16, 24), mode="bilinear") * 2 + fine / 4


@pytest.mark.parametrize("kind", ["slic", "quickshift", "grid"])
def test_superpixels_are_numbered_and_as_large_as_the_picture(kind, lite0):
    with Image.open(EXAMPLES / "cat.png") as picture:
        image = lite0.preprocess(picture.convert("RGB"))[:, :96, :128]
    labels = superpixels(image, kind, 20)
    assert labels.shape == (96, 128)
    assert labels.unique().tolist() == list(range(int(labels.max()) + 1))
    assert 4 <= labels.max() < 60
    assert torch.equal(labels, superpixels(image, kind, 20))
    for odd in (torch.zeros(3, 9, 7), torch.rand(1, 9, 7), torch.rand(3, 2, 3), torch.rand(5, 16, 8).bfloat16()):
        assert superpixels(odd, kind, 20).shape == odd.shape[1:]


def test_slic_follows_edges():
    image = torch.zeros(3, 32, 32)
    image[:, :, 13:] = 1
    labels = superpixels(image, "slic", 4)
    assert not set(labels[:, :13].unique().tolist()) & set(labels[:, 13:].unique().tolist())


def test_a_grid_has_nearly_square_cells():
    labels = superpixels(torch.zeros(3, 10, 40), "grid", 16)
    assert labels.max() == 15
    assert labels[:5, :5].unique().tolist() == [0]
    assert superpixels(torch.zeros(3, 2, 3), "grid", 50).max() == 5


def test_masks_of_ones_and_zeros_give_the_picture_and_the_baseline_to_the_bit(pictures):
    hidden = baseline_of(pictures, "blur")
    assert not torch.equal(hidden, pictures)
    masks = torch.stack([torch.ones(16, 24), torch.zeros(16, 24)])
    foreground, background = masked(pictures[0], hidden[0], masks)
    assert torch.equal(foreground, pictures[0])
    assert torch.equal(background, hidden[0])
