"""Sweeps: every row equals a single intervention on that channel, whatever the net does."""

import csv
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers import HookSession, Saliency, errors, intervene, sweep_channels
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import EditError, OptionError
from seewhy.explainers.execution import replay
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection import sweep as sweeping
from seewhy.explainers.inspection.edits import parse_edits
from seewhy.explainers.inspection.intervene import edit_images
from seewhy.explainers.inspection.sweep import ChannelEffect, Sweep, sweep_images, sweep_sheet
from seewhy.models import LoadedModel
from tests import nets
from tests.grids import few

CAT = Path(__file__).parents[2] / "examples" / "cat.png"
ROWS = ((1.0, 2.0, 3.0), (4.0, 5.0, -6.0))
ONES = torch.ones(1, 3, 4, 4)
CONV = {"op": "zero", "layer": "conv"}
OPS: list[dict[str, Any]] = [
    {"op": "zero"},
    {"op": "scale", "value": -2},
    {"op": "add", "value": 0.5},
    {"op": "set", "value": 0.3},
    {"op": "clamp", "min": -0.05, "max": 0.1},
    {"op": "noise", "value": 0.5, "seed": 3},
    {"op": "negate"},
    {"op": "mean"},
    {"op": "swap"},
]


@pytest.fixture
def pictures(images: Tensor) -> tuple[Tensor, Tensor]:
    return images[:1, :, :16, :16], images[1:2, :, :16, :16]


def swept(net: Any, image: Tensor, edit: dict[str, Any], target: int | None = None, **more: Any) -> Sweep:
    return sweep_images(net, image, parse_edits([edit])[0], Ask.single(target), **more)


def refused(net: Any, image: Tensor, edit: dict[str, Any], **more: Any) -> EditError:
    with pytest.raises(EditError) as caught:
        swept(net, image, edit, **more)
    return caught.value


def check(
    net: nn.Module,
    image: Tensor,
    edit: dict[str, Any],
    partner: Tensor | None = None,
    channels: list[int] | None = None,
    tolerance: float = 1e-5,
) -> Sweep:
    """Compare each row with a single intervention; the classes take turns as targets."""
    sweep = swept(net, image, {**edit, "channels": channels}, target=1, other=partner)
    by_channel = sorted(sweep.channels, key=lambda effect: effect.channel)
    assert [effect.channel for effect in by_channel] == (channels or list(range(len(by_channel))))
    assert sweep.target == 1
    changes = []
    for effect in by_channel:
        edits = parse_edits([{**edit, "channels": [effect.channel]}])
        single = edit_images(net, image, edits, Saliency(), Ask.single(1), partner)
        before, after = single.before.logits[0].double(), single.after.logits[0].double()
        close = tolerance * float(max(before.abs().max(), after.abs().max()))
        scores = torch.stack([after[1], after[1] - before[1]]).tolist()
        probabilities = torch.stack([after.softmax(0)[1], after.softmax(0)[1] - before.softmax(0)[1]]).tolist()
        assert [effect.score, effect.score_change] == pytest.approx(scores, abs=close), (edit, effect.channel)
        assert [effect.probability, effect.probability_change] == pytest.approx(probabilities, abs=tolerance)
        changes.append(float((after - before).abs().max()))
    assert max(changes) > 0, "an edit that changes nothing tests nothing"
    return sweep


def whole_models(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each batch that the whole model computes."""
    runs: list[int] = []
    run_all = replay.Replay.run_all
    monkeypatch.setattr(replay.Replay, "run_all", lambda self, size: runs.append(size) or run_all(self, size))
    return runs


# By hand


@pytest.mark.parametrize(
    ("edit", "target", "expected"),
    [
        ({"op": "zero"}, 0, [(0, -96.0), (1, 0.0)]),
        ({"op": "zero"}, 1, [(1, -48.0), (0, 0.0)]),
        ({"op": "scale", "value": 2}, 0, [(1, 0.0), (0, 96.0)]),
        ({"op": "add", "value": -1}, 0, [(0, -16.0), (1, 0.0)]),
        ({"op": "set", "value": 7}, 0, [(1, 0.0), (0, 16.0)]),
        ({"op": "swap"}, 0, [(1, 0.0), (0, 96.0)]),
        ({"op": "zero", "region": [0, 0, 1, 4]}, 0, [(0, -24.0), (1, 0.0)]),
        ({"op": "zero", "at": "input"}, 0, [(2, -48.0), (1, -32.0), (0, -16.0)]),
        ({"op": "zero", "at": "input"}, 1, [(1, -80.0), (0, -64.0), (2, 96.0)]),
        ({"op": "zero", "at": "input", "channels": [2, 0, 2]}, 0, [(2, -48.0), (0, -16.0)]),
        ({"op": "mean"}, 0, [(0, 0.0), (1, 0.0)]),
    ],
    ids=nets.label,
)
def test_ranks_by_hand(edit, target, expected, untouched):
    net = untouched(nets.Weighted(*ROWS))
    sweep = swept(net, ONES, {"layer": "conv", **edit}, target=target, other=2 * ONES)
    assert [(effect.channel, effect.score_change) for effect in sweep.channels] == expected
    assert sweep.logits.tolist() == [96, 48]
    assert sweep.layer == "conv"
    assert sweep.target == target
    assert sweep.probability == pytest.approx(float(torch.tensor([96.0, 48.0]).double().softmax(0)[target]))
    for effect in sweep.channels:
        assert effect.score == [96, 48][target] + effect.score_change
    assert sweep.edit == parse_edits([{"layer": "conv", **edit}])[0]


def test_the_target_is_the_most_probable_class_by_default():
    net = nets.Weighted(*reversed(ROWS))
    assert swept(net, ONES, {"op": "zero", "layer": "conv"}).target == 1


# Every row is a single intervention


@pytest.mark.parametrize("at", few(["input", "output"], short=["output"]))
@pytest.mark.parametrize("op", OPS, ids=lambda op: op["op"])
def test_every_op_that_can_be_swept(op, at, pictures, untouched):
    net = untouched(nets.seeded(nets.Skip))
    for layer in ("conv", "branch"):
        check(net, pictures[0], {"layer": layer, "at": at, **op}, pictures[1])
    check(net, pictures[0], {"layer": "branch.1", "at": at, "region": [1, 2, 6, 8], **op}, pictures[1])


SHORT = (nets.AddsInto, nets.Stochastic)
"""The nets of `make test`."""

LAYERS = [
    (nets.Net, ["stem", "conv", "head", ""]),
    (nets.InPlaceModule, ["stem", "conv", "relu"]),
    (nets.InPlaceFunction, ["stem", "conv"]),
    (nets.AddsInto, ["stem", "conv"]),
    (nets.PreActivation, ["stem", "conv", "relu", "branch"]),
    (nets.Stochastic, ["conv", "norm", "dropout"]),
    (nets.TupleInside, ["pair.conv"]),
    (nets.Skip, ["conv", "branch", "branch.0", "branch.1", "branch.2", "head"]),
    (nets.InPlaceLater, ["conv", "branch"]),
]


@pytest.mark.parametrize(("trainable", "train"), [(False, False), pytest.param(True, True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        pytest.param(kind, layers, marks=[] if kind in SHORT else [pytest.mark.slow], id=kind.__name__)
        for kind, layers in LAYERS
    ],
)
def test_nets_of_all_kinds(kind, layers, trainable, train, pictures, untouched):
    net = untouched(nets.seeded(kind).requires_grad_(trainable).train(train))
    for layer, at in itertools.product(layers, ("input", "output")):
        for op in ({"op": "negate"}, {"op": "set", "value": 0.7}):
            check(net, pictures[0], {"layer": layer, "at": at, **op})
    assert all(value.grad is None for value in net.parameters())


@pytest.mark.parametrize("calls", few([None, [0], [1], [0, 1]], short=[None, [1]]))
@pytest.mark.parametrize("at", ["input", "output"])
def test_a_layer_that_runs_twice(at, calls, pictures, untouched):
    net = untouched(nets.seeded(nets.Twice))
    for op in (OPS[0], OPS[1], OPS[5], OPS[8]):
        check(net, pictures[0], {"layer": "again", "at": at, "calls": calls, **op}, pictures[1])


@pytest.mark.parametrize(
    "calls", [[2], [1, 3], *(pytest.param(calls, marks=pytest.mark.slow) for calls in (None, [0], [1], [3], [0, 2]))]
)
@pytest.mark.parametrize("at", ["input", "output"])
def test_a_layer_that_ran_inside_other_modules_before(at, calls, pictures, untouched):
    """One ReLU: on the picture, inside of two blocks, and before the head."""
    net = untouched(nets.seeded(nets.SharedInside, 3, 3))
    for op, name in itertools.product((OPS[1], OPS[8]), ("relu", "blocks.1.relu")):
        check(net, pictures[0], {"layer": name, "at": at, "calls": calls, **op}, pictures[1])


def test_a_module_used_before_and_after_the_layer(pictures, monkeypatch):
    net, runs = nets.seeded(nets.SharedInside, 4, 5), whole_models(monkeypatch)
    layers = ("blocks.0.conv", "blocks.0", "blocks.1.conv", "blocks.1", "head")
    for layer, at in itertools.product(layers, ("input", "output")):
        check(net, pictures[0], {"layer": layer, "at": at, **OPS[1]})
    assert runs == []


def test_what_returned_before_the_layer_is_not_computed_again(pictures):
    net, calls = nets.seeded(nets.Skip), []
    forward = net.stem.forward
    net.stem.forward = lambda images: calls.append("computed") or forward(images)
    with net.stem.register_forward_hook(lambda *_: calls.append("stem")):
        swept(net, pictures[0], {"op": "zero", "layer": "branch"})
    assert calls.count("computed") == 2, "once for the logits, once to note it"
    assert calls.count("stem") == 3, "a user's hooks run in the replay too"


@pytest.mark.parametrize(
    ("kind", "layer", "expected"),
    [(nets.Skip, "branch", 0), (nets.InPlaceLater, "branch", 0), (nets.PreActivation, "branch", 1)],
)
def test_the_whole_model_runs_only_where_it_must(kind, layer, expected, pictures, monkeypatch):
    """The ReLU of the last one overwrites what the convolution had returned, which no output tells."""
    runs = whole_models(monkeypatch)
    check(nets.seeded(kind), pictures[0], {"layer": layer, **OPS[0]})
    assert len(runs) == expected


@pytest.mark.parametrize(
    ("limit", "most", "size"),
    [*(("BATCH", size, size) for size in (1, 2, 3, 5, 6)), ("_BATCH_VALUES", 2 * 3 * 16 * 16, 2)],
)
def test_batches_of_all_sizes(limit, most, size, pictures, monkeypatch):
    monkeypatch.setattr(sweeping, limit, most)
    net, ticks = nets.seeded(nets.InPlaceModule), []
    sweep = swept(net, pictures[0], CONV, progress=Progress(cancel=lambda: ticks.append(0)))
    assert len(ticks) == -(-5 // size)
    monkeypatch.undo()
    results = [(channel.channel, channel.score) for channel in sweep.channels]
    expected = [(channel.channel, channel.score) for channel in swept(net, pictures[0], CONV).channels]
    assert results == [(channel, pytest.approx(score, abs=1e-6)) for channel, score in expected]


def test_more_channels_than_one_batch(pictures):
    net = nn.Sequential(nn.Conv2d(3, 70, 3), nn.ReLU(inplace=True), nets.Weighted(*(((0.01,) * 70),) * 2))
    summary = check(net.eval(), pictures[0], {"op": "zero", "layer": "0"}, channels=[0, 1, 31, 32, 33, 63, 64, 69])
    whole = {row.channel: row.score for row in swept(net, pictures[0], {"op": "zero", "layer": "0"}, target=1).channels}
    assert len(whole) == 70
    assert all(whole[channel.channel] == pytest.approx(channel.score, rel=1e-5) for channel in summary.channels)


@pytest.mark.parametrize(
    "layer",
    few(["features.1", "features.2", "features.3.0.norm1", "norm", "permute", "head"], short=["features.2"]),
)
@pytest.mark.parametrize("at", ["input", "output"])
def test_grids_with_the_channels_last(layer, at, images, untouched):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torchvision.models.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=5).eval()
    untouched(net)
    image, partner = images[:2, None, :, :32, :32]
    count = {"features.1": 8, "features.2": 8 if at == "input" else 16, "head": 16 if at == "input" else 5}
    last = count.get(layer, 16) - 1
    for op in (OPS[1], OPS[7], OPS[8]):
        if op["op"] != "mean" or layer.startswith("features"):  # later the net takes means itself
            check(net, image, {"layer": layer, "at": at, **op}, partner, [0, 3, last])
    fault = refused(net, image, {"layer": layer, "at": at, "op": "zero", "channels": [last + 1]})
    assert fault.field == "edits[0].channels"


@pytest.mark.parametrize(
    "layer",
    few(
        ["conv_proj", "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1.mlp.0", "encoder.ln", "heads"],
        short=["conv_proj", "encoder.layers.encoder_layer_0", "heads"],
    ),
)
def test_tokens(layer, images, untouched):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=4).eval()
        nn.init.normal_(net.heads.head.weight)
    untouched(net)
    for op in (OPS[1], OPS[7], OPS[8]):
        if op["op"] != "mean" or layer != "heads":
            check(net, images[:1, :, :32, :32], {"layer": layer, **op}, images[1:2, :, :32, :32], [0, 1, 3])
    several = {"layer": "encoder.layers.encoder_layer_0.self_attention", "at": "input", "op": "zero"}
    assert refused(net, images[:1, :, :32, :32], several).field == "edits[0].layer"


@pytest.mark.slow
def test_a_resnet_at_every_kind_of_layer(resnet18, generator, untouched):
    untouched(resnet18)
    image, partner = torch.randn(2, 1, 3, 32, 32, generator=generator)
    for layer, channels in [
        ("conv1", [0, 63]),
        ("maxpool", [5]),
        ("layer2.0.downsample", [1, 2]),
        ("layer3.1.bn1", [0, 255]),
        ("layer4", [511]),
        ("avgpool", [7]),
        ("fc", [1, 999]),
    ]:
        check(resnet18, image, {"layer": layer, **OPS[3]}, partner, channels, tolerance=1e-4)
    for calls in ([0], [1]):
        check(resnet18, image, {"layer": "layer2.1.relu", "calls": calls, **OPS[3]}, partner, [3, 100], tolerance=1e-4)


@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16, torch.float64], short=[]))
def test_other_precisions(dtype, generator):
    """In half precision a row differs from the picture alone by more than the tolerance of float32."""
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = torchvision.models.resnet18(weights=None).eval().to(dtype)
        image = torch.randn(1, 3, 64, 64, generator=generator)
        sweep = swept(net, image, {"op": "zero", "layer": "layer4.0.conv1", "channels": list(range(40))})
        assert len(sweep.channels) == 40


# Nets that do more than their modules' outputs tell


def test_a_net_that_cannot_be_copied(pictures, untouched):
    net = untouched(nets.seeded(nets.Remembers))
    net(pictures[0])
    assert net.last.requires_grad
    for layer in ("stem", "conv", "head"):
        check(net, pictures[0], {"layer": layer, **OPS[1]})


@pytest.mark.parametrize(
    "op", [{"op": "set", "value": -50}, {"op": "set", "value": 50}, {"op": "negate"}], ids=nets.label
)
def test_writing_by_a_mask_into_what_rows_share(op, pictures):
    check(nets.seeded(nets.MasksLater), pictures[0], {"layer": "branch", **op})


@pytest.mark.parametrize(
    ("kind", "layers"), [(nets.ViewsLater, ("stem", "conv")), (nets.ReturnsItsInput, ("stem", "conv", "branch"))]
)
def test_views_and_aliases(kind, layers, pictures):
    for layer, at in itertools.product(layers, ("input", "output")):
        check(nets.seeded(kind), pictures[0], {"layer": layer, "at": at, **OPS[1]})


def test_a_net_that_takes_no_batch_says_so(pictures, untouched):
    with pytest.raises(errors.ModelOutputError, match="batch"):
        swept(untouched(nets.seeded(nets.OneByOne)), pictures[0], CONV)


def test_a_sweep_inside_a_session_of_the_caller_leaves_it_open(pictures):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.after_forward(lambda module, args, output: output * 2, "stem")
        hooks.record("conv", kinds=["output"])
        logits = net(pictures[0])
        sweep = swept(net, pictures[0], CONV)
        again = net(pictures[0])
    assert torch.equal(logits, again)
    assert torch.allclose(sweep.logits, logits[0])


def test_nothing_of_the_copy_is_left(pictures):
    net = nets.seeded(nets.Skip)
    copies: list[weakref.ref[nn.Module]] = []
    copy = replay.structure_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "structure_of", lambda module: copies.append(weakref.ref(twin := copy(module))) or twin)
        swept(net, pictures[0], {"op": "zero", "layer": "branch.0"})
        refused(net, pictures[0], {"op": "set", "value": 1e308, "layer": "branch.0"})
    gc.collect()
    assert len(copies) == 2
    assert [reference() for reference in copies] == [None, None]


def test_the_copy_shares_the_weights(pictures):
    net = nets.seeded(nets.Stochastic)
    copy = replay.structure_of(net)
    pointers = {value.data_ptr() for value in (*net.parameters(), *net.buffers())}
    assert {value.data_ptr() for value in (*copy.parameters(), *copy.buffers())} == pointers
    assert {id(part) for part in copy.modules()}.isdisjoint({id(part) for part in net.modules()})


# What is refused


@pytest.mark.parametrize(
    ("edit", "place", "message"),
    [
        ({"at": "grad_output"}, "at", "gradients do not change"),
        ({"at": "grad_input"}, "at", "gradients do not change"),
        ({"at": "parameter_grad"}, "at", "gradients do not change"),
        ({"op": "permute_channels"}, "op", "another op"),
        ({"op": "normalize"}, "op", "another op"),
        ({"op": "mean", "over": "channel"}, "op", "another op"),
        ({"op": "mean", "layer": "head"}, "over", "no positions"),
        ({"op": "swap"}, "op", "other"),
        ({"layer": "*"}, "layer", "name one"),
        ({"layer": "stem?"}, "layer", "no layer"),
        ({"layer": "nothing"}, "layer", "no layer"),
        ({"layer": "unused"}, "layer", "never"),
        ({"layer": "unused", "at": "input"}, "layer", "never"),
        ({"calls": [1]}, "calls", "once"),
        ({"calls": [0, 1]}, "calls", "once"),
        ({"calls": [1], "at": "input"}, "calls", "once"),
        ({"channels": [5]}, "channels", "0 to 4"),
        ({"channels": [0, 2**70]}, "channels", "0 to 4"),
        ({"channels": [4], "at": "input"}, "channels", "0 to 3"),
        ({"region": [3, 0, 3, 4]}, "region", "8x8"),
        ({"region": [0, 0, 8, 9]}, "region", "8x8"),
        ({"region": [0, 0, 1, 1], "layer": "head"}, "region", "not a feature map"),
    ],
    ids=nets.label,
)
def test_what_cannot_be_swept_is_named(edit, place, message, pictures, untouched):
    net = untouched(nets.seeded(nets.Net))
    fault = refused(net, pictures[0], CONV | edit)
    assert fault.field == f"edits[0].{place}"
    assert message in str(fault)


@pytest.mark.parametrize("at", ["input", "output"])
def test_several_tensors_are_refused(at, pictures):
    fault = refused(nets.seeded(nets.TupleInside), pictures[0], {"op": "zero", "layer": "pair", "at": at})
    assert (fault.field, "2 tensors" in str(fault)) == ("edits[0].layer", True)


def test_channels_that_only_the_first_call_has_are_refused(pictures):
    net = nets.seeded(nets.SharedInside, 5, 3)
    edit = {"op": "zero", "layer": "relu"}
    check(net, pictures[0], edit | {"calls": [1]})
    fault = refused(net, pictures[0], edit | {"calls": [1, 2]})
    assert fault.field == "edits[0].channels"
    check(net, pictures[0], edit | {"calls": [1, 2]}, channels=[0, 1, 2])


@pytest.mark.parametrize("op", ["set", "scale", "add", "noise", "clamp"])
@pytest.mark.parametrize("value", [1e308, 1e39])
def test_a_huge_value_is_a_fault_of_the_edit(op, value, pictures):
    fields = {"min": value} if op == "clamp" else {"value": value}
    fault = refused(nets.seeded(nets.Net), pictures[0], {"op": op, "layer": "conv", **fields})
    assert fault.field == f"edits[0].{next(iter(fields))}"


def test_errors_that_are_no_edits_fault(pictures):
    net = nets.seeded(nets.Net)
    for target in (3, -1):
        with pytest.raises(errors.TargetError):
            swept(net, pictures[0], CONV, target=target)
    with torch.no_grad():
        net.head.bias[0] = float("inf")
    with pytest.raises(errors.NonFiniteError):
        swept(net, pictures[0], CONV)


def test_a_check_may_end_the_sweep(pictures, untouched):
    with pytest.raises(ZeroDivisionError):
        swept(untouched(nets.seeded(nets.Net)), pictures[0], CONV, progress=Progress(cancel=lambda: 1 / 0))


def test_memory_that_runs_short_is_no_fault_of_the_model(pictures, monkeypatch):
    def short(self: object, size: int) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(replay.Replay, "run", short)
    with pytest.raises(torch.OutOfMemoryError):
        swept(nets.seeded(nets.Net), pictures[0], CONV)


# Threads


def test_a_copy_is_made_while_hooks_come_and_go(resnet18, frequent_switches):
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            with HookSession(resnet18) as hooks:
                hooks.before_forward(lambda *_: None, nn.Conv2d, with_kwargs=True)

    with ThreadPoolExecutor(3) as pool:
        disturbing = [pool.submit(disturb) for _ in range(3)]
        try:
            copies = [replay.structure_of(resnet18) for _ in range(15)]
        finally:
            stop.set()
        for future in disturbing:
            future.result()
    assert len(copies) == 15


# The real model


def test_a_sweep_of_the_embedded_model(lite0: LoadedModel, untouched, monkeypatch):
    untouched(lite0.module)
    runs = whole_models(monkeypatch)
    edit = {"op": "zero", "layer": "blocks.5", "channels": [0, 7, 100, 191]}
    sweep = sweep_channels(lite0, CAT, edit, target="tabby")
    assert runs == []
    assert sweep.target == lite0.labels.index("tabby")
    for effect in sweep.channels:
        single = intervene(lite0, CAT, [edit | {"channels": [effect.channel]}], target="tabby")
        assert effect.score == pytest.approx(single.after.target.logit, rel=1e-4)
        assert effect.probability_change == pytest.approx(single.probability_change, abs=1e-4)
        assert sweep.probability == pytest.approx(single.before.target.probability, abs=1e-5)
    swapped = sweep_channels(lite0, CAT, edit | {"op": "swap"}, other=CAT)
    assert max(abs(effect.score_change) for effect in swapped.channels) < 1e-3
    with pytest.raises(EditError) as caught:
        sweep_channels(lite0, CAT, {"op": "zero"})
    assert caught.value.field == "edits[0].layer"


def test_a_sweep_is_saved_as_a_table_or_drawn(lite0: LoadedModel, tmp_path):
    sweep = sweep_channels(lite0, CAT, {"op": "zero", "layer": "bn2", "channels": [112, 795, 90]}, target="tabby")
    with sweep.save(tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [ChannelEffect(int(row.pop("channel")), **{key: float(row[key]) for key in row}) for row in rows] == [
        *sweep.channels
    ]
    upright = read_picture(CAT)
    geometry = lite0.preprocess.geometry(upright.width, upright.height)
    expected = sweep_sheet(sweep, 2, upright, geometry, Style(max_side=300))
    with Image.open(sweep.save(tmp_path / "a.png", top=2, max_side=300)) as image:
        assert np.array_equal(np.asarray(image), np.asarray(expected))
    with pytest.raises(OptionError, match="csv"):
        sweep.save(tmp_path / "a.npz")
    with pytest.raises(OptionError, match="leave 'top' out"):
        sweep.save(tmp_path / "b.csv", top=2)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OptionError, match="top is 0"):
        sweep.sheet(top=0)
    with pytest.raises(errors.LayerError, match="grid"):
        sweep_channels(lite0, CAT, {"op": "zero", "layer": "classifier", "channels": [3]}).sheet()
    with pytest.raises(errors.PictureError, match="only a tensor"):
        replace(sweep, canvas=None).sheet()
