"""Stock transformers with fixed random weights: traces, captures and edits work, and no method prefers a position."""

import pytest
import torch
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import UnsuitableModelError
from seewhy.explainers.inspection.capture import capture_images
from seewhy.explainers.inspection.edits import parse_edits
from seewhy.explainers.inspection.intervene import edit_images
from seewhy.explainers.inspection.trace import trace_images
from seewhy.explainers.methods.catalogue import METHODS
from tests.explainers.test_attention import SIZES, build, pictures
from tests.grids import diagonal, few

OF_TRANSFORMERS = [name for name, method in METHODS.items() if method.family == "transformer"]
FEWER = {"dave": {"samples": 2}}
"""Options with which methods of many passes take fewer."""

every_transformer = pytest.mark.parametrize("name", SIZES)


@every_transformer
def test_traces_and_captures_reach_every_attention(name, untouched):
    side, _, paths = SIZES[name]
    net, images = untouched(build(name)), pictures(side, count=1)
    events = trace_images(net, images, layers=tuple(paths)).events
    assert {*paths} <= {event.path for event in events if event.kind == "full_backward"}
    captured = capture_images(net, images, tuple(paths), ("input", "output", "grad_output"))
    assert {key.split("/")[0] for key in captured.arrays} == {*paths}
    assert all(torch.as_tensor(array).isfinite().all() for array in captured.arrays.values())


@pytest.mark.parametrize("name", few(SIZES, {"swin", "vit"}))
def test_an_edit_of_a_block_changes_the_logits_and_the_map(name, untouched):
    side, _, paths = SIZES[name]
    net, images = untouched(build(name)), pictures(side, count=1)
    edits = parse_edits([{"op": "zero", "layer": paths[0]}])
    pair = edit_images(net, images, edits, METHODS["attnlrp"].build({}), Ask(torch.tensor([2])))
    assert not torch.allclose(pair.before.outputs, pair.after.outputs, rtol=1e-3)
    assert not torch.allclose(pair.before.maps, pair.after.maps, rtol=1e-3)


def pointing(maps: Tensor) -> Tensor:
    """Return the share (N, 4) of the positive part of maps in each cell of a grid of two by two pictures."""
    cells = maps.clamp_min(0).unfold(1, maps.shape[1] // 2, maps.shape[1] // 2)
    cells = cells.unfold(2, maps.shape[2] // 2, maps.shape[2] // 2).sum(dim=(3, 4)).flatten(1)
    return cells / cells.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((method, "vit") for method in OF_TRANSFORMERS if method not in FEWER),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in diagonal(OF_TRANSFORMERS, [*SIZES][1:])),
    ],
)
def test_the_grid_pointing_game_of_random_weights_is_at_chance(method, name):
    """Four pictures in a grid, each as likely that of the class as the others: a quarter each, to within 0.05."""
    side = SIZES[name][0]
    net, images = build(name), pictures(side, count=24)
    try:
        maps = METHODS[method].build(FEWER.get(method, {})).explain(net, images, torch.arange(24) % 10).maps
    except UnsuitableModelError:
        assert "swin" in name
        return
    shares = pointing(maps)
    torch.testing.assert_close(shares.mean(dim=0), torch.full((4,), 0.25), rtol=0, atol=0.05)
