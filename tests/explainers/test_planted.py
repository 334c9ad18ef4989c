"""Networks whose classes depend on a planted marker: right maps point at it, and those of the object are wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy import explain, wrap_model
from seewhy.explainers.methods.catalogue import METHODS
from tests.grids import few
from tools.planted.drawings import CLASSES, SIDE, Drawings, Place, draw, draw_pairs
from tools.planted.networks import ANSWERS
from tools.planted.training import RECIPES, WEIGHTS, accuracy, load

PLACES = ("inside", "outside")
LABELS = ["red", "green", "blue", "yellow", "plain"]


def drawn(place: Place, count: int = 64) -> Drawings:
    return draw(count, place, torch.Generator().manual_seed(7))


def are_hits(maps: Tensor, drawings: Drawings) -> Tensor:
    """Return whether each of the maps (N, h, w), as it is drawn, is largest on the marker."""
    resized = functional.interpolate(maps[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False)
    return drawings.hits(resized[:, 0])


def share(flags: Tensor) -> float:
    return float(flags.double().mean())


def pointing(method: str, network: nn.Module, drawings: Drawings, **options: Any) -> float:
    """Return the share of the pictures whose map for the class of the marker points at it."""
    maps = METHODS[method].build(options).explain(network, drawings.images, drawings.classes).maps
    return share(are_hits(maps, drawings))


@pytest.mark.parametrize("name", RECIPES)
def test_the_marker_tells_the_class_and_nothing_else_does(name):
    recipe, network = RECIPES[name], load(name)
    assert accuracy(recipe, network, count=64) > 0.98
    assert accuracy(recipe, network, count=64, marked=0) > 0.98


def test_the_weights_are_small():
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 2_000_000


@pytest.mark.parametrize("place", few(PLACES, {"outside"}))
@pytest.mark.parametrize(
    "method", few(["gradcam", "hirescam", "layercam", "attnlrp", "votes", "votes-detail"], {"gradcam", "hirescam"})
)
def test_maps_of_the_classifier_point_at_the_marker(method, place, untouched):
    assert pointing(method, untouched(load("classifier")), drawn(place)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_votes_of_a_head_that_lists_positions_mostly_point_at_the_marker(place, untouched):
    """Gradients of such a head say less of a position than weights behind pooling do, and votes magnify that."""
    network, drawings = untouched(load("flattening-classifier")), drawn(place)
    maps = METHODS["votes"].build({}).explain(network, drawings.images, drawings.classes)
    assert not any(maps.diagnostics)
    assert share(are_hits(maps.maps, drawings)) > 0.6
    assert pointing("votes-detail", network, drawings) > 0.6
    assert pointing("hirescam", network, drawings) > 0.8


@pytest.mark.parametrize("place", few(PLACES, {"outside"}))
@pytest.mark.parametrize("method", ["legrad", "attnlrp"])
def test_maps_of_the_transformer_point_at_the_marker(method, place, untouched):
    assert pointing(method, untouched(load("transformer")), drawn(place)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_dave_points_at_the_marker_of_the_transformer(place, untouched):
    assert pointing("dave", untouched(load("transformer")), drawn(place, 16), samples=20) >= 0.9


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_cams_of_the_transformer_mostly_point_at_the_marker(method, untouched):
    """Attention has told other tokens what the class is, so what the head averages is not at the marker alone."""
    network, drawings = untouched(load("transformer")), drawn("outside")
    by_default = pointing(method, network, drawings)
    assert by_default > 0.6
    assert by_default > pointing(method, network, drawings, layers=("blocks.1.norm2",)) + 0.1
    assert pointing("eigencam", network, drawings) < 0.25


def test_eigencam_shows_the_object_of_the_classifier_instead(untouched):
    assert pointing("eigencam", untouched(load("classifier")), drawn("outside")) < 0.75


def of_regions(method: str, network: nn.Module) -> list[float]:
    """Return for each class the share of pictures whose map for the object's region points at the marker outside."""
    drawings = drawn("outside", 96)
    model = wrap_model(network, input_size=SIDE, head="segmentation", accelerator="eager")
    maps = METHODS[method].build({}).explain(model, drawings.images, 1 + drawings.classes).maps
    flags = are_hits(maps, drawings)
    return [share(flags[drawings.classes == label]) for label in range(CLASSES)]


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_the_map_of_a_region_points_at_the_marker_outside_of_it_whatever_the_class(method, untouched):
    assert min(of_regions(method, untouched(load("segmenter")))) >= 0.9


def test_eigencam_shows_something_else_of_the_segmenter(untouched):
    assert max(of_regions("eigencam", untouched(load("segmenter")))) < 0.25


def maps_of_boxes(method: str, model: Any, images: Tensor, drawings: Drawings, **options: Any) -> Tensor:
    """Return the maps (N, h, w) of the boxes at the drawn objects."""
    targets = ["box:" + ",".join(f"{edge:.2f}" for edge in box) for box in drawings.boxes.tolist()]
    results = [
        explain(model, image, method, target=target, **options) for image, target in zip(images, targets, strict=True)
    ]
    assert [result.target.label for result in results] == [LABELS[label] for label in drawings.classes]
    return torch.stack([torch.from_numpy(result.map) for result in results])


def pairs(count: int) -> tuple[Drawings, Drawings]:
    return draw_pairs(count, torch.Generator().manual_seed(7))


def of_pairs(method: str, network: nn.Module) -> float:
    """Return the share of boxes whose map points at the marker inside, where each picture has two."""
    model, scene = wrap_model(network, LABELS), pairs(12)
    flags = [are_hits(maps_of_boxes(method, model, scene[0].pictures, drawings), drawings) for drawings in scene]
    return share(torch.cat(flags))


def test_odam_points_at_the_marker_of_each_box_and_grad_cam_now_and_then_at_the_other(untouched):
    network = untouched(load("detector"))
    by_odam = of_pairs("odam", network)
    assert by_odam >= 0.9
    assert of_pairs("gradcam", network) < by_odam - 0.05


def test_eigencam_shows_the_same_for_both_boxes(untouched):
    assert of_pairs("eigencam", untouched(load("detector"))) < 0.5


@pytest.mark.slow
def test_drise_shows_the_object_that_is_explained_and_not_the_other(untouched):
    model, scene = wrap_model(untouched(load("detector")), LABELS), pairs(3)
    for drawings, other in (scene, scene[::-1]):
        maps = maps_of_boxes("drise", model, scene[0].pictures, drawings, samples=300, cells=8, sign="signed")
        for values, shown, hidden in zip(maps, drawings.objects, other.objects, strict=True):
            assert values[shown].mean() > 2 * values[~shown].mean() > 0
            assert values[shown].mean() > 2 * values[hidden].mean()


def of_context(method: str, network: nn.Module) -> float:
    """Return the share of boxes whose map points at the marker outside, at the layer that looks for it."""
    model = wrap_model(network, LABELS, input_size=SIDE, default_layers=["encoder.coarse"])
    drawings = drawn("outside", 32)
    return share(are_hits(maps_of_boxes(method, model, drawings.images, drawings), drawings))


def test_odam_points_at_the_marker_outside_of_a_box_that_tells_its_class(untouched):
    assert of_context("odam", untouched(load("box-network"))) >= 0.9


def test_eigencam_shows_something_else_of_the_box_network(untouched):
    assert of_context("eigencam", untouched(load("box-network"))) < 0.5


def test_a_detector_with_a_head_of_its_own_is_explained_before_its_head():
    model = wrap_model(load("box-network"), LABELS, input_size=SIDE)
    assert model.default_layers == ("head.0",)
    assert model.task.detector.layout.classes == ANSWERS == len(LABELS)
