"""Grid pointing: in a mosaic of four confidently classified pictures, the heatmap of each class lies on its picture."""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from skimage import data

from tests.app.conftest import EXAMPLES, encoded

SIDE = 224

SURE = 0.5
"""Least probability of the class of a tile, by itself."""

CORNERS = ((0.5, 0.5), (0, 0), (1, 0), (0, 1), (1, 1))
"""The middle and the corners, as shares of what is left over."""


class Tile(NamedTuple):
    """A picture in a mosaic, with its class and the probability of that."""

    picture: Image.Image
    index: int
    probability: float


def photographs():
    """Return the photographs that come with the examples and with scikit-image and scikit-learn."""
    folder = Path(data.__file__).parent
    (further,) = find_spec("sklearn").submodule_search_locations  # to import it would take seconds
    files = [*sorted(EXAMPLES.glob("*.png")), folder / "camera.png", folder / "motorcycle_left.png"]
    files += sorted(Path(further, "datasets", "images").glob("*.jpg"))
    return [Image.open(file).convert("RGB") for file in files]


def crops(picture):
    """Yield the middle square of a picture, and squares of half its height or width at five places."""
    shortest = min(picture.size)
    for share, (across, down) in [(1, (0.5, 0.5)), *product((0.5,), CORNERS)]:
        side = round(share * shortest)
        left, top = round(across * (picture.width - side)), round(down * (picture.height - side))
        yield picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


@pytest.fixture
def tiles(post):
    """Return a function that gives the surest crop of each photograph, the surest of each class."""

    def classified(model, picture):
        (best,) = post(encoded(picture), "/predict", model=model, top=1).get_json()["predictions"]
        return Tile(picture, best["index"], best["probability"])

    def surest(model):
        best = [
            max((classified(model, crop) for crop in crops(part)), key=lambda tile: tile.probability)
            for part in photographs()
        ]
        best.sort(key=lambda tile: tile.probability)
        return [tile for tile in {tile.index: tile for tile in best}.values() if tile.probability >= SURE]

    return surest


def shares(answer, place):
    """Return the shares of the positive mass, and of the highest quarter of what the model sees, in a cell."""
    (explanation,) = answer["explanations"]
    values = np.clip(explanation["heatmap"]["map"], 0, None)  # over what the model sees, the middle of the mosaic
    rows, columns = (
        np.arange(size) * 2 // size == half for size, half in zip(values.shape, divmod(place, 2), strict=True)
    )
    cell = np.outer(rows, columns)
    highest = np.argsort(-values, axis=None, kind="stable")[: values.size // 4]
    return values[cell].sum() / values.sum(), cell.ravel()[highest].mean()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["efficientnet_lite0", "mobilenet_v2"])
def test_the_heatmap_of_a_class_lies_on_its_picture(post, tiles, model):
    sure = tiles(model)
    assert len(sure) >= 4
    rows = []
    for number, tile in enumerate(sure):
        others = [sure[(number + step) % len(sure)] for step in (1, 2, 3)]
        for place in (number % 4, (number + 2) % 4):
            members = [*others[:place], tile, *others[place:]]
            mosaic = Image.new("RGB", (2 * SIDE, 2 * SIDE))
            for cell, member in enumerate(members):
                mosaic.paste(member.picture, (cell % 2 * SIDE, cell // 2 * SIDE))
            fields = {"model": model, "method": "votes-detail", "target": str(tile.index), "format": "json"}
            rows.append(shares(post(encoded(mosaic), values="map", **fields).get_json(), place))
    mass, top = np.mean(rows, axis=0)
    print(f"{model}: {len(sure)} pictures, {len(rows)} mosaics, share {mass:.2f}, top {top:.2f}")
    assert mass >= 0.8
    assert top >= 0.85
