"""The embedded model sees a cat beside a cup of coffee: where each method locates either of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from seewhy.explainers.methods.catalogue import METHODS
from seewhy.models import LoadedModel
from tests.grids import CONVOLUTIONAL

EXAMPLES = Path(__file__).parents[3] / "examples"

FEWER: dict[str, dict[str, Any]] = {
    "scorecam": {"layers": ["blocks.3"]},
    "sscam": {"layers": ["blocks.3"], "samples": 1, "std": 0.1},
    "iscam": {"layers": ["blocks.3"], "samples": 2},
    "smoothgradcam++": {"samples": 3},
    "smoothgrad": {"samples": 5},
    "vargrad": {"samples": 5},
    "dave": {"samples": 4, "noise_level": 0.1},
    "integrated-gradients": {"steps": 5},
    "expected-gradients": {"samples": 6},
    "blur-ig": {"steps": 5},
    "guided-ig": {"steps": 5},
    "xrai": {"steps": 3},
    "occlusion": {"patch": 112, "stride": 56},
    "rise": {"samples": 50, "cells": 4},
    "sobol": {"cells": 4, "samples": 3},
    "feature-ablation": {"segments": 30},
    "lime": {"segments": 20, "samples": 40},
    "kernel-shap": {"segments": 16, "samples": 100},
    "extremal-perturbation": {"steps": 20},
}
"""Options with which methods of many passes take fewer."""

CASES = [
    *((name, FEWER.get(name, {})) for name in CONVOLUTIONAL),
    ("excitation-backprop", {"layers": ["blocks.4"]}),
    ("lrp", {"composite": "z-plus"}),
    ("fullgrad", {"sign": "positive"}),
]

SHORT = {"gradcam", "saliency", "eigencam"}
"""Two that look at the class, and one that does not; `make test-slow` runs the others."""


@pytest.fixture(scope="module")
def pair(lite0: LoadedModel) -> Tensor:
    picture = Image.new("RGB", (448, 448))
    for place, name in enumerate(("cat", "coffee")):
        with Image.open(EXAMPLES / f"{name}.png") as half:
            picture.paste(half.convert("RGB").resize((224, 448)), (224 * place, 0))
    return lite0.preprocess(picture)[None]


def on_the_right(maps: Tensor) -> Tensor:
    """Return the share of what stands out of each map that is on the right; the map of RISE has no zero."""
    above = (maps - maps.mean(dim=(1, 2), keepdim=True)).clamp_min(0)
    return above[:, :, maps.shape[2] // 2 :].sum(dim=(1, 2)) / above.sum(dim=(1, 2))


def targets(model: LoadedModel, *labels: str) -> Tensor:
    return torch.tensor([model.labels.index(label) for label in labels])


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(name, options, marks=[] if name in SHORT else [pytest.mark.slow]) for name, options in CASES],
)
def test_the_coffee_is_on_the_right_and_the_cat_on_the_left(name, options, lite0, pair):
    result = (
        METHODS[name].build(options).explain(lite0, pair.expand(2, -1, -1, -1), targets(lite0, "espresso", "tabby"))
    )
    assert result.maps.isfinite().all()
    assert result.maps.amax(dim=(1, 2)).min() > 0
    if METHODS[name].discriminates:
        coffee, cat = on_the_right(result.maps)
        assert coffee > 0.55
        assert coffee > cat + 0.1


@pytest.mark.slow
def test_a_contrast_makes_excitation_see_only_the_class(lite0, pair):
    classes = targets(lite0, "espresso", "tabby")
    maps = METHODS["excitation-backprop"].build({}).explain(lite0, pair.expand(2, -1, -1, -1), classes, classes.flip(0))
    coffee, cat = on_the_right(maps.maps)
    assert coffee > 0.9
    assert cat < 0.1
