"""Interventions: their effects on logits, maps and gradients by hand, and the state that they leave behind."""

import itertools
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers import GradCAM, HookSession, Saliency, errors, explain, intervene, sweep_channels
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import EditError, ExplainerError, NonFiniteError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection import intervene as interventions
from seewhy.explainers.inspection.capture import capture_images
from seewhy.explainers.inspection.edits import OPS, parse_edits
from seewhy.explainers.inspection.intervene import EditedPair, edit_images
from seewhy.explainers.inspection.sweep import sweep_images
from seewhy.explainers.inspection.trace import trace_images
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import predict
from seewhy.models import LoadedModel
from tests import nets
from tests.explainers.methods.test_votes import Strides
from tests.grids import few

CAT = Path(__file__).parents[2] / "examples" / "cat.png"
ROCKET = CAT.with_name("rocket.png")
CAM = GradCAM(layers=("conv",), sign="signed")
SALIENCY = Saliency()
ROWS = ((1.0, 2.0, 3.0), (4.0, 5.0, -6.0))
"""Of a `Weighted` net: on a picture of ones the feature maps are 6 and 3, and the logits 96 and 48."""


def edited(
    net: Any,
    images: Tensor,
    *edits: dict[str, Any],
    explainer: Explainer = CAM,
    target: int | None = 0,
    partner: Tensor | None = None,
) -> EditedPair:
    return edit_images(net, images, parse_edits(edits), explainer, Ask.single(target), partner)


def logits(net: Any, images: Tensor, *edits: dict[str, Any], **more: Any) -> list[float]:
    return edited(net, images, *edits, **more).after.logits[0].tolist()


def refused(net: Any, images: Tensor, *edits: dict[str, Any], **more: Any) -> EditError:
    with pytest.raises(EditError) as caught:
        edited(net, images, *edits, **more)
    return caught.value


@pytest.fixture
def weighted(untouched) -> nn.Module:
    return untouched(nets.Weighted(*ROWS))


ONES = torch.ones(1, 3, 4, 4)
ZERO = {"op": "zero", "layer": "bn2"}
TENSORS = ("input", "output", "grad_input", "grad_output")
GRADIENTS = ("grad_input", "grad_output", "parameter_grad")


# By hand


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"op": "zero", "channels": [0]}, [0, 48]),
        ({"op": "zero", "channels": [0, 1]}, [0, 0]),
        ({"op": "zero"}, [0, 0]),
        ({"op": "scale", "value": -0.5}, [-48, -24]),
        ({"op": "add", "value": 1, "channels": [1]}, [96, 64]),
        ({"op": "set", "value": 2}, [32, 32]),
        ({"op": "set", "value": 0, "region": [0, 0, 1, 4]}, [72, 36]),
        ({"op": "set", "value": 0, "region": [3, 3, 4, 4], "channels": [0]}, [90, 48]),
        ({"op": "clamp", "max": 4}, [64, 48]),
        ({"op": "clamp", "min": 4}, [96, 64]),
        ({"op": "negate", "channels": [1]}, [96, -48]),
        ({"op": "permute_channels"}, [48, 96]),
        ({"op": "mean", "over": "channel"}, [72, 72]),
        ({"op": "mean"}, [96, 48]),
        ({"op": "normalize", "to": "maximum"}, [16, 8]),
        ({"op": "normalize", "to": "sum"}, [16 * 6 / 144, 16 * 3 / 144]),
        ({"op": "normalize", "to": "norm"}, [16 * 6 / 720**0.5, 16 * 3 / 720**0.5]),
        ({"op": "swap"}, [192, 96]),
        ({"op": "swap", "channels": [1]}, [96, 96]),
        ({"op": "zero", "at": "input", "channels": [0]}, [80, -16]),
        ({"op": "zero", "at": "input", "channels": [2]}, [48, 144]),
        ({"op": "scale", "value": 2, "at": "input", "region": [0, 0, 2, 4]}, [144, 72]),
        ({"op": "swap", "at": "input", "channels": [0]}, [112, 112]),
        ({"op": "permute_channels", "at": "input", "channels": [0, 2]}, [96, 48]),
        ({"op": "zero", "calls": [0]}, [0, 0]),
    ],
    ids=nets.label,
)
def test_logits_by_hand(edit, expected, weighted):
    pair = edited(weighted, ONES, {"layer": "conv", **edit}, partner=2 * ONES)
    assert pair.before.logits[0].tolist() == [96, 48]
    assert pair.after.logits[0].tolist() == pytest.approx(expected, rel=1e-6)
    maps = pair.after.maps if "region" not in edit else pair.after.maps.mean(dim=(1, 2), keepdim=True)
    assert maps.flatten().tolist() == pytest.approx([expected[0] / 16] * maps.numel(), rel=1e-6) or (
        edit.get("at") == "output" or edit["op"] not in ("zero", "set")
    ), "the gradient is 1 for channel 0, so the map is its features"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"op": "scale", "value": 3}, 18.0),
        ({"op": "zero"}, 0.0),
        ({"op": "zero", "channels": [0]}, 0.0),
        ({"op": "zero", "channels": [1]}, 6.0),
        ({"op": "permute_channels"}, 3.0),
        ({"op": "set", "value": 1}, 9.0),
        ({"op": "negate"}, -6.0),
        ({"op": "zero", "region": [0, 0, 4, 1]}, 4.5),
        ({"op": "add", "value": 1, "channels": [1]}, 9.0),
    ],
    ids=nets.label,
)
def test_gradients_edited_at_the_layer_of_the_map_change_the_map(edit, expected, weighted):
    """The map of channels 6 and 3 with gradients 1 and 0."""
    pair = edited(weighted, ONES, {"layer": "conv", "at": "grad_output", **edit})
    assert torch.equal(pair.after.logits, pair.before.logits)
    assert torch.equal(pair.before.maps, torch.full((1, 4, 4), 6.0))
    torch.testing.assert_close(pair.after.maps, torch.full((1, 4, 4), expected))


@pytest.mark.parametrize("layer", ["relu", "conv", ""])
def test_gradients_edited_where_nothing_is_left_to_change_still_reach_the_map(layer, picture, untouched):
    net = untouched(nets.seeded(nets.InPlaceModule))
    edit = {"op": "scale", "value": 2, "layer": layer, "at": "grad_output"}
    for path in ("relu", "conv"):
        pair = edited(net, picture, edit, explainer=GradCAM(layers=(path,), sign="signed"))
        doubled = not (path == "relu" and layer == "conv")  # the gradient of the ReLU's output comes first
        torch.testing.assert_close(pair.after.maps, pair.before.maps * (2 if doubled else 1))


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([{"op": "scale", "value": 3, "at": "grad_output"}], 9.0),
        ([{"op": "scale", "value": -3, "at": "grad_input"}], 9.0),
        ([{"op": "zero", "at": "grad_input", "channels": [2]}], 2.0),
        ([{"op": "permute_channels", "at": "grad_output"}], 6.0),
        ([{"op": "set", "value": 1, "at": "grad_output"}], 7.0),
        ([{"op": "add", "value": 1, "at": "grad_input"}, {"op": "scale", "value": 2, "at": "grad_input"}], 8.0),
        ([{"op": "scale", "value": 2, "at": "grad_input"}, {"op": "add", "value": 1, "at": "grad_input"}], 7.0),
        ([{"op": "add", "value": 1, "at": "grad_output"}, {"op": "scale", "value": 2, "at": "grad_output"}], 18.0),
        ([{"op": "scale", "value": 2, "at": "grad_output"}, {"op": "add", "value": 1, "at": "grad_output"}], 11.0),
    ],
    ids=nets.label,
)
def test_saliency_of_edited_gradients_by_hand(edits, expected, weighted):
    """The gradient of logit 0 is its row, 1 2 3, and the map the largest magnitude."""
    pair = edited(weighted, ONES, *({"layer": "conv", **edit} for edit in edits), explainer=SALIENCY)
    assert torch.equal(pair.before.maps, torch.full((1, 4, 4), 3.0))
    torch.testing.assert_close(pair.after.maps, torch.full((1, 4, 4), expected))
    assert torch.equal(pair.after.logits, pair.before.logits)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_of_parameters_by_hand(frozen, weighted):
    """That of the target's row is 16 for each input channel, that of the other row zero."""
    weighted.requires_grad_(not frozen)
    edit = {"layer": "conv", "at": "parameter_grad"}
    pair = edited(
        weighted, ONES, {"op": "scale", "value": 2, "channels": [0], **edit}, {"op": "add", "value": 1, **edit}
    )
    first, second = pair.applied
    assert (first.edit, first.layer, first.call, first.parameter) == (0, "conv", None, "weight")
    assert (first.before.max, first.before.norm, first.before.zeros) == (16, pytest.approx(16 * 3**0.5), 0.5)
    assert (first.after.max, first.after.zeros) == (32, 0.5)
    assert (second.edit, second.before, second.after.max, second.after.min) == (1, first.after, 33, 1)
    assert first.before.shape == (2, 3, 1, 1)
    assert torch.equal(pair.after.maps, pair.before.maps)
    weighted.requires_grad_()


def test_edits_are_applied_in_their_order(weighted):
    add, double = ({"op": "add", "value": 1, "layer": "conv"}, {"op": "scale", "value": 2, "layer": "conv"})
    assert logits(weighted, ONES, add, double) == [(6 + 1) * 2 * 16, (3 + 1) * 2 * 16]
    assert logits(weighted, ONES, double, add) == [(6 * 2 + 1) * 16, (3 * 2 + 1) * 16]
    before = {"at": "input"}
    assert logits(weighted, ONES, add | before, double | before) == [24 * 16, 12 * 16]
    assert logits(weighted, ONES, double | before, add | before) == [18 * 16, 9 * 16]
    assert logits(weighted, ONES, add | {"layer": ""}, double | {"layer": ""}) == [194, 98]


def test_what_was_applied_is_told_edit_by_edit_and_call_by_call(picture, untouched):
    net = untouched(nets.seeded(nets.Twice))
    pair = edited(
        net,
        picture,
        {"op": "set", "value": 2, "layer": "again"},
        {"op": "scale", "value": 3, "layer": "again", "calls": [1]},
        {"op": "zero", "layer": "again", "at": "grad_output"},
        {"op": "set", "value": 5, "layer": "stem", "at": "input"},
    )
    facts = [(entry.edit, entry.layer, entry.call, entry.parameter, entry.after.max) for entry in pair.applied]
    assert facts == [
        (3, "stem", 0, None, 5),
        (0, "again", 0, None, 2),
        (0, "again", 1, None, 2),
        (1, "again", 1, None, 6),
        (2, "again", 1, None, 0),
        (2, "again", 0, None, 0),
    ]
    assert pair.applied[3].before == pair.applied[2].after
    assert pair.applied[0].before.shape == (1, 3, 16, 16)
    assert pair.applied[-1].before.norm == 0, "the gradient of the first call is of what the second got: nothing"


def test_the_target_is_the_most_probable_class_before_the_edits(weighted):
    pair = edited(weighted, ONES, {"op": "zero", "layer": "conv", "channels": [0]}, target=None)
    assert pair.before.targets.tolist() == pair.after.targets.tolist() == [0]
    assert pair.after.logits.argmax() == 1
    pair = edited(weighted, ONES, {"op": "zero", "layer": "conv", "channels": [0]}, target=1)
    assert torch.equal(pair.after.maps, torch.full((1, 4, 4), 3.0))


# Properties


KINDS = [
    *(nets.Net, nets.InPlaceModule, nets.InPlaceFunction, nets.AddsInto, nets.Twice),
    *(nets.PreActivation, nets.Stochastic, nets.TupleInside, nets.Skip, nets.InPlaceLater),
]


@pytest.mark.parametrize("trainable", few([False, True], short=[False]))
@pytest.mark.parametrize("kind", few(KINDS, short=[nets.AddsInto, nets.InPlaceLater, nets.Stochastic, nets.Twice]))
def test_edits_that_change_nothing_change_nothing(kind, trainable, picture, untouched):
    net = nets.seeded(kind).requires_grad_(trainable)
    untouched(net.train())
    ran = [path for path, _ in net.named_modules() if path not in ("unused", "pair") and "dropout" not in path]
    if kind is nets.TupleInside:
        ran = ["", "pair.conv"]
    same = [{"op": "scale", "value": 1}, {"op": "add", "value": 0}, {"op": "noise", "value": 0}]
    for explainer, path, at in itertools.product((CAM, SALIENCY), ran, TENSORS):
        if explainer is CAM and kind is nets.TupleInside:
            continue
        pair = edited(net, picture, *({"layer": path, "at": at, **edit} for edit in same), explainer=explainer)
        assert nets.relative_error(pair.after.logits, pair.before.logits) < 1e-6, (path, at)
        assert nets.relative_error(pair.after.maps, pair.before.maps) < 1e-5, (path, at)


@pytest.mark.parametrize("name", ["votes", "votes-detail", "refinecam", "layercam"])
def test_both_maps_are_of_the_methods_own_layers(name, untouched):
    net = untouched(nets.seeded(Strides).requires_grad_(False).eval())
    image = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    explainer = get_method(name).build({})
    pair = edited(net, image, {"op": "scale", "layer": "sixteen", "value": 1}, explainer=explainer, target=None)
    alone = explainer.explain(net, image)
    for side in (pair.before, pair.after):
        assert (side.layers, side.diagnostics) == (alone.layers, alone.diagnostics)
        assert nets.relative_error(side.maps, alone.maps) < 1e-5


def test_channels_together_are_all_channels(picture):
    net = nets.seeded(nets.Skip)
    for edit in ({"op": "negate"}, {"op": "noise", "value": 1, "seed": 4}, {"op": "mean"}):
        whole = logits(net, picture, {"layer": "conv", **edit})
        parts = logits(net, picture, *({"layer": "conv", "channels": [channel], **edit} for channel in range(5)))
        assert parts == pytest.approx(whole, rel=1e-5)


def test_swapping_everything_answers_as_for_the_other_picture(picture, images):
    partner = images[1:2, :, :16, :16]
    for kind in (nets.Net, nets.InPlaceModule, nets.Twice, nets.Skip):
        net = nets.seeded(kind)
        for layer, at in [("conv", "output"), ("conv", "input"), ("", "input"), ("stem", "output"), ("", "output")]:
            pair = edited(net, picture, {"op": "swap", "layer": layer, "at": at}, partner=partner)
            assert torch.equal(pair.after.logits, predict(net, partner)), (kind, layer, at)
    same = edited(net, picture, {"op": "swap", "layer": "conv"}, partner=picture)
    assert torch.equal(same.after.maps, same.before.maps)


@pytest.mark.parametrize("at", ["grad_output", "grad_input"])
def test_swapped_gradients_are_the_other_pictures(at, picture, images):
    net, partner = nets.seeded(nets.Net), images[1:2, :, :16, :16]
    pair = edited(net, picture, {"op": "swap", "layer": "stem", "at": at}, explainer=SALIENCY, partner=partner)
    assert torch.equal(pair.after.maps, SALIENCY.explain(net, partner, torch.tensor([0])).maps)
    assert torch.equal(pair.after.logits, pair.before.logits)
    (weight, bias) = edited(
        net, picture, {"op": "swap", "layer": "conv", "at": "parameter_grad"}, partner=partner
    ).applied
    expected = capture_images(net, partner, ("conv",), ("parameter_grad",), ask=Ask.single(0)).arrays
    for edit in (weight, bias):
        assert edit.after.norm == pytest.approx(float(expected[f"conv/parameter_grad/{edit.parameter}"].norm()))


@pytest.mark.parametrize("op", OPS)
def test_every_op_at_every_tensor_leaves_nothing_behind(op, picture, images, untouched):
    net = untouched(nets.seeded(nets.InPlaceModule).train())
    fields = {"scale": {"value": 2.0}, "add": {"value": 2.0}, "set": {"value": 2.0}, "noise": {"value": 2.0}}
    fields["clamp"] = {"min": -0.01, "max": 0.01}
    image, swapped = picture.clone(), images[1:2, :, :16, :16].clone()
    for at in (*TENSORS, "parameter_grad"):
        if op == "mean" and at == "parameter_grad":
            continue
        edit = {"op": op, "layer": "conv", "at": at, **fields.get(op, {})}
        pair = edited(net, image, edit, explainer=SALIENCY, partner=swapped)
        assert [entry.edit for entry in pair.applied] == [0] * (2 if at == "parameter_grad" else 1)
        if at in ("input", "output") and op != "noise":
            assert not torch.equal(pair.after.logits, pair.before.logits)
        if at.startswith("grad"):
            assert torch.equal(pair.after.logits, pair.before.logits)
        assert all(value.grad is None for value in net.parameters())
    assert torch.equal(image, picture)
    assert torch.equal(swapped, images[1:2, :, :16, :16])


def test_a_failed_request_leaves_nothing_behind(picture, untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    for edit in (
        {"op": "zero", "layer": "conv", "channels": [99]},
        {"op": "zero", "layer": "norm", "at": "grad_output", "channels": [99]},
        {"op": "zero", "layer": "norm", "at": "parameter_grad", "channels": [99]},
        {"op": "scale", "value": 1e308, "layer": "conv"},
        {"op": "zero", "layer": "unused"},
    ):
        refused(net, picture, edit)
    with pytest.raises(errors.TargetError):
        edited(net, picture, {"op": "zero", "layer": "conv"}, target=3)
    with pytest.raises(ZeroDivisionError):
        edited(untouched(nets.seeded(nets.Fails)), picture, {"op": "zero", "layer": "conv"})


def test_neither_the_picture_nor_the_other_is_modified_by_nets_that_work_in_place(untouched):
    net = untouched(nn.Sequential(nn.ReLU(inplace=True), nets.Weighted(*ROWS)).eval())
    image, partner = -ONES, -2 * ONES
    edited(net, image, {"op": "swap", "layer": "1"}, explainer=SALIENCY, partner=partner)
    sweep_images(net, image, parse_edits([{"op": "swap", "layer": "1.conv"}])[0], other=partner)
    assert torch.equal(image, -ONES)
    assert torch.equal(partner, -2 * ONES)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("trainable", [False, True])
def test_the_caller_may_have_switched_gradients_off(mode, trainable, picture, images, untouched):
    net = untouched(nets.seeded(nets.Net).requires_grad_(trainable))
    edits = [
        {"op": "swap", "layer": "conv", "channels": [1]},
        {"op": "swap", "layer": "conv", "at": "grad_output"},
        {"op": "scale", "value": 2, "layer": "stem", "at": "grad_input"},
    ]
    expected = edited(net, picture, *edits, explainer=SALIENCY, partner=images[1:2, :, :16, :16])
    with mode():
        image, partner = picture.clone(), images[1:2, :, :16, :16].clone()
        pair = edited(net, image, *edits, explainer=SALIENCY, partner=partner)
        swept = sweep_images(net, image, parse_edits(edits[:1])[0], other=partner)
    assert torch.equal(pair.after.maps, expected.after.maps)
    assert torch.equal(pair.after.logits, expected.after.logits)
    assert swept.channels[0].channel == 1


# Layers with several names or calls, or several tensors


def test_calls_count_from_zero_in_each_forward_pass(picture):
    net = nets.seeded(nets.Twice)
    by_calls = {}
    for calls in (None, [0], [1], [0, 1]):
        pair = edited(net, picture, {"op": "set", "value": 2, "layer": "again", "calls": calls})
        by_calls[str(calls)] = pair.after.logits
        assert [entry.call for entry in pair.applied] == (calls or [0, 1])
    first = by_calls.pop("[0]")
    for after in by_calls.values():
        assert torch.equal(after, net.head(torch.full((1, 5), 2.0))), "the second call forgets what the first said"
        assert not torch.equal(after, first)


@pytest.mark.parametrize("name", few(["relu", "blocks.0.relu", "blocks.1.relu"], short=["blocks.1.relu"]))
@pytest.mark.parametrize("at", TENSORS)
def test_a_module_may_be_named_by_any_of_its_names(name, at, picture, images, untouched):
    net, partner = untouched(nets.seeded(nets.SharedInside, 4, 4)), images[1:2, :, :16, :16]
    for edit in ({"op": "zero"}, {"op": "swap"}, {"op": "zero", "calls": [2]}):
        first = edited(net, picture, {"layer": "relu", "at": at, **edit}, explainer=SALIENCY, partner=partner)
        pair = edited(net, picture, {"layer": name, "at": at, **edit}, explainer=SALIENCY, partner=partner)
        assert torch.equal(pair.after.maps, first.after.maps)
        assert torch.equal(pair.after.logits, first.after.logits)
        assert pair.applied == first.applied
        assert {entry.layer for entry in pair.applied} == {"relu"}


def test_two_names_of_one_module_in_one_request(picture):
    net = nets.seeded(nets.SharedInside, 4, 4)
    double = [{"op": "scale", "value": 2, "layer": name, "calls": [1]} for name in ("relu", "blocks.1.relu")]
    pair = edited(net, picture, *double, explainer=SALIENCY)
    fourfold = edited(net, picture, double[0] | {"value": 4}, explainer=SALIENCY)
    torch.testing.assert_close(pair.after.logits, fourfold.after.logits)
    globbed = edited(net, picture, {"op": "scale", "value": 2, "layer": "*relu"}, explainer=SALIENCY)
    assert [(entry.layer, entry.call) for entry in globbed.applied] == [("relu", call) for call in range(4)]


def test_a_shared_parameter_is_edited_once(picture):
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(768, 2)).eval()
    net[2].weight = net[0].weight
    net = nets.Wrapped(net, lambda logits: logits)
    net.again = net.net[0]
    pair = edited(net, picture, {"op": "scale", "value": 2, "layer": "*", "at": "parameter_grad"}, explainer=SALIENCY)
    assert len(pair.applied) == len(list(net.parameters())) == 5
    assert all(entry.after.norm == pytest.approx(2 * entry.before.norm) for entry in pair.applied)


def test_one_of_several_parameters(picture):
    net = nets.seeded(nets.Stochastic)
    edit = {"op": "zero", "layer": "norm", "at": "parameter_grad"}
    assert [entry.parameter for entry in edited(net, picture, edit | {"parameter": "bias"}).applied] == ["bias"]
    assert sorted(entry.parameter for entry in edited(net, picture, edit).applied) == ["bias", "weight"]


def test_a_glob_edits_every_layer_that_it_matches(picture):
    net = nets.seeded(nets.Skip)
    pair = edited(net, picture, {"op": "zero", "layer": "branch.?"})
    assert [(entry.layer, entry.call) for entry in pair.applied] == [("branch.0", 0), ("branch.1", 0), ("branch.2", 0)]
    assert torch.equal(pair.after.logits, edited(net, picture, {"op": "zero", "layer": "branch"}).after.logits)


def test_a_layer_inside_one_with_keywords_and_tuples(picture, untouched):
    net = untouched(nets.seeded(nets.TupleInside))
    inner = edited(net, picture, {"op": "scale", "value": 0, "layer": "pair.conv"}, explainer=SALIENCY)
    assert not torch.equal(inner.after.logits, inner.before.logits)


def test_what_goes_into_an_in_place_module_is_edited_for_all_who_hold_it(picture):
    """As without edits: the ReLU overwrites the tensor that the skip connection takes."""
    net = nets.seeded(nets.PreActivation)
    pair = edited(net, picture, {"op": "zero", "layer": "relu", "at": "input"})
    with HookSession(net) as hooks:
        hooks.after_forward(lambda module, args, output: output * 0, "conv")
        expected = net(picture)
    torch.testing.assert_close(pair.after.logits, expected)


# Models without a declared layer, in half precision, with tokens


@pytest.mark.parametrize("name", ["deconvnet", "deeplift", "excitation-backprop", "guided-backprop", "lrp"])
def test_methods_of_other_rules_go_back_through_edits(name, picture, untouched):
    net = untouched(nets.seeded(nets.Net).requires_grad_(False))
    without = nets.seeded(nets.Net)
    with torch.no_grad():
        without.conv.weight[[1, 3]] = 0
        without.conv.bias[[1, 3]] = 0
    explainer = get_method(name).build({})
    pair = edited(net, picture, {"op": "zero", "layer": "conv", "channels": [1, 3]}, explainer=explainer)
    expected = explainer.explain(without, picture, torch.tensor([0]))
    assert nets.relative_error(pair.after.maps, expected.maps) < 1e-5
    assert nets.relative_error(pair.before.maps, expected.maps) > 0.01


def test_a_bare_module_finds_its_layer_without_the_edits():
    """The survey runs an empty picture, whose features cannot be normalised."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    nn.init.constant_(net[0].weight, 0.1)  # no dead feature maps
    pair = edited(net.eval(), torch.ones(1, 3, 8, 8), {"op": "normalize", "layer": "0"}, explainer=GradCAM())
    assert pair.after.layers == pair.before.layers == ("1",)
    assert not torch.equal(pair.after.logits, pair.before.logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=nets.label)
def test_other_precisions(dtype, picture, images):
    net = nets.seeded(nets.Net)
    edit = {"op": "swap", "layer": "conv", "channels": [0, 3]}
    expected = edited(net, picture, edit, partner=images[1:2, :, :16, :16])
    pair = edited(net.to(dtype), picture, edit, partner=images[1:2, :, :16, :16])
    assert nets.relative_error(pair.after.logits, expected.after.logits) < 0.05
    assert pair.applied[0].after.dtype == str(dtype).split(".")[1]


# What is refused


@pytest.mark.parametrize(
    ("edit", "place", "message"),
    [
        ({"layer": "conv2"}, "layer", "Near matches: conv"),
        ({"layer": "unused"}, "layer", "never runs"),
        ({"layer": "unus*"}, "layer", "never runs"),
        ({"layer": "unused", "at": "grad_output"}, "layer", "never runs"),
        ({"layer": "unused", "at": "parameter_grad"}, "layer", "never runs"),
        ({"channels": [5]}, "channels", "0 to 4"),
        ({"channels": [2**70]}, "channels", "0 to 4"),
        ({"at": "input", "channels": [4]}, "channels", "0 to 3"),
        ({"at": "grad_output", "channels": [5]}, "channels", "0 to 4"),
        ({"at": "grad_input", "channels": [4]}, "channels", "0 to 3"),
        ({"at": "parameter_grad", "channels": [5]}, "channels", "0 to 4"),
        ({"at": "parameter_grad", "region": [0, 0, 1, 1]}, "region", "not a feature map"),
        ({"region": [3, 0, 3, 4]}, "region", "8x8"),
        ({"region": [0, 0, 9, 1]}, "region", "8x8"),
        ({"layer": "head", "region": [0, 0, 1, 1]}, "region", "not a feature map"),
        ({"layer": "head", "at": "grad_input", "region": [0, 0, 1, 1]}, "region", "not a feature map"),
        ({"calls": [1]}, "calls", "only call is 0"),
        ({"calls": [0, 7], "at": "grad_output"}, "calls", "only call is 0"),
        ({"op": "swap"}, "op", "other"),
        ({"op": "swap", "at": "grad_output"}, "op", "other"),
        ({"at": "parameter_grad", "parameter": "wait"}, "parameter", "weight, bias"),
        ({"layer": "", "at": "parameter_grad"}, "layer", "none"),
        ({"op": "permute_channels", "channels": [3]}, "channels", "two or more"),
        ({"op": "mean", "layer": "head"}, "over", "no positions"),
        ({"op": "normalize", "at": "grad_input", "layer": "stem", "region": [0, 0, 1, 17]}, "region", "16x16"),
    ],
    ids=nets.label,
)
def test_what_does_not_fit_is_named(edit, place, message, picture, untouched):
    net = untouched(nets.seeded(nets.Net))
    good = {"op": "scale", "value": 2, "layer": "conv"}
    fault = refused(net, picture, good, {"op": "zero", "layer": "conv", **edit}, explainer=SALIENCY)
    assert fault.field == f"edits[1].{place}"
    assert message in str(fault)


class Beside(nets.Branched):
    """A convolution lies beside the way of the gradient."""

    def middle(self, features: Tensor) -> Tensor:
        self.branch(features)
        return features.relu() + self.branch(features.detach()).detach()


class Before(nets.Branched):
    """The gradient ends at the last convolution."""

    def middle(self, features: Tensor) -> Tensor:
        return self.branch(features.detach()).relu()


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize(
    ("kind", "edit", "place", "message"),
    [
        *((nets.TupleInside, {"layer": "pair", "at": at}, "layer", "2 tensors") for at in TENSORS),
        *((Before, {"layer": "conv", "at": at}, "layer", "No gradient") for at in GRADIENTS),
        *((Beside, {"layer": "branch", "at": at}, "layer", "No gradient") for at in GRADIENTS),
        (nets.Twice, {"layer": "again", "calls": [0, 2]}, "calls", "runs 2 times"),
        (
            nets.Twice,
            {"layer": "stem", "calls": [1]},
            "calls",
            "'stem' runs once for this picture: its only call is 0.",
        ),
        (nets.Net, {"layer": "conv", "op": "swap"}, "op", "shape"),
        (nets.Net, {"layer": "unused", "op": "swap"}, "layer", "never runs"),
    ],
    ids=nets.label,
)
def test_what_does_not_fit_a_peculiar_net_is_named(kind, edit, place, message, trainable, picture, images):
    net = nets.seeded(kind).requires_grad_(trainable)
    explainer = GradCAM(layers=("branch",)) if kind is Before else SALIENCY
    fault = refused(net, picture, {"op": "zero", **edit}, explainer=explainer, partner=images[:1])
    assert fault.field == f"edits[0].{place}"
    assert message in str(fault)
    assert str(fault) == f"{fault.field}: {fault.fault}"


def test_normalizing_zeros_is_refused(picture):
    net = nets.seeded(nets.InPlaceModule)
    zero = {"op": "zero", "layer": "conv"}
    for at, to in itertools.product(("output", "input"), ("sum", "norm", "maximum")):
        edit = {"op": "normalize", "layer": "relu", "at": at, "to": to}
        assert refused(net, picture, zero, edit).field == "edits[1].to"
    gradients = [
        {"op": "zero", "layer": "head", "at": "grad_input"},
        {"op": "normalize", "layer": "relu", "at": "grad_output"},
    ]
    assert refused(net, picture, *gradients).field == "edits[1].to"


def test_an_edit_without_a_number_that_makes_nan_is_told_what_else_to_do(picture, untouched):
    net = untouched(nets.seeded(nets.Middle, lambda _, features: features / features.amax(dim=(2, 3), keepdim=True)))
    zero = {"op": "zero", "layer": "conv", "channels": [1]}
    fault = refused(net, picture, {"layer": "head", "op": "scale", "value": 2}, zero)
    assert (fault.field, "choose another layer or op" in fault.fault) == ("edits[1]", True)
    with pytest.raises(EditError, match=r"edits\[0\]: With this edit the logits .* choose another layer or op"):
        sweep_images(net, picture, parse_edits([zero])[0])


@pytest.mark.parametrize(
    "edit",
    [
        {"op": "set", "value": 1e308},
        {"op": "set", "value": 3e38},
        {"op": "scale", "value": -1e300},
        {"op": "add", "value": 1e200},
        {"op": "noise", "value": 1e308},
        {"op": "clamp", "min": 1e308},
        {"op": "scale", "value": 1e300, "at": "grad_output"},
        {"op": "set", "value": 1e300, "at": "grad_input"},
        {"op": "set", "value": 1e308, "layer": "head"},
        {"op": "clamp", "min": 1e308, "max": 1.5e308},
    ],
    ids=nets.label,
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_huge_value_is_a_fault_of_the_edit_not_of_the_model(edit, index, picture, untouched):
    net = untouched(nets.seeded(nets.Net))
    edits = [{"layer": "head", "op": "scale", "value": 2}, {"layer": "stem", "op": "zero", "at": "parameter_grad"}]
    edits[index] = {"layer": "conv", **edit}
    fault = refused(net, picture, *edits, explainer=SALIENCY)
    field = {"max": "max", "min": "min"}.get([*edit][-1], "value")
    assert fault.field == f"edits[{index}].{field}"
    assert not isinstance(fault, NonFiniteError)


def test_the_models_own_infinity_is_no_fault_of_the_edits(picture):
    net = nets.seeded(nets.Net)
    with torch.no_grad():
        net.head.bias[0] = float("nan")
    with pytest.raises(NonFiniteError) as caught:
        edited(net, picture, {"op": "zero", "layer": "conv"})
    assert not isinstance(caught.value, EditError)


def test_another_picture_without_a_swap_is_refused(lite0: LoadedModel):
    for inspect, edits in ((intervene, [ZERO, {"op": "negate", "layer": "bn2"}]), (sweep_channels, ZERO)):
        with pytest.raises(EditError, match=r"^other: Only the op `swap` uses another picture"):
            inspect(lite0, CAT, edits, other=ROCKET)


def test_errors_of_the_explainer_stay_its_own(picture):
    net = nets.seeded(nets.Net)
    with pytest.raises(errors.LayerError):
        edited(net, picture, {"op": "zero", "layer": "conv"}, explainer=GradCAM(layers=("head",)))
    with pytest.raises(errors.ModelOutputError):
        edited(nets.seeded(nets.NoGradAfter), picture, {"op": "zero", "layer": "conv"}, explainer=SALIENCY)


# Threads


def test_all_kinds_of_work_in_eight_threads_on_one_module(frequent_switches, untouched, generator):
    net = nets.seeded(nets.Stochastic).requires_grad_(False)
    pictures = torch.randn(8, 1, 3, 16, 16, generator=generator)
    work: list[Callable[[Tensor], list[Tensor]]] = [
        lambda image: [edited(net, image, {"op": "zero", "layer": "norm", "channels": [1]}).after.maps],
        lambda image: [logits_of_sweep(net, image, {"op": "negate", "layer": "conv"})],
        lambda image: [*capture_images(net, image, ("*",), ("output", *GRADIENTS)).arrays.values()],
        lambda image: [CAM.explain(net, image).maps],
        lambda image: [edited(net, image, {"op": "negate", "layer": "norm", "at": "grad_output"}).after.maps],
        lambda image: [torch.tensor([norm(event) for event in trace_images(net, image).events])],
        lambda image: [logits_of_sweep(net, image, {"op": "mean", "layer": "norm", "at": "input"})],
        lambda image: [SALIENCY.explain(net, image).maps],
    ]
    alone = [task(image) for task, image in zip(work, pictures, strict=True)]
    untouched(net.train())
    start = Barrier(len(work))

    def repeat(number: int) -> list[list[Tensor]]:
        start.wait()
        return [work[number](pictures[number]) for _ in range(12)]

    with ThreadPoolExecutor(len(work)) as pool:
        for number, rounds in enumerate(pool.map(repeat, range(len(work)))):
            for results in rounds:
                assert len(results) == len(alone[number])
                for values, expected in zip(results, alone[number], strict=True):
                    assert nets.relative_error(values, expected) < 1e-5, number


def norm(event: Any) -> float:
    return sum(tensor.statistics.norm for tensor in event.tensors if tensor.statistics and event.call is not None)


def logits_of_sweep(net: nn.Module, image: Tensor, edit: dict[str, Any]) -> Tensor:
    effects = sweep_images(net, image, parse_edits([edit])[0], Ask.single(0)).channels
    return torch.tensor([effect.score for effect in sorted(effects, key=lambda effect: effect.channel)])


# The real model


def test_an_intervention_on_the_embedded_model(lite0: LoadedModel, untouched):
    untouched(lite0.module)
    effect = intervene(lite0, CAT, [ZERO], target="tabby")
    plain = explain(lite0, CAT, target="tabby")
    assert np.array_equal(effect.before.map, plain.map)
    assert effect.before.target == plain.target
    assert effect.after.target.label == "tabby"
    bias = float(lite0.module.classifier.bias[plain.target.index])
    assert effect.after.target.logit == pytest.approx(bias, rel=1e-4), "without features only the bias speaks"
    assert effect.score_change == pytest.approx(bias - plain.target.logit, rel=1e-4)
    assert effect.probability_change < 0
    assert effect.after.method == "gradcam"
    assert effect.after.layers == plain.layers
    assert effect.edits == parse_edits([ZERO])


@pytest.mark.slow
def test_the_channels_that_a_sweep_ranks_first_speak_for_the_class(lite0: LoadedModel, untouched):
    untouched(lite0.module)
    swept = sweep_channels(lite0, CAT, ZERO, target="tabby")
    assert len(swept.channels) == 1280
    changes = [effect.score_change for effect in swept.channels]
    assert changes == sorted(changes)
    assert changes[0] < -0.05 < 0.01 < changes[-1]
    first, last = ([effect.channel for effect in part] for part in (swept.channels[:10], swept.channels[-10:]))
    lowered, raised, intervention = (
        intervene(lite0, CAT, [ZERO | {"channels": channels}], target="tabby") for channels in (first, last, first[:1])
    )
    assert lowered.probability_change < -0.01
    assert raised.score_change > 0
    assert abs(lowered.score_change) > abs(raised.score_change)
    least = min(swept.channels, key=lambda effect: abs(effect.score_change))
    assert intervention.score_change == pytest.approx(changes[0], rel=1e-3, abs=1e-5)
    assert abs(intervention.score_change) > abs(least.score_change)
    assert abs(changes[0]) > abs(changes[-1])


def test_options_layers_and_the_other_picture_are_passed_on(lite0: LoadedModel):
    effect = intervene(
        lite0, CAT, [{"op": "swap", "layer": "bn2"}], target="tabby", other=ROCKET, layer="bn2", sign="signed"
    )
    rocket = explain(lite0, ROCKET, target="tabby", layer="bn2", sign="signed")
    assert effect.after.signed
    assert effect.after.target.logit == pytest.approx(rocket.target.logit, rel=1e-4)
    np.testing.assert_allclose(effect.after.map, rocket.map, rtol=1e-3, atol=1e-4 * np.abs(rocket.map).max())
    saliency = intervene(lite0, CAT, [{"op": "zero", "layer": "bn2", "at": "grad_output"}], method="saliency")
    assert not saliency.after.map.any()
    assert saliency.after.method == "saliency"
    with pytest.raises(errors.OptionError, match=r"There is no contrast here; .* ask about each with `target`"):
        intervene(lite0, CAT, [{"op": "zero", "layer": "bn2"}], against="tabby")


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        ({"edits": []}, "edits", r"of 1 to 64 edits\.$"),
        ({"edits": "zero"}, "edits", r"of 1 to 64 edits\.$"),
        ({"edits": ZERO}, "edits", r"^edits: It must be a list of 1 to 64 edits; put the single edit in \[ \]\.$"),
        ({"edits": parse_edits([ZERO])[0]}, "edits", r"of 1 to 64 edits; put the single edit in \[ \]\.$"),
        ({"edits": [ZERO] * 65}, "edits", r"of 1 to 64 edits\.$"),
        ({"edits": [ZERO | {"channels": [1280]}]}, "edits[0].channels", "0 to 1279"),
        ({"method": "gradcan"}, "method", "Near matches: gradcam"),
        ({"sing": "signed"}, "sing", "Near matches: sign"),
        ({"sign": "both"}, "sign", "'positive', 'signed' or 'absolute'"),
    ],
    ids=nets.label,
)
def test_wrong_arguments_are_named(arguments, field, message, lite0):
    with pytest.raises(ExplainerError, match=message) as caught:
        intervene(lite0, CAT, **{"edits": [ZERO], **arguments})
    assert caught.value.field == field


def test_an_intervention_is_saved_as_its_panel(lite0, tmp_path):
    effect = intervene(lite0, CAT, [{"layer": "bn2", "op": "zero", "channels": [112]}], target="tabby")
    assert repr(effect).startswith("Intervention(1 edit; tabby: 17.0% before")
    with Image.open(effect.save(tmp_path / "a.png", view="heatmap", max_side=300)) as panel:
        assert panel.size == effect.panel(view="heatmap", max_side=300).size
    assert max(panel.size) <= 300
    assert effect._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("side", "tile"), [(32, 224), (96, 288), (224, 224), (512, 512)])
def test_small_pictures_are_enlarged_by_a_whole_factor_until_captions_fit(lite0, monkeypatch, side, tile):
    picture = Image.open(CAT).convert("RGB").resize((side, side))
    effect = intervene(lite0, picture, [{"layer": "bn2", "op": "zero", "channels": [112]}], target="tabby")
    shortened = []
    shorten = render._shorten
    monkeypatch.setattr(render, "_shorten", lambda text, *room: shortened.append((text, shorten(text, *room))) or text)
    panel = effect.panel()
    assert (panel.width, effect.panel(view="side-by-side").width) == (3 * tile, 6 * tile)
    small = effect.panel(max_side=120)
    assert max(small.size) <= 120
    assert len(shortened) > 9
    assert all(before == after for before, after in shortened)


def test_a_difference_of_roundings_is_not_drawn(lite0, monkeypatch):
    """The first map may come from an accelerator, the second from PyTorch."""
    effect = intervene(lite0, CAT, [{"layer": "bn2", "op": "scale", "value": 1}])
    nothing = replace(effect.after, map=effect.before.map * np.float32(1 + 1e-6))
    something = replace(effect.after, map=effect.before.map * np.float32(1 + 1e-3))
    captions = []
    monkeypatch.setattr(interventions, "panel", lambda tiles, texts, **_: captions.append(texts) or tiles[2])
    style = Style("heatmap")
    panels = [interventions.intervention_panel(effect.before, after, style) for after in (nothing, something)]
    assert [texts[2] for texts in captions] == ["no difference: +0.0 points", "difference x1e+03: +0.0 points"]
    pixels = [np.asarray(panel.crop((200, 100, 260, 160))).reshape(-1, 3) for panel in panels]
    assert len(np.unique(pixels[0], axis=0)) == 1 < len(np.unique(pixels[1], axis=0))


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_edits_take_numbers_of_other_libraries(lite0, kind):
    plain = [{"layer": "bn2", "op": "scale", "value": 0.5, "channels": [3, 1]}]
    edits = [{"layer": "bn2", "op": "scale", "value": np.float32(0.5), "channels": kind([np.int64(3), np.int64(1)])}]
    assert parse_edits(edits) == parse_edits(plain)


def strides_inside(untouched: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A net whose one layer contains its grids of every 8, 16 and 32 pixels."""
    net = nets.seeded(Strides)
    stages = nn.Sequential(OrderedDict((name, getattr(net, name)) for name in ("eight", "sixteen", "last")))
    return untouched(nets.Pooled(net.head, stages).requires_grad_(False).eval())


@pytest.mark.parametrize("at", ["output", "grad_output"])
def test_a_layer_of_stages_is_edited_as_its_last_stage(at, untouched):
    net, images = strides_inside(untouched), torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    edit = {"at": at, "op": "scale", "value": 0.5, "channels": [0, 3, 5]}
    detail = get_method("votes-detail").build({})
    whole, last = (
        edited(net, images, {"layer": layer, **edit}, explainer=detail, target=None)
        for layer in ("layer", "layer.last")
    )
    assert torch.equal(whole.before.maps, last.before.maps)
    assert not torch.equal(whole.before.maps, whole.after.maps)
    assert not any(whole.after.diagnostics)
    torch.testing.assert_close(whole.after.maps, last.after.maps)


@pytest.mark.parametrize("name", ["votes", "votes-detail"])
def test_both_maps_are_by_one_method(lite0, name):
    noise = [{"layer": "global_pool", "op": "noise", "value": 1.0}]
    assert not explain(lite0, CAT, name).diagnostics
    effect, gradcam = (intervene(lite0, CAT, noise, method=method) for method in (name, "gradcam"))
    for side, expected in ((effect.before, gradcam.before), (effect.after, gradcam.after)):
        np.testing.assert_allclose(side.map, expected.map, atol=1e-5 * expected.map.max())
        assert [note.code for note in side.diagnostics] == ["votes-unavailable"]
        assert "only without the edits or only with them" in side.diagnostics[0].message
    assert effect.applied == gradcam.applied
    assert effect.panel().size == gradcam.panel().size


def test_hooks_of_another_thread_change_no_layers(lite0):
    started, done = Event(), Event()

    def record() -> None:
        with HookSession(lite0.module) as hooks:
            hooks.record("blocks")
            started.set()
            done.wait()

    alone = explain(lite0, CAT, "votes-detail", layer="blocks")
    with ThreadPoolExecutor() as pool:
        other = pool.submit(record)
        started.wait()
        try:
            beside = explain(lite0, CAT, "votes-detail", layer="blocks")
        finally:
            done.set()
        other.result()
    assert beside.layers == alone.layers == ("blocks.2", "blocks.4", "blocks.6")
