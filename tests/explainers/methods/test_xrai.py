import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from seewhy.explainers.methods.gradient import xrai
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.methods.gradient.xrai import XRAI, grown, ranked, regions_at_scales
from tests import nets


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(xrai, "SIDE", 48)


def drawing(height: int, width: int) -> Tensor:
    """A red disk and a blue bar on green, in [0, 1]."""
    picture = Image.new("RGB", (width, height), (30, 160, 60))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((width * 0.1, height * 0.1, width * 0.4, height * 0.6), fill=(220, 30, 30))
    draw.rectangle((width * 0.6, height * 0.2, width * 0.8, height * 0.9), fill=(20, 40, 230))
    return torch.as_tensor(np.array(picture)).permute(2, 0, 1) / 255


def regions(image: Tensor) -> Tensor:
    return torch.cat(list(regions_at_scales(image)))


def test_regions_are_taken_by_the_density_of_what_they_add():
    values = torch.tensor([[4.0, 2.0, 1.0, 1.0], [0.0, 0.0, -1.0, 7.0]], dtype=torch.float64)
    masks = torch.tensor(
        [
            [[1, 1, 1, 0], [0, 0, 0, 0]],  # first: 7 of 3
            [[0, 1, 1, 1], [0, 0, 0, 0]],  # then it adds only one pixel: too few
            [[0, 0, 1, 1], [1, 1, 1, 0]],  # third: adds 1, 0, 0, -1
            [[1, 1, 0, 0], [1, 0, 0, 0]],  # adds only one pixel
        ]
    ).bool()
    third = 7 / 3
    expected = torch.tensor([[third, third, third, 0.0], [0.0, 0.0, 0.0, 7.0]], dtype=torch.float64)
    torch.testing.assert_close(ranked(values, masks, 2), expected)
    nothing = ranked(values, masks[:0], 1)
    torch.testing.assert_close(nothing, torch.full((2, 4), 14 / 8, dtype=torch.float64))
    torch.testing.assert_close(ranked(values, masks, 1).sum(), values.sum())


def test_segments_grow_by_a_disk():
    labels = torch.zeros(20, 30, dtype=torch.int64)
    labels[8, 10] = 1
    down, across = torch.arange(20)[:, None], torch.arange(30)
    disk = (down - 8) ** 2 + (across - 10) ** 2 <= 25
    result = grown(labels)
    assert result.shape == (2, 20, 30)
    assert torch.equal(result[1], disk)
    assert result[0].all()
    labels = torch.zeros(4, 4, dtype=torch.int64)
    labels[0, 0] = 1
    assert int(grown(labels)[1].sum()) == 16  # all within 5 of the corner; none from beyond the border


@pytest.mark.parametrize("size", [(60, 90), (224, 160), (10, 7)])
def test_regions_have_the_size_of_the_picture_and_cover_it(size, monkeypatch):
    monkeypatch.setattr(xrai, "SIDE", 112)
    areas = regions(drawing(*size))
    assert areas.shape[1:] == size
    assert areas.any(dim=0).all()
    if size != (10, 7):  # one of them is the disk, and it grew
        height, width = size
        down, across = (torch.arange(height)[:, None] + 0.5) / height, (torch.arange(width) + 0.5) / width
        disk = ((down - 0.35) / 0.25) ** 2 + ((across - 0.25) / 0.15) ** 2 <= 1
        shared = (areas & disk).sum(dim=(1, 2)) / (areas | disk).sum(dim=(1, 2))
        assert shared.max() > 0.7


def test_a_picture_of_one_colour_is_one_region(small):
    areas = regions(torch.full((3, 40, 40), 0.3))
    assert areas.all()


def test_the_map_is_flat_in_regions_and_sums_to_integrated_gradients(small):
    net = nets.seeded(nets.Stochastic)
    images = torch.stack([drawing(40, 56), drawing(40, 56).flip(2)])
    targets = torch.tensor([2, 0])
    result = XRAI(steps=9).explain(net, images, targets)
    mean = torch.zeros(2, 40, 56)
    for value in (images.amin(dim=(1, 2, 3)), images.amax(dim=(1, 2, 3))):
        for row in range(2):
            line = IntegratedGradients(steps=9, baseline="given", value=(float(value[row]),))
            mean[row] += line.explain(net, images[row : row + 1], targets[row : row + 1]).maps[0] / 2
    torch.testing.assert_close(result.maps.sum(dim=(1, 2)), mean.sum(dim=(1, 2)), rtol=1e-3, atol=1e-4)
    for map_, image, attribution in zip(result.maps, images, mean, strict=True):
        assert 1 < len(map_.unique()) < 60
        expected = ranked(attribution.double(), regions(image), 49).float()
        torch.testing.assert_close(map_, expected, rtol=1e-3, atol=1e-4)


def test_the_strongest_region_is_the_one_that_the_model_sees(small):
    """Logit 0 is the red less the others, which only the disk has."""
    net = nets.Weighted((1.0, -1.0, -1.0), (-1.0, 1.0, 1.0))
    heatmap = XRAI(steps=1).explain(net, drawing(120, 120)[None], torch.tensor([0])).maps[0]
    inside, outside = heatmap[42, 30], torch.stack((heatmap[60, 84], heatmap[110, 110], heatmap[10, 70]))
    assert inside > outside.max() + 0.1
    positive = XRAI(steps=1, sign="positive").explain(net, drawing(120, 120)[None], torch.tensor([0])).maps[0]
    assert torch.equal(positive, heatmap.clamp_min(0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_regions_and_ranks_are_those_of_the_authors_code(generator):
    """Of a picture of 224 by 224, which neither resizes; with one channel, of which there is no largest."""
    peer = pytest.importorskip("saliency.core.xrai")
    image = drawing(224, 224) + torch.randn(3, 224, 224, generator=generator) / 30
    masks = regions(image)
    reference = np.stack(peer._get_segments_felzenszwalb(image.permute(1, 2, 0).double().numpy()))
    assert np.array_equal(masks.numpy(), reference)
    attribution = torch.randn(224, 224, generator=generator).double() + image[0]
    expected, _ = peer.XRAI._xrai(attribution.numpy(), list(masks.numpy()))
    torch.testing.assert_close(ranked(attribution, masks, 50), torch.as_tensor(expected))
