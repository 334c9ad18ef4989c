import numpy as np
import pytest
from PIL import Image

from seewhy.explainers import Geometry
from seewhy.models import Preprocess
from tests.grids import few

SQUARE = Preprocess((224, 224), (256, 256), interpolation="bicubic")
WIDE = Preprocess((128, 256), (140, 280))
PADDED = Preprocess((224, 224), (224, 224), resize="longer")
SQUASHED = Preprocess((224, 224), (224, 224), resize="exact")


def dotted(size: tuple[int, int], centre: tuple[float, float], radius: int) -> Image.Image:
    """A black picture with a white square around `centre`, both (across, down)."""
    width, height = size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    across, down = (int(at * length) for at, length in zip(centre, size, strict=True))
    rows, columns = (slice(max(at - radius, 0), at + radius + 1) for at in (down, across))
    pixels[rows, columns] = 255
    return Image.fromarray(pixels)


def middle(values: np.ndarray) -> tuple[float, float]:
    """Return the centre of mass (across, down), in pixels."""
    down, across = np.indices(values.shape) + 0.5
    return float((across * values).sum() / values.sum()), float((down * values).sum() / values.sum())


@pytest.mark.parametrize("preprocess", [SQUARE, WIDE, PADDED, SQUASHED])
@pytest.mark.parametrize("centre", [(0.5, 0.5), (0.4, 0.55), (0.55, 0.36)])
@pytest.mark.parametrize(
    "size", few([(640, 427), (427, 640), (900, 500), (224, 224), (60, 90)], short=[(427, 640), (60, 90)])
)
def test_a_dot_comes_back_where_it_was(preprocess, centre, size):
    picture = dotted(size, centre, radius=max(2, min(size) // 60))
    image = preprocess(picture).numpy().sum(axis=0)
    image = (image - image.min()) ** 3  # what bicubic undershoots weighs nothing
    if preprocess.resize == "longer":
        image[image < 0.5 * image.max()] = 0  # the padding is grey
    values = preprocess.geometry(*size).lay_back(image)
    expected = middle(np.asarray(picture.convert("L"), dtype=np.float64))
    assert values.shape == (size[1], size[0])
    assert np.allclose(middle(values), expected, atol=max(0.02 * max(size) / 10, 0.6))


@pytest.mark.parametrize("preprocess", [SQUARE, WIDE, PADDED, SQUASHED])
@pytest.mark.parametrize(
    ("size", "centre"),
    [
        ((10, 7), (0.5, 0.5)),
        ((10, 7), (0.65, 0.3)),
        ((1, 2000), (0.5, 0.5)),
        ((2000, 1), (0.5, 0.5)),
        ((1, 1), (0, 0)),
    ],
)
def test_the_dot_of_a_tiny_or_extreme_picture_comes_back(preprocess, size, centre):
    picture = dotted(size, centre, radius=0)
    lit = (preprocess(picture) - preprocess(Image.new("RGB", size))).numpy().sum(axis=0)
    hottest = (lit == lit.max()).astype(np.float32)
    result = middle(preprocess.geometry(*size).lay_back(hottest))
    one_cell = max(size) / 224 + 0.5
    assert np.allclose(result, middle(np.asarray(picture.convert("L"), dtype=np.float64)), atol=one_cell)


def test_a_strip_of_a_million_pixels_is_not_resized_whole():
    strip = Image.new("RGB", (1, 1_000_000), "red")
    tensor = SQUARE(strip)
    assert tensor.shape == (3, 224, 224)
    assert np.allclose(tensor.std(dim=(1, 2)), 0, atol=1e-5)
    assert SQUARE.geometry(1, 1_000_000).lay_back(np.ones((7, 7), np.float32)).sum() >= 1


def test_what_lies_outside_the_crop_is_zero():
    geometry = Geometry(10, 6, (2.0, 0.0, 8.0, 6.0))
    values = geometry.lay_back(np.ones((3, 3), np.float32))
    assert np.all(values[:, 2:8] == 1)
    assert np.all(values[:, :2] == 0)
    assert np.all(values[:, 8:] == 0)
    assert geometry.window == (slice(0, 6), slice(2, 8))


def test_a_map_of_the_pictures_own_grid_comes_back_exactly(generator):
    values = np.random.default_rng(0).random((6, 10), dtype=np.float32)
    assert np.allclose(Geometry(10, 6, (0.0, 0.0, 10.0, 6.0)).lay_back(values), values, atol=1e-6)


def test_a_map_of_one_cell_is_flat():
    values = Geometry(9, 5, (0.0, 0.0, 9.0, 5.0)).lay_back(np.full((1, 1), 3.0, np.float32))
    assert np.all(values == 3)


def test_padding_is_cut_off():
    # A 4 by 2 picture padded above and below to a square: the middle half of the map covers it.
    geometry = Geometry(4, 2, (0.0, -1.0, 4.0, 3.0))
    values = np.repeat(np.arange(4, dtype=np.float32)[:, None], 4, axis=1)
    assert np.allclose(geometry.lay_back(values), values[1:3])


def test_scaling_keeps_proportions():
    geometry = Geometry(100, 50, (10.0, 5.0, 60.0, 45.0)).scaled(50, 25)
    assert geometry == Geometry(50, 25, (5.0, 2.5, 30.0, 22.5))


@pytest.mark.parametrize("box", [(3.9, 0.0, 4.1, 4.0), (-5.0, -5.0, 0.2, 0.2), (9.0, 9.0, 12.0, 12.0)])
def test_at_least_one_pixel_is_always_seen(box):
    rows, columns = Geometry(4, 4, box).window
    assert rows.stop > rows.start >= 0
    assert columns.stop > columns.start >= 0
    assert max(rows.stop, columns.stop) <= 4


def test_a_map_that_leaves_out_the_border_lies_where_its_cells_are():
    whole = Geometry(100, 10, (0.0, 0.0, 100.0, 10.0))
    inner = Geometry(100, 10, (0.0, 0.0, 100.0, 10.0), reach=(0.25, 0.0, 0.75, 1.0))
    values = np.zeros((1, 5), np.float32)
    values[0, 0] = 1
    assert np.allclose(inner.lay_back(values)[:, :25], 1)  # the border is as what is next to it
    values = np.roll(values, 1, axis=1)
    assert np.isclose(middle(whole.lay_back(values))[0], 30, atol=0.5)
    assert np.isclose(middle(inner.lay_back(values))[0], 40, atol=0.5)
    assert inner.covering(values).shape == (1, 40)
    assert np.array_equal(whole.covering(values), values)
    assert inner.scaled(50, 5).reach == inner.reach


def test_cells_tile_the_box_and_stay_in_the_picture():
    geometry = Geometry(100, 60, (20.0, -10.0, 100.0, 70.0))
    assert geometry.cell(1, 0, (4, 4)) == (20, 10, 40, 30)
    assert geometry.cell(0, 3, (4, 4)) == (80, 0, 100, 10), "the upper half lies in the padding"
    assert geometry.cell(3, 3, (4, 4)) == (80, 50, 100, 60)


def test_cells_lie_where_the_map_reaches():
    geometry = Geometry(100, 100, (0.0, 0.0, 100.0, 100.0), reach=(0.1, 0.2, 0.9, 0.8))
    assert geometry.cell(0, 0, (2, 4)) == pytest.approx((10, 20, 30, 50))
    assert geometry.cell(1, 3, (2, 4)) == pytest.approx((70, 50, 90, 80))
