"""Properties of every method of the catalogue, whatever it computes."""

import gc
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.execution import chunks
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.cam.base import fuse
from seewhy.explainers.methods.cam.shared_pass import explain_jointly
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import AUGMENTATIONS, Explainer
from seewhy.explainers.methods.gradient import xrai
from tests import nets
from tests.grids import CLASSIFYING, ONE_A_FAMILY, few

FEW = {"samples": 3, "steps": 4, "masks": 12, "segments": 12, "iterations": 4, "cells": 3, "patch": 8, "stride": 8}
"""Small values of the options that make methods expensive."""

LAYERS = dict.fromkeys(("cam", "dff", "votes", "votes-detail"), ("last",))
"""Where a method can only be used."""

TARGETS, AGAINST = torch.tensor([0, 3, 2]), torch.tensor([1, NO_CONTRAST, 0])

every_method = pytest.mark.parametrize("name", CLASSIFYING)

every_family = pytest.mark.parametrize("name", few(CLASSIFYING, ONE_A_FAMILY))
"""For what bases of methods do."""


class Small(nn.Module):
    """What networks are made of: ReLUs in place, functional and repeated, batch norm of a convolution and of anything
    else, a shortcut added in place, a concatenation, poolings, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.mixed = nn.BatchNorm2d(12)
        self.last = nn.Identity()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(12, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.relu(self.norm(self.stem(images))))
        branch = self.conv(features)
        branch += features
        features = self.mixed(torch.cat([self.relu(branch), features], dim=1))
        features = self.last(torch.relu(functional.relu(features, inplace=True)))
        return self.head(self.dropout(functional.adaptive_avg_pool2d(features, 1)).flatten(1))


def like(kind: type[nn.Module]) -> nn.Module:
    net, generator = nets.seeded(kind), torch.Generator().manual_seed(2)
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 2
    for norm in (part for part in net.modules() if isinstance(part, nn.BatchNorm2d)):
        norm.weight.data = torch.linspace(-0.5, 2, norm.num_features)
        norm.bias.data = torch.linspace(-0.1, 0.3, norm.num_features)
        norm.running_mean.uniform_(-0.5, 0.5, generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    return net.requires_grad_(False)


def small() -> nn.Module:
    return like(Small)


def kind_for(name: str) -> type[nn.Module]:
    """Return the kind of network that a method explains: a transformer, where it reads attention."""
    return nets.Transformer if "attention" in METHODS[name].needs else Small


def net_for(name: str) -> nn.Module:
    return like(kind_for(name))


def pictures() -> Tensor:
    """Three pictures, wider than high."""
    return torch.rand(3, 3, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.fixture
def net(request) -> nn.Module:
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return net_for(parameters.get("name", "gradcam"))


@pytest.fixture
def wide() -> Tensor:
    return pictures()


@pytest.fixture(autouse=True)
def small_segmentations(monkeypatch) -> None:
    monkeypatch.setattr(xrai, "SIDE", 48)  # of the pictures that XRAI segments, which takes most of its time


def cheap_method(name: str, **options: object) -> Explainer:
    """Return a method that is as cheap as can be, at the layer that has a grid."""
    method = METHODS[name]
    settings: dict[str, object] = {option: value for option, value in FEW.items() if option in method.options}
    for option, value in settings.items():
        schema = method.options[option]
        settings[option] = max(value, schema.get("minimum", value))
    if method.takes_layers:
        settings["layers"] = LAYERS.get(name, ("conv",))
    return method.build({**settings, "sign": fullest(name), **options})


def explained(name: str, model: nn.Module, images: Tensor, targets: Tensor | None = TARGETS, **options) -> Attribution:
    return cheap_method(name, **options).explain(model, images, targets)


@cache
def expected(name: str, **options: object) -> Attribution:
    """Return what a method finds in the pictures."""
    return explained(name, net_for(name), pictures(), **options)


def fullest(name: str) -> str:
    """Return the sign that keeps most of a method's map."""
    signs = METHODS[name].options["sign"].get("enum", ("positive",))
    return next(sign for sign in ("signed", "absolute", "positive") if sign in signs)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    assert expected.abs().max() > 0
    assert nets.relative_error(actual, expected) <= tolerance


@every_method
def test_maps_are_finite_and_of_the_pictures_proportions(name, net, wide, untouched):
    method = METHODS[name]
    explanation = explained(name, untouched(net), wide)
    count, rows, columns = explanation.maps.shape
    assert count == 3
    # Perturbations may use a square grid over any picture.
    assert abs(columns - rows * 24 / 16) <= 1.5 or method.family == "perturbation"
    assert explanation.maps.dtype == torch.float32
    assert explanation.maps.isfinite().all()
    assert explanation.maps.abs().amax(dim=(1, 2)).min() > 0
    assert torch.equal(explanation.targets, TARGETS)
    torch.testing.assert_close(explanation.logits, net(wide), rtol=1e-4, atol=1e-5)
    detail = ("norm",) if name == "votes-detail" else ()
    assert explanation.layers == ((*detail, *LAYERS.get(name, ("conv",))) if method.takes_layers else ())
    if name == "excitation-backprop":
        explanation = explained(name, net, wide, layers=())
    assert (explanation.maps.shape[1:] == wide.shape[2:]) is method.fine


PARTS = {"signed": lambda maps: maps, "absolute": torch.abs, "positive": lambda maps: maps.clamp_min(0)}


@every_family
def test_signs(name, net, wide):
    schema = METHODS[name].options["sign"]
    assert (schema["default"] == "signed") is METHODS[name].signed
    for sign in schema["enum"]:
        explanation = explained(name, net, wide, sign=sign)
        assert explanation.signed is (sign == "signed")
        assert explanation.signed or (explanation.maps >= 0).all()
        if "signed" in schema["enum"] and (name, sign) != ("fullgrad", "absolute"):  # the sum of magnitudes
            assert torch.equal(explanation.maps, PARTS[sign](expected(name).maps))


VARIANTS = [
    ("lrp", {"composite": "epsilon"}),
    ("lrp", {"composite": "epsilon-alpha2-beta1-flat"}),
    ("attnlrp", {"gamma": 0, "conv_gamma": 0}),
    ("deeplift", {"baseline": "blur"}),
    ("excitation-backprop", {"layers": ()}),
    ("fullgrad", {"sign": "absolute"}),
]
"""Methods that go other ways with other options."""


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in CLASSIFYING), *VARIANTS])
def test_a_batch_of_mixed_targets_and_contrasts_is_as_its_pictures_alone(name, options, net, wide):
    explainer, expected = cheap_method(name, **options), explained(name, net, wide, **options).maps
    mixed = explainer.explain(net, wide, TARGETS, AGAINST)
    assert torch.equal(mixed.against, AGAINST)
    for row in range(3):
        against = AGAINST[row : row + 1] if row != 1 else None
        alone = explainer.explain(net, wide[row : row + 1], TARGETS[row : row + 1], against)
        close(mixed.maps[row], alone.maps[0])
    close(mixed.maps[1], expected[1])
    if METHODS[name].discriminates:
        assert nets.relative_error(mixed.maps[[0, 2]], expected[[0, 2]]) > 1e-3


@every_family
def test_the_same_question_has_the_same_answer_to_the_bit_whatever_the_modes(name, net, wide, untouched):
    state, before, leaf = torch.get_rng_state(), wide.clone(), wide.clone().requires_grad_()
    trainable = net_for(name).train().requires_grad_(True)
    with torch.no_grad():
        assert torch.equal(explained(name, untouched(trainable), leaf).maps, expected(name).maps)
    assert leaf.grad is None
    with torch.inference_mode():
        assert torch.equal(explained(name, net, wide.clone()).maps, expected(name).maps)
    assert torch.equal(wide, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert cheap_method(name) == cheap_method(name)
    assert hash(cheap_method(name)) == hash(cheap_method(name))


@every_family
def test_nothing_of_an_answer_stays_in_memory(name, net, wide):
    counts = []
    for _ in range(3):
        explained(name, net, wide)
        gc.collect()
        counts.append(sum(issubclass(type(candidate), Tensor) for candidate in gc.get_objects()))
    assert counts[1] == counts[2]


SEEDED = {"kernel-shap": {"segmentation": "grid", "segments": 24, "samples": 100}}
"""Options with which a method needs random numbers: of fewer superpixels it tries all sets."""


@pytest.mark.parametrize("name", [name for name in CLASSIFYING if "seed" in METHODS[name].options])
def test_another_seed_has_another_answer(name, net, wide):
    first, second = (explained(name, net, wide, **SEEDED.get(name, {}), seed=seed).maps for seed in (0, 2**63 - 1))
    assert second.isfinite().all()
    assert nets.relative_error(first, second) > 1e-5


LINEAR = {
    *("cam", "gradcam", "hirescam", "shapleycam", "xgradcam", "recipro-cam", "kernel-shap", "occlusion", "fullgrad"),
    *("blur-ig", "deeplift", "excitation-backprop", "expected-gradients", "feature-ablation", "input-x-gradient"),
    *("integrated-gradients", "lrp", "attnlrp"),
}
"""The methods for which the map of a difference is the difference of two maps."""


@pytest.mark.parametrize("name", few(CLASSIFYING, LINEAR | {*ONE_A_FAMILY}))
def test_maps_of_classes_and_of_their_contrast(name, net, wide):
    classes = torch.tensor([1, 1, 0])
    first, second = expected(name).maps, explained(name, net, wide, classes).maps
    if METHODS[name].family == "cam":
        assert torch.equal(first, second) is not METHODS[name].discriminates
    if name in LINEAR:
        close(cheap_method(name).explain(net, wide, TARGETS, classes).maps, first - second, 1e-5)


def writing(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a kind of network that writes into its input."""

    class Writes(kind):  # type: ignore[misc, valid-type]
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.mul_(2) / 2)

    return Writes


def detaching(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a kind of network whose logits have no gradient."""

    class Detaches(kind):  # type: ignore[misc, valid-type]
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).detach()

    return Detaches


@every_family
def test_a_model_that_writes_into_its_input_is_explained_like_another(name, wide):
    before = wide.clone()
    assert torch.equal(explained(name, like(writing(kind_for(name))), wide).maps, expected(name).maps)
    assert torch.equal(wide, before)


WITHOUT_GRADIENTS = {name for name in CLASSIFYING if METHODS[name].backwards == "0"}


@pytest.mark.parametrize("name", few(CLASSIFYING, WITHOUT_GRADIENTS | {*ONE_A_FAMILY}))
def test_gradients_are_needed_or_not_made(name, net, wide, untouched, monkeypatch):
    if name in WITHOUT_GRADIENTS:
        monkeypatch.setattr(torch.autograd, "grad", None)
        modes = list[bool]()
        with net.conv.register_forward_pre_hook(lambda module, args: modes.append(torch.is_grad_enabled())):
            explained(name, net, wide)
        assert not any(modes)
    else:
        with pytest.raises(ExplainerError, match="No gradient flows"):
            explained(name, untouched(like(detaching(kind_for(name)))), wide)


@every_family
def test_methods_together_are_the_methods_alone(name, net, wide):
    other = "hirescam" if isinstance(net, Small) else "saliency"
    together = explain_jointly((cheap_method(name), cheap_method(other)), net, wide, Ask(TARGETS))
    for attribution, alone in zip(together, (expected(name), explained(other, net, wide)), strict=True):
        assert torch.equal(attribution.maps, alone.maps)


@every_family
def test_precision_and_memory_format_do_not_matter(name, net, wide):
    last = net.to(memory_format=torch.channels_last)
    close(explained(name, last, wide.to(memory_format=torch.channels_last)).maps, expected(name).maps)
    double = explained(name, net.double(), wide.double()).maps
    assert double.dtype == torch.float32
    close(expected(name).maps, double, 1e-3)
    half = explained(name, net.bfloat16(), wide)
    assert [half.maps.dtype, half.logits.dtype] == [torch.float32, torch.float32]
    change = torch.ones(len(wide)) if half.change is None else half.change  # 0: rounding decides
    certain = change > 0
    assert certain.sum() >= 2
    pair = torch.stack([maps[certain].flatten() for maps in (half.maps, expected(name).maps)])
    assert torch.corrcoef(pair)[0, 1] > (0.7 if name in ("recipro-cam", "xrai") else 0.9)
    if METHODS[name].family == "cam" and name not in ("ablationcam", "recipro-cam"):
        close(half.maps, expected(name).maps, 0.05)


@pytest.mark.parametrize("name", few(CLASSIFYING, {"cam", "deeplift"}))
def test_autocast_is_lower_precision_and_no_fault_of_the_model(name, net, wide):
    with torch.autocast("cpu"):
        cast = explained(name, net, wide)
    assert [cast.maps.dtype, cast.logits.dtype] == [torch.float32, torch.float32]
    pair = torch.stack([maps.flatten() for maps in (cast.maps, expected(name).maps)])
    assert torch.corrcoef(pair)[0, 1] > (0.5 if cast.change is not None else 0.9)


ONE_CHANNEL = {
    *("dff", "extremal-perturbation", "feature-ablation", "kernel-shap", "lime", "occlusion", "rise", "sobol"),
    *("eigencam", "eigengradcam", "kpcacam", "recipro-cam", "votes", "votes-detail"),
    *("attention-rollout", "chefer", "legrad"),
}
"""The methods of maps that are their own principal component."""


@every_family
def test_smoothing_composes_with_contrasts(name, net, wide):
    contrasted = cheap_method(name).explain(net, wide, TARGETS, AGAINST)
    for smooth in ("eigen", "tta"):
        attribution = cheap_method(name, smooth=smooth).explain(net, wide, TARGETS, AGAINST)
        assert torch.equal(attribution.against, AGAINST)
        assert attribution.maps.isfinite().all()
        change = nets.relative_error(attribution.maps, contrasted.maps)
        stays = name in ("edges", "centre") or (smooth == "eigen" and name in ONE_CHANNEL)
        assert change < 1e-4 if stays else change > 1e-3


SHOWING = {
    *("smoothgradcam++", "scorecam", "sscam", "iscam", "smoothgrad", "vargrad", "integrated-gradients", "blur-ig"),
    *("expected-gradients", "guided-ig", "occlusion", "rise", "extremal-perturbation", "dave"),
}
"""The methods of many passes whose maps can be seen to grow."""


@every_method
def test_passes_stay_small_and_report_and_show_maps_as_they_grow(name, net, wide, untouched, monkeypatch):
    whole, method = expected(name).maps, METHODS[name]
    monkeypatch.setattr(chunks, "MOST", 2)
    rows, steps, previews = list[int](), list[tuple[int, int]](), list[Tensor]()
    progress = Progress(lambda *pair: steps.append(pair), show=lambda maps: previews.append(maps().clone()))
    with net.register_forward_pre_hook(lambda module, args: rows.append(len(args[0]))):
        heatmaps = cheap_method(name).explain(net, wide, TARGETS, progress=progress).maps
    close(heatmaps, whole)
    assert (name in SHOWING) is bool(previews)
    if name in SHOWING:
        assert len(previews) > 1
        assert not torch.equal(previews[0], previews[-1])
        assert all(maps.shape == heatmaps.shape and maps.isfinite().all() for maps in previews)
        close(previews[-1], heatmaps)
    if not steps:
        assert {method.forwards, method.backwards} <= {*"0123"}
        return
    assert max(rows[1:]) <= 2, "all but the one that counts what memory allows"
    assert steps == sorted(steps)
    assert (steps[0][0], *steps[-1]) == (0, steps[0][1], steps[0][1])

    def report(*pair: int) -> None:
        reports.append(pair)
        if len(reports) == 2:
            raise TimeoutError

    reports = list[tuple[int, ...]]()
    with pytest.raises(TimeoutError):
        cheap_method(name).explain(untouched(net), wide, TARGETS, progress=Progress(report))
    assert reports == steps[:2]


def test_augmented_maps_are_shown_as_they_grow(net, wide):
    records: list[Tensor] = []
    progress = Progress(show=lambda maps: records.append(maps()))
    attribution = cheap_method("rise", smooth="tta").explain(net, wide, TARGETS, progress=progress)
    assert len(records) == len(AUGMENTATIONS) - 1
    first = cheap_method("rise").explain(net, wide, TARGETS).maps
    close(records[0], first)
    assert not torch.allclose(attribution.maps, first)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].takes_layers and name not in LAYERS])
def test_several_layers_are_fused(name, net, wide):
    shares = list[float]()
    progress = Progress(lambda done, total: shares.append(done / total))
    attribution = cheap_method(name, layers=("conv", "stem")).explain(net, wide, TARGETS, progress=progress)
    assert attribution.layers == ("stem", "conv")
    assert shares == sorted(shares)
    assert not shares or (shares[0], shares[-1]) == (0, 1)
    if name in ("refinecam", "guided-gradcam", "odam"):  # products, and a sum of what is not scaled
        assert attribution.maps.shape in ((3, 8, 12), (3, 16, 24))
        assert attribution.maps.isfinite().all()
    else:
        close(attribution.maps, fuse([explained(name, net, wide, layers=(layer,)).maps for layer in ("stem", "conv")]))
