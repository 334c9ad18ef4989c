import itertools

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import HookSession
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.inspection.edits import parse_edits
from seewhy.explainers.inspection.sweep import sweep_images
from seewhy.explainers.methods.cam.ablation import AblationCAM, ReciproCAM
from tests import nets
from tests.explainers.test_cam import by_hand

KERNEL = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16


@pytest.fixture
def pictures(images: Tensor) -> Tensor:
    return images[:, :, :16, :24].clone()


def logits_with(net: nn.Module, picture: Tensor, layer: str, edit) -> Tensor:
    """Return the logits (K,) of the whole model with a layer's output (1, C, h, w) replaced."""
    with torch.no_grad(), HookSession(net) as hooks:
        hooks.after_forward(lambda module, args, output: edit(output.clone()), layer)
        return net(picture[None].clone())[0]


def output_of(net: nn.Module, picture: Tensor, layer: str) -> Tensor:
    results = []
    logits_with(net, picture, layer, lambda output: results.append(output.clone()) or output)
    return results[0]


def ablated(net: nn.Module, picture: Tensor, layer: str, score) -> Tensor:
    """Return the signed map, one channel at a time."""

    def zero(channel: int):
        def edit(output: Tensor) -> Tensor:
            output[:, channel] = 0
            return output

        return edit

    (activations,) = output_of(net, picture, layer)
    whole = score(logits_with(net, picture, layer, lambda output: output))
    falls = torch.stack(
        [whole - score(logits_with(net, picture, layer, zero(channel))) for channel in range(len(activations))]
    )
    return (falls[:, None, None] / whole.abs() * activations).sum(dim=0)


def reciprocal(net: nn.Module, picture: Tensor, layer: str, gaussian: bool) -> Tensor:
    """Return the maps (K, h, w) of all classes, one position at a time."""

    def keep(row: int, column: int):
        def edit(output: Tensor) -> Tensor:
            result = torch.zeros_like(output)
            if not gaussian:
                result[:, :, row, column] = output[:, :, row, column]
                return result
            for y in range(max(row - 1, 0), min(row + 2, output.shape[2])):
                for x in range(max(column - 1, 0), min(column + 2, output.shape[3])):
                    result[:, :, y, x] = output[:, :, row, column] * KERNEL[1 + y - row, 1 + x - column]
            return result

        return edit

    height, width = output_of(net, picture, layer).shape[2:]
    rows = [
        torch.stack([logits_with(net, picture, layer, keep(row, column)).softmax(0) for column in range(width)])
        for row in range(height)
    ]
    maps = torch.stack(rows).permute(2, 0, 1)
    return maps - maps.amin(dim=(1, 2), keepdim=True)


# By hand


@pytest.mark.parametrize("target", [0, 1])
def test_ablation_by_hand(target):
    """The mean of x is 1/2, so logits are 4/2 - 8/2 = -2 and 2; without A0 they are -4 and -2, without A1 2 and 4."""
    image = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]])
    falls = torch.tensor([[2.0, -4.0], [4.0, -2.0]])[target]
    attribution = AblationCAM(layers=("conv",), sign="signed").explain(by_hand(), image, torch.tensor([target]))
    torch.testing.assert_close(attribution.maps, (falls[0] * image[:, 0] - falls[1] * image[:, 0]) / 2)


def test_a_score_of_zero_leaves_the_map_finite_and_its_shape_alone(pictures):
    net, cam = nets.seeded(nets.Net), AblationCAM(layers=("conv",), sign="signed")
    before = cam.explain(net, pictures[:1], torch.tensor([1]))
    with torch.no_grad():
        net.head.bias[1] -= before.logits[0, 1]
    after = cam.explain(net, pictures[:1], torch.tensor([1]))
    assert abs(float(after.logits[0, 1])) < 1e-6
    assert nets.relative_error(after.maps / after.maps.abs().max(), before.maps / before.maps.abs().max()) < 1e-3
    with torch.no_grad():
        for value in net.head.parameters():
            value.zero_()
    assert not cam.explain(net, pictures).maps.any()


def test_what_is_divided_by_is_a_millionth_of_the_largest_logit_or_more():
    image, net = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]]), by_hand()
    net.head.bias = nn.Parameter(torch.tensor([2 + 2.0**-21, 0.0]))
    attribution = AblationCAM(layers=("conv",), sign="signed").explain(net, image, torch.tensor([0]))
    assert attribution.logits[0].tolist() == [2.0**-21, 2]
    torch.testing.assert_close(attribution.maps, 6 * image[:, 0] / 2e-6)


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 2.0**-20), (torch.bfloat16, 2.0**-8)])
def test_a_contrast_that_rounding_alone_changes_draws_nothing(dtype, share):
    """Both logits are 2 or so, and no channel changes the difference by more than a share of these."""
    image, net = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]]), by_hand()
    with torch.no_grad():
        net.head.weight[1] = net.head.weight[0] * (1 + share)
    targets = torch.tensor([0])
    attribution = AblationCAM(layers=("conv",), sign="signed").explain(net.to(dtype), image, targets, 1 - targets)
    assert not attribution.maps.any()
    assert attribution.change.tolist() == [0.0]


def test_the_largest_change_is_told():
    image = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]])
    attribution = AblationCAM(layers=("conv",)).explain(by_hand(), image, torch.tensor([0]))
    assert attribution.change.tolist() == [2.0]


def test_recipro_by_hand():
    """The head sees the mean: of one position its features over the number of positions, times the kernel's share."""
    image = torch.tensor([[[[1.0, 2.0, 0.5], [3.0, -4.0, 0.0]]]])
    net = by_hand()
    for gaussian in (False, True):
        share = (1.0, torch.tensor([[9.0, 12.0, 9.0]] * 2) / 16)[gaussian]
        logits = torch.stack([-4 * image[0, 0], 4 * image[0, 0]]) * share / 6
        expected = logits.softmax(dim=0)
        expected = expected - expected.amin(dim=(1, 2), keepdim=True)
        result = ReciproCAM(layers=("conv",), gaussian=gaussian).explain(net, image.expand(2, 1, 2, 3), torch.arange(2))
        torch.testing.assert_close(result.maps, expected)


# One channel or position at a time, whatever the net does

SHORT = (nets.AddsInto, nets.Skip, nets.Stochastic, nets.MasksLater)
"""The nets of `make test`."""

NETS = [
    (nets.Net, ["stem", "conv"]),
    (nets.InPlaceModule, ["stem", "conv", "relu"]),
    (nets.InPlaceFunction, ["stem", "conv"]),
    (nets.AddsInto, ["stem", "conv"]),
    (nets.PreActivation, ["stem", "conv", "relu", "branch"]),
    (nets.Stochastic, ["conv", "norm", "dropout"]),
    (nets.TupleInside, ["pair.conv"]),
    (nets.Skip, ["conv", "branch", "branch.0", "branch.1", "branch.2"]),
    (nets.InPlaceLater, ["conv", "branch"]),
    (nets.MasksLater, ["stem", "branch"]),
    (nets.ViewsLater, ["stem", "conv"]),
    (nets.ReturnsItsInput, ["stem", "conv", "branch"]),
    (nets.Remembers, ["conv"]),
]


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        pytest.param(kind, layers, marks=[] if kind in SHORT else [pytest.mark.slow], id=kind.__name__)
        for kind, layers in NETS
    ],
)
def test_every_row_is_what_the_whole_model_gives(kind, layers, images, untouched):
    net = untouched(nets.seeded(kind))
    pictures, targets, rivals = images[:2, :, :6, :8], torch.tensor([0, 2]), torch.tensor([1, 1])
    for layer in layers:
        ablation = AblationCAM(layers=(layer,), sign="signed")
        maps = ablation.explain(net, pictures, targets).maps
        contrast = ablation.explain(net, pictures, targets, rivals).maps
        recipro = ReciproCAM(layers=(layer,), sign="signed", gaussian=layer != "conv")
        positions = recipro.explain(net, pictures, targets).maps
        between = recipro.explain(net, pictures, targets, rivals).maps
        for row, (target, rival) in enumerate(zip(targets.tolist(), rivals.tolist(), strict=True)):
            expected = ablated(net, pictures[row], layer, lambda logits, target=target: logits[target])
            assert nets.relative_error(maps[row], expected) < 1e-3
            expected = ablated(
                net, pictures[row], layer, lambda logits, pair=(target, rival): logits[pair[0]] - logits[pair[1]]
            )
            assert nets.relative_error(contrast[row], expected) < 1e-3
            classes = reciprocal(net, pictures[row], layer, recipro.gaussian)
            assert nets.relative_error(positions[row], classes[target]) < 1e-3
            assert nets.relative_error(between[row], classes[target] - classes[rival]) < 1e-3


def test_ablation_weighs_as_a_sweep_ranks(images, untouched):
    net = untouched(nets.seeded(nets.Skip))
    image, layer = images[:1, :, :40, :32], "branch.0"
    sweep = sweep_images(net, image, parse_edits([{"layer": layer, "op": "zero"}])[0], Ask.single(2))
    falls = torch.zeros(len(sweep.channels))
    for effect in sweep.channels:
        falls[effect.channel] = -effect.score_change
    expected = (falls[:, None, None] * sweep.maps).sum(dim=0) / sweep.logits[2].abs()
    maps = AblationCAM(layers=(layer,), sign="signed").explain(net, image, torch.tensor([2])).maps
    assert nets.relative_error(maps[0], expected) < 1e-3


def test_what_returned_before_the_layer_is_not_computed_again(pictures):
    net, calls = nets.seeded(nets.Skip), []
    forward = net.stem.forward
    net.stem.forward = lambda images: calls.append(len(images)) or forward(images)
    try:
        for cam in (AblationCAM, ReciproCAM):
            cam(layers=("branch",)).explain(net, pictures)  # counts what a pass may hold
            calls.clear()
            cam(layers=("branch",)).explain(net, pictures)
            assert calls == [4, 1, 1, 1, 1], "once for the logits, once to note it for each picture"
    finally:
        del net.stem.forward


def test_a_hook_of_the_caller_is_not_applied_twice(pictures):
    """The replay's rows come out wrong then, so the whole model runs."""
    net = nets.seeded(nets.Net)
    handle = net.conv.register_forward_hook(lambda module, args, output: 2 * output)
    heatmap = AblationCAM(layers=("conv",), sign="signed").explain(net, pictures[:1], torch.tensor([2])).maps[0]
    expected = ablated(net, pictures[0], "conv", lambda logits: logits[2])
    handle.remove()
    assert nets.relative_error(heatmap, expected) < 1e-4


def test_a_channel_that_is_zero_needs_no_pass(pictures):
    net, rows = nets.seeded(nets.Net), []
    with torch.no_grad():
        for value in net.conv.parameters():
            value[1:4] = 0
    expected = ablated(net, pictures[0], "conv", lambda logits: logits[0])
    handle = net.head.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    heatmap = AblationCAM(layers=("conv",), sign="signed").explain(net, pictures[:1], torch.tensor([0])).maps[0]
    with torch.no_grad():
        for value in net.conv.parameters():
            value.zero_()
    blank = AblationCAM(layers=("conv",)).explain(net, pictures).maps
    handle.remove()
    assert nets.relative_error(heatmap, expected) < 1e-4
    assert rows[-2:] == [3, 4], "the unedited row and two channels; then the logits alone"
    assert not blank.any()


# What must be an error rather than a wrong map


@pytest.mark.parametrize("cam", [AblationCAM, ReciproCAM])
def test_a_net_that_takes_no_batch_says_so(cam, pictures, untouched):
    with pytest.raises(ModelOutputError, match="batch"):
        cam(layers=("conv",)).explain(untouched(nets.seeded(nets.OneByOne)), pictures[:1])


CALLS = itertools.count(2)


def mixing(_: nn.Module, features: Tensor) -> Tensor:
    """What a picture gets depends on those beside it."""
    return features.relu() / features.amax(dim=0, keepdim=True).abs() * len(features)


def counting(_: nn.Module, features: Tensor) -> Tensor:
    """Every forward pass differs."""
    return features.relu() * next(CALLS)


@pytest.mark.parametrize("cam", [AblationCAM, ReciproCAM])
@pytest.mark.parametrize("middle", [mixing, counting])
def test_a_net_whose_rows_are_not_independent_is_refused(cam, middle, pictures):
    net = nets.seeded(nets.Middle, middle)
    with pytest.raises(ModelOutputError, match="batch"):
        cam(layers=("stem",)).explain(net, pictures[:1])
    with pytest.raises(ModelOutputError, match="in place"):
        cam(layers=("same",)).explain(nets.seeded(nets.ReturnsItsInput), pictures[:1])


@pytest.mark.parametrize("cam", [AblationCAM, ReciproCAM])
def test_infinite_logits_without_a_part_name_the_layer(cam, pictures):
    with pytest.raises(ModelOutputError, match="'conv'"):
        cam(layers=("conv",)).explain(nets.seeded(nets.Middle, lambda _, features: 1 / features), pictures)
