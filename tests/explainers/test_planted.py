"""Networks whose classes a planted marker tells: right maps point at it, and what shows the object instead is wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.methods.catalogue import METHODS
from seewhy.models import wrap_model
from tests.grids import few
from tools.planted.drawings import CLASSES, SIDE, Drawings, Place, draw
from tools.planted.training import RECIPES, WEIGHTS, accuracy, load

PLACES = ("inside", "outside")


def drawn(place: Place) -> Drawings:
    return draw(64, place, torch.Generator().manual_seed(7))


def hits(maps: Tensor, drawings: Drawings) -> float:
    """Return the share of the maps (N, h, w) that, as they are drawn, are largest on the marker."""
    resized = functional.interpolate(maps[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False)
    return float(drawings.hits(resized[:, 0]).double().mean())


def pointing(method: str, network: nn.Module, drawings: Drawings, **options: Any) -> float:
    """Return the share of the pictures whose map for the class of the marker points at it."""
    return hits(METHODS[method].build(options).explain(network, drawings.images, drawings.classes).maps, drawings)


@pytest.mark.parametrize("name", RECIPES)
def test_the_marker_tells_the_class_and_nothing_else_does(name):
    recipe, network = RECIPES[name], load(name)
    assert accuracy(recipe, network, count=128) > 0.98
    assert abs(accuracy(recipe, network, count=128, marked=0) - 1 / CLASSES) < 0.1


def test_the_weights_are_small():
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 2_000_000


@pytest.mark.parametrize("place", few(PLACES, {"outside"}))
@pytest.mark.parametrize("method", few(["gradcam", "hirescam", "layercam", "attnlrp"], {"gradcam", "hirescam"}))
def test_maps_of_the_classifier_point_at_the_marker(method, place, untouched):
    assert pointing(method, untouched(load("classifier")), drawn(place)) >= 0.9


@pytest.mark.parametrize("place", few(PLACES, {"outside"}))
@pytest.mark.parametrize("method", ["legrad", "attnlrp"])
def test_maps_of_the_transformer_point_at_the_marker(method, place, untouched):
    assert pointing(method, untouched(load("transformer")), drawn(place)) >= 0.9


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_cams_of_the_transformer_point_at_the_marker_before_its_last_attention(method, untouched):
    """Behind it other tokens know the class too, and what the head averages is not at the marker alone."""
    network, drawings = untouched(load("transformer")), drawn("outside")
    before = pointing(method, network, drawings, layers=("blocks.1.norm1",))
    assert before >= 0.9
    assert pointing(method, network, drawings) < before


@pytest.mark.parametrize("name", ["classifier", "transformer"])
def test_eigencam_shows_the_object_instead(name, untouched):
    assert pointing("eigencam", untouched(load(name)), drawn("outside")) < 0.75


def of_regions(method: str, network: nn.Module) -> float:
    """Return the share of pictures whose map for the region of the object points at the marker, outside of it.

    The network takes one class where it sees no marker at all, so nothing in a picture speaks for that class.
    """
    unmarked = draw(64, "outside", torch.Generator().manual_seed(8), marked=0)
    taken = network(unmarked.images).argmax(dim=1)[unmarked.objects].bincount().argmax() - 1
    drawings = drawn("outside").part(drawn("outside").classes != taken)
    model = wrap_model(network, input_size=SIDE, head="segmentation", accelerator="eager")
    maps = METHODS[method].build({}).explain(model, drawings.images, 1 + drawings.classes).maps
    return hits(maps, drawings)


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_the_map_of_a_region_points_at_the_marker_outside_of_it(method, untouched):
    assert of_regions(method, untouched(load("segmenter"))) >= 0.9


def test_eigencam_shows_something_else_of_the_segmenter(untouched):
    assert of_regions("eigencam", untouched(load("segmenter"))) < 0.25
