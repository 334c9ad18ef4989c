"""The class of each pixel: the mask in upload coordinates, areas, drawings, files."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from seewhy import explain, segment, wrap_model
from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging.classes import class_colours, legend
from seewhy.explainers.imaging.geometry import Geometry
from tests import nets
from tests.explainers.test_segmentation import CAT, LABELS, SIZE, Segmenter, logits_of


def colours(classes=3):
    """The class of a position is its strongest channel, on a grid of a quarter of the input."""
    net = nn.Sequential(nn.AvgPool2d(4), nets.pointwise(torch.eye(classes)[:, :3]))
    module = nets.Wrapped(net, lambda logits: {"out": logits})
    return wrap_model(module, input_size=16, mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest")


@pytest.fixture
def stripes():
    """A picture of 24 by 16: eight columns each of red, green and blue."""
    picture = np.zeros((16, 24, 3), np.uint8)
    for channel in range(3):
        picture[:, 8 * channel : 8 * channel + 8, channel] = 255
    return picture


def test_the_mask_lies_where_the_picture_does(stripes):
    result = segment(colours(), stripes)  # which sees the columns 4 to 19
    expected = np.repeat([[255] * 4 + [0] * 4 + [1] * 8 + [2] * 4 + [255] * 4], 16, axis=0)
    assert result.mask.dtype == np.uint8
    assert np.array_equal(result.mask, expected)
    assert [(row.index, row.area) for row in result.classes] == [(1, 0.5), (0, 0.25), (2, 0.25)]
    assert result.caption == "class 1 on 50.0%, class 0 on 25.0%, class 2 on 25.0%"


def test_masks_of_many_classes_have_sixteen_bits(stripes):
    assert segment(colours(255), stripes).void == 255
    many = segment(colours(256), stripes)
    assert (many.mask.dtype, many.void, many.mask[0, 0]) == (np.uint16, 65535, 65535)
    mask = Image.open(io.BytesIO(base64.b64decode(many.document()["mask"].partition(",")[2])))
    assert np.array_equal(np.asarray(mask), many.mask)


@pytest.mark.parametrize("box", [(0.0, 0.0, 7.0, 5.0), (1.5, -2.25, 6.1, 9.0), (-3.0, 1.0, 10.0, 4.0)])
def test_each_pixel_has_the_cell_that_its_centre_lies_in(box):
    geometry = Geometry(7, 5, box)
    cells = np.arange(12, dtype=np.uint8).reshape(3, 4)
    laid = np.full((5, 7), 99)
    laid[geometry.window] = geometry.labelled(cells)
    left, top, right, bottom = box
    for row in range(5):
        for column in range(7):
            x, y = (column + 0.5 - left) / (right - left), (row + 0.5 - top) / (bottom - top)
            inside = 0 <= x < 1 and 0 <= y < 1
            assert laid[row, column] == (cells[int(3 * y), int(4 * x)] if inside else 99)


def test_classes_are_those_of_the_logits():
    model = wrap_model(Segmenter(), LABELS, input_size=SIZE)
    result = segment(model, CAT)
    classes = logits_of(model, model.preprocess(result.picture)[None]).argmax(dim=0).numpy()
    assert np.array_equal(result.map, classes)
    assert [row.label for row in result.classes] == [row.label for row in explain(model, CAT).predictions]
    assert sum(row.area for row in result.classes) == pytest.approx(1)


def test_a_mask_of_a_class_can_be_explained():
    model = wrap_model(Segmenter(), LABELS, input_size=SIZE)
    first = segment(model, CAT).classes[0]
    result = explain(model, CAT, target=segment(model, CAT).mask == first.index)
    assert result.target.index == first.index
    assert result.target.area == pytest.approx(first.area, abs=0.01)


def test_the_colours_are_those_of_pascal_voc():
    table = class_colours()
    assert table.shape == (256, 3)
    known = {0: (0, 0, 0), 1: (128, 0, 0), 8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    assert {index: tuple(table[index].tolist()) for index in known} == known
    assert len({tuple(row) for row in table.tolist()}) == 256


def test_a_drawing_has_the_colours_over_the_picture_and_a_legend(stripes):
    result = segment(colours(), stripes)
    drawing = np.asarray(result.overlay(alpha=1))
    assert drawing[:16, 4:20].reshape(-1, 3).tolist() == [list(class_colours()[i]) for i in result.mask[:, 4:20].flat]
    assert drawing[8, 0].tolist() == drawing[8, 2].tolist() == [23, 23, 23]  # dim and grey: not seen
    assert drawing.shape[0] > 16
    assert {(0, 0, 0), (128, 0, 0), (0, 128, 0)} <= {tuple(row) for row in drawing[16:].reshape(-1, 3).tolist()}
    blend = np.asarray(result.overlay(alpha=0.5))
    assert blend[0, 10].tolist() == [64, 127, 0]
    pair = np.asarray(result.overlay("side-by-side", alpha=1))
    assert np.array_equal(pair[:16, :24], stripes)
    assert np.array_equal(pair[:16, 24:48], drawing[:16, :24])


def test_a_legend_breaks_lines_and_ends_where_the_picture_does():
    names = [f"class {number}" for number in range(40)]
    assert legend(names[:2], [0, 1], 400, 100).size == (400, 24)
    assert legend(names, range(40), 400, 72).size == (400, 72)
    assert legend(names, range(40), 400, 9999).height > 72
    assert legend(["a name that is much too long for it"], [3], 40, 1).size == (40, 24)


def test_files_hold_the_mask(stripes, tmp_path):
    result = segment(colours(), stripes)
    with Image.open(result.save(tmp_path / "mask.png", view="mask")) as mask:
        assert mask.mode == "L"
        assert np.array_equal(np.asarray(mask), result.mask)
    document = json.loads(result.save(tmp_path / "classes.json").read_text())
    assert document["classes"][0] == {"index": 1, "label": "class 1", "area": 0.5}
    assert (document["shape"], document["void"]) == ([16, 24], 255)
    with np.load(result.save(tmp_path / "classes.npz")) as arrays:
        assert np.array_equal(arrays["mask"], result.mask)
        assert arrays["labels"].tolist() == ["class 1", "class 0", "class 2"]
        assert arrays["areas"].tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(OptionError, match="change the indices"):
        result.save(tmp_path / "mask.jpg", view="mask")
    with pytest.raises(OptionError, match="There is no view 'heatmap'"):
        result.overlay("heatmap")
    assert Image.open(io.BytesIO(result._repr_png_())).size == (240, 64)


def test_a_classifier_does_not_segment(lite0):
    with pytest.raises(OptionError, match="is not a segmenter; use one"):
        segment(lite0, CAT)
