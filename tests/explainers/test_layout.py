"""Where feature maps lie in the picture, against the gradients of their cells, and the arithmetic of axes."""

import math

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import survey
from seewhy.explainers.layers.layout import COLUMNS, ROWS, Axis, Factor, of_pictures, plain, reshaped, resized
from tests import nets
from tests.explainers.test_own_nets import PilotNet

PICTURE = of_pictures((1, 3, 24, 40))


def rows_and_columns(layout):
    return [[(factor.along, factor.size, factor.step) for factor in axis.factors] for axis in layout.axes]


def test_windows_are_cut_out_and_put_back():
    windows = reshaped(PICTURE, (1, 3, 4, 6, 5, 8))
    assert rows_and_columns(windows)[2:] == [
        [(ROWS, 4, 6.0)],
        [(ROWS, 6, 1.0)],
        [(COLUMNS, 5, 8.0)],
        [(COLUMNS, 8, 1.0)],
    ]
    batched = windows.with_axes([windows.axes[index] for index in (0, 2, 4, 3, 5, 1)])
    merged = reshaped(batched, (20, 6, 8, 3))
    assert merged.axes[0].spatial
    assert merged.grid is None  # each window is a picture of the batch
    back = reshaped(merged, (1, 4, 5, 6, 8, 3))
    picture = reshaped(back.with_axes([back.axes[index] for index in (0, 1, 3, 2, 4, 5)]), (1, 24, 40, 3))
    assert picture.grid.axes == (3, 1, 2)
    assert picture.grid.step == (1.0, 1.0)


def test_tokens_are_rows_times_columns_and_become_a_grid_again():
    tokens = reshaped(PICTURE, (1, 3, 960))
    assert rows_and_columns(tokens)[2] == [(ROWS, 24, 1.0), (COLUMNS, 40, 1.0)]
    assert tokens.with_axes([*tokens.axes[:1], plain(1), *tokens.axes[1:]]).grid is None
    assert reshaped(tokens, (1, 3, 24, 40)).grid == PICTURE.grid
    assert reshaped(tokens, (1, 3, 40, 24)) is None  # rows of a wrong length
    assert reshaped(tokens, (1, 3, 7, 140)) is None


def test_a_class_token_hides_the_grid_until_it_is_gone():
    tokens = reshaped(PICTURE, (1, 3, 960))
    sequence = tokens.with_axis(2, Axis(tokens.axes[2].factors, before=1))
    assert sequence.shape == (1, 3, 961)
    assert reshaped(sequence, (3, 961)).axes[1] == sequence.axes[2]
    assert reshaped(sequence, (1, 3, 31, 31)) is None


def test_a_single_row_is_found_beside_its_columns():
    line = PICTURE.with_axis(2, Axis((Factor(ROWS, 1, 24.0),)))
    assert line.grid.axes == (1, 2, 3)
    assert reshaped(reshaped(line, (3, 40)), (1, 3, 1, 40)).grid.axes == (1, 2, 3)
    assert PICTURE.with_axis(2, plain(24)).grid is None


def test_a_resize_goes_from_edge_to_edge():
    half = resized(PICTURE, (1, 3, 12, 20))
    assert half.grid.start == (1.0, 1.0)
    assert half.grid.step == (2.0, 2.0)
    assert not half.grid.exact
    assert resized(PICTURE, (1, 3, 12)) is None


def dilated() -> nn.Module:
    first, pool = nn.Conv2d(3, 4, (3, 5), (1, 2), (0, 2)), nn.AvgPool2d((2, 3), stride=(2, 1))
    body = nn.Sequential(first, pool, nn.ZeroPad2d((3, 0, 1, 0)), nn.Conv2d(4, 4, 3, dilation=2))
    return nets.Pooled(nn.Linear(4, 2), body)


def patches() -> nn.Module:
    """As Swin Transformers merge neighbours: every other row and column, side by side."""
    conv, layer = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
    return nets.Wired(
        lambda net, images: net.layer(net.conv(images)[:, :, 1::2, ::2]).sum((2, 3)), conv=conv, layer=layer
    )


@pytest.mark.parametrize(
    ("kind", "path", "size", "cell"),
    [
        (PilotNet, "features", (66, 200), (0, 7)),
        (PilotNet, "features.4", (66, 200), (3, 9)),
        (dilated, "layer", (40, 60), (4, 9)),
        (patches, "layer", (32, 32), (5, 6)),
    ],
)
def test_a_cell_lies_where_its_gradient_does(kind, path, size, cell):
    net = nets.seeded(kind)
    (layer,) = (layer for layer in survey(net, (3, *size)).layers if layer.path == path)
    for value in net.parameters():
        value.data = value.abs() + 0.1  # so that no path through a rectifier is shut
    images = torch.ones(1, 3, *size, requires_grad=True)
    outputs: list[Tensor] = []
    handle = net.get_submodule(path).register_forward_hook(lambda _module, _args, output: outputs.append(output))
    net(images)
    handle.remove()
    (gradient,) = torch.autograd.grad(outputs[0][0, :, cell[0], cell[1]].sum(), images)
    for along, axes in ((ROWS, (0, 1, 3)), (COLUMNS, (0, 1, 2))):
        cells = gradient.abs().sum(dim=axes).nonzero()[:, 0]
        first, last = int(cells.min()), int(cells.max())
        assert last - first + 1 == layer.grid.field[along]
        assert (first + last + 1) / 2 == layer.grid.start[along] + cell[along] * layer.grid.step[along]
    assert layer.grid.exact


def test_cells_are_laid_from_edge_to_edge_unless_much_is_missing():
    pilot = survey(nets.seeded(PilotNet), (3, 66, 200))
    result = pilot.reach(("features",), (1, 18))
    expected = (26.5 / 200, 26.5 / 66, 170.5 / 200, 34.5 / 66)
    assert all(math.isclose(actual, reference) for actual, reference in zip(result, expected, strict=True))
    whole = (0.0, 0.0, 1.0, 1.0)
    assert pilot.reach(("features",), (66, 200)) == whole  # a map of pixels
    assert pilot.reach(("features", "features.4"), (1, 18)) == whole  # fused
    assert pilot.reach((), (1, 18)) == whole
    padded = survey(nets.seeded(nets.Net), (3, 30, 41))
    assert padded.reach(("conv",), (15, 21)) == whole
