"""The numbers of passes of explanations: the catalogue's expressions, evaluated, against the passes that run."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM
from seewhy.explainers.core.costs import Passes, evaluate, names_in
from seewhy.explainers.execution.chunks import chunk_size
from seewhy.explainers.methods.catalogue import METHODS, passes_of
from seewhy.explainers.methods.perturbation.occlusion import Occlusion
from seewhy.explainers.tasks.pose import survey
from seewhy.models import LoadedModel, Preprocess
from seewhy.models.spec import ModelSpec
from tests import nets
from tests.grids import CONVOLUTIONAL

FEW = {"samples": 9, "steps": 5, "segments": 4, "cells": 3, "patch": 8, "stride": 4, "concepts": 2, "iterations": 3}
FEWER = {"kernel-shap": {"samples": 20, "segments": 3}, "iscam": {"samples": 3}, "extremal-perturbation": {"cells": 6}}
NOT_HERE = {"cam": "it needs a head that pools"}


@pytest.fixture(scope="module")
def model():
    module = nets.seeded(nets.Net).eval()
    preprocess = Preprocess((16, 16), (16, 16))
    spec = ModelSpec("net", "own", "", preprocess, ("a", "b", "c"), nets.Net, lambda *_: None, None)
    return LoadedModel(spec, module, survey(module, spec.image_shape), torch.device("cpu"), None, None)


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("1", 1),
        ("2 + 2 * concepts", 12),
        ("1 + channels * (samples - 1)", 15),
        ("1 + samples * (cells * cells + 2)", 89),
        ("samples // 3", 2),
        ("unknown + 1", None),
        ("share * 2", None),
        ("nothing", None),
        ("1 +", None),
        ("__import__('os')", None),
        ("channels.real", None),
        ("2 ** 3", None),
        ("1 // 0", None),
    ],
)
def test_expressions_are_sums_and_products_of_whole_numbers_that_are_known(expression, number):
    variables = {"channels": 2, "samples": 8, "concepts": 5, "cells": 3, "share": 0.5, "nothing": None}
    assert evaluate(expression, variables) == number


def test_names_are_those_in_the_expression():
    assert set(names_in("1 + samples * (cells * cells + 2)")) == {"samples", "cells"}
    assert names_in("1 +") == ()


def test_passes_add_up():
    assert (Passes(1, 2) + Passes(3)) * 2 == Passes(8, 4)
    assert Passes(8, 4).total == 12


EXACT = {
    *("scorecam", "sscam", "iscam", "input-x-gradient", "smoothgrad", "vargrad", "integrated-gradients"),
    *("expected-gradients", "blur-ig", "guided-ig", "xrai"),
}
"""The methods that take as many passes as they say."""


def counted(rows: list[int], ends: tuple[Any, ...]) -> None:
    rows.append(len(ends[0]))


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_every_method_of_the_catalogue_tells_its_passes_and_takes_no_more(name, model, monkeypatch):
    if name in NOT_HERE:
        pytest.skip(NOT_HERE[name])
    entry = METHODS[name]
    options = {option: value for option, value in FEW.items() if option in entry.options} | FEWER.get(name, {})
    if entry.takes_layers:
        options["layers"] = ("conv",)
    explainer = entry.build(options)
    passes = entry.passes(explainer, model, model.spec.image_shape)
    assert passes is not None
    images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for backward in (True, False):
        chunk_size(model.module, images, backward)  # counts activations, by a pass of its own
    forwards, backwards, grad = list[int](), list[int](), torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda score, *ends, **more: counted(backwards, ends) or grad(score, *ends, **more)
    )
    with model.module.register_forward_pre_hook(lambda _, args: forwards.append(len(args[0]))):
        explainer.explain(model, images, torch.tensor([1]))
    if explainer.runs_whole:  # others run a part of the model, with an unedited row in each pass
        assert sum(forwards) <= passes.forwards
    else:
        assert name in ("ablationcam", "recipro-cam")
    if name in EXACT:
        assert (sum(forwards), sum(backwards)) == (passes.forwards, passes.backwards)
    assert set(entry.counted) <= set(entry.options)


def outermost(calls: list[str]) -> int:
    """Return how many calls begin while no other one is under way."""
    depths = [calls[:number].count("begin") - calls[:number].count("end") for number in range(len(calls))]
    return sum(call == "begin" and depth == 0 for call, depth in zip(calls, depths, strict=True))


class Counted(nn.GroupNorm):
    """Counts how often it runs, and has a bias that only two backward passes of its own tell."""

    runs = 0

    def forward(self, features: Tensor) -> Tensor:
        Counted.runs += 1
        return super().forward(features)


def test_fullgrad_runs_a_module_twice_and_goes_back_through_it_three_times(monkeypatch):
    net = nets.seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Counted(2, 4), nn.Flatten(), nn.Linear(144, 3))).eval()
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    explainer = METHODS["fullgrad"].build({})
    explainer.explain(net, images)  # finds, once for a size of picture, which modules are taken as a whole
    calls: list[str] = []
    grad = torch.autograd.grad

    def counted(*args: object, **options: object) -> object:
        calls.append("begin")
        try:
            return grad(*args, **options)  # which calls itself where a mode watches functions
        finally:
            calls.append("end")

    monkeypatch.setattr(torch.autograd, "grad", counted)
    Counted.runs = 0
    explainer.explain(net, images)
    assert passes_of(explainer, net, (3, 8, 8)) == Passes(Counted.runs, outermost(calls)) == Passes(2, 3)


def test_augmentations_multiply_the_passes_and_several_layers_add_up(model):
    shape = model.spec.image_shape
    plain, augmented = (METHODS["gradcam"].build({"smooth": smooth}) for smooth in ("none", "tta"))
    assert passes_of(augmented, model, shape) == passes_of(plain, model, shape) * 6
    fused = METHODS["scorecam"].build({"layers": ("stem", "conv")})
    assert passes_of(fused, model, shape) == Passes(1 + 4 + 5)
    everywhere = METHODS["recipro-cam"].build({"layers": ("conv",)})
    assert passes_of(everywhere, model, shape) == Passes(1 + 8 * 8)


def test_passes_that_depend_on_what_is_not_known_are_not_told(model):
    shape = model.spec.image_shape
    assert passes_of(METHODS["scorecam"].build({"layers": ("nowhere",)}), model, shape) is None
    assert passes_of(METHODS["scorecam"].build({}), model.module, shape) is None
    assert passes_of(METHODS["gradcam"].build({}), model.module, shape) == Passes(1, 1)

    class OwnCAM(GradCAM):
        pass

    assert passes_of(OwnCAM(), model, shape) is None


def test_positions_of_a_patch_are_those_that_run(model):
    for patch, stride in ((8, 4), (5, 3), (16, 16), (7, 7)):
        quantities = Occlusion(patch=patch, stride=stride).quantities(model, (3, 16, 16))
        starts = torch.arange(0, 16 - patch + stride, stride)
        assert quantities == {"positions": len(starts) ** 2}
