"""Traces: the events in their order, and the exact summaries of hand-made nets."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import trace
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import LayerError, ModelOutputError, OptionError, TargetError
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.selection import is_leaf
from seewhy.explainers.inspection import trace as tracing
from seewhy.explainers.inspection.statistics import statistics
from seewhy.explainers.inspection.trace import EXPLODING, VANISHING, DeadMaps, Summary, Trace, trace_images
from seewhy.models import LoadedModel
from tests import nets

CAT = Path(__file__).parents[2] / "examples" / "cat.png"
ROWS = ((1.0, 2.0, 3.0), (4.0, 5.0, -6.0))
ONES = torch.ones(1, 3, 4, 4)
NOTHING = Summary((), (), (), (), (), ())


def chain(scale: float = 1.0) -> nn.Sequential:
    """Return two convolutions and a head whose weights are scaled; a gradient passes all of them."""
    net = nets.seeded(nn.Sequential, nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten())
    net.append(nn.Linear(4 * 16, 2))
    with torch.no_grad():
        for part, weight in ((net[0], 0.1), (net[2], 0.1), (net[4], scale)):
            nn.init.constant_(part.weight, weight)
            nn.init.constant_(part.bias, 0.1)
    return net.eval()


def events(timeline: Trace, *kinds: str) -> list[tuple[str, int | None]]:
    return [(event.path, event.call) for event in timeline.events if event.kind in kinds]


def check_order(timeline: Trace) -> None:
    """Check what holds for every trace."""
    assert [event.order for event in timeline.events] == list(range(len(timeline.events)))
    times = [event.microseconds for event in timeline.events]
    assert times == sorted(times)
    assert times[0] >= 0
    kinds_of: dict[tuple[str, int | None], list[str]] = {}
    for event in timeline.events:
        assert (event.call is None) == (event.kind == "parameter_gradient")
        kinds_of.setdefault((event.path, event.call), []).append(event.kind)
    legal = ["before_forward", "after_forward", "output_gradient", "full_backward"]
    for (path, call), kinds in kinds_of.items():
        if call is None:
            continue
        assert kinds == [kind for kind in legal if kind in kinds], (path, call)
        assert kinds[:2] == legal[:2], (path, call)
        assert call == 0 or (path, call - 1) in kinds_of


# Events


def test_a_trace_by_hand(untouched):
    net = untouched(nets.Weighted(*ROWS).train())
    timeline = trace_images(net, ONES, ask=Ask.single(1))
    check_order(timeline)
    rows = [
        (event.kind, event.path, event.type, event.call, [tensor.name for tensor in event.tensors])
        for event in timeline.events
    ]
    assert rows[:3] == [
        ("before_forward", "conv", "Conv2d", 0, ["input"]),
        ("after_forward", "conv", "Conv2d", 0, ["output"]),
        ("output_gradient", "conv", "Conv2d", 0, ["grad_output"]),
    ]
    assert sorted(rows[3:]) == [
        ("full_backward", "conv", "Conv2d", 0, ["grad_input"]),
        ("parameter_gradient", "conv", "Conv2d", None, ["weight"]),
    ]
    by_name = {tensor.name: tensor.statistics for event in timeline.events for tensor in event.tensors}
    assert by_name["input"] == statistics(ONES)
    assert by_name["output"] == statistics(torch.tensor([6.0, 3.0])[None, :, None, None].expand(1, 2, 4, 4))
    assert by_name["grad_output"] == statistics(torch.tensor([0.0, 1.0])[None, :, None, None].expand(1, 2, 4, 4))
    assert by_name["grad_input"] == statistics(torch.tensor(ROWS[1])[None, :, None, None].expand(1, 3, 4, 4))
    assert by_name["weight"] == statistics(torch.tensor([[0.0] * 3, [16.0] * 3])[:, :, None, None])
    assert (timeline.target, timeline.logits.tolist(), timeline.summary) == (1, [96, 48], NOTHING)
    assert trace_images(net, ONES).target == 0


@pytest.mark.parametrize("trainable", [False, True])
def test_forward_runs_down_and_backward_up(trainable, untouched):
    net = untouched(chain().requires_grad_(trainable))
    timeline = trace_images(net, ONES)
    check_order(timeline)
    names = ["0", "1", "2", "3", "4"]
    forward = [(kind, name) for name in names for kind in ("before_forward", "after_forward")]
    assert [(event.kind, event.path) for event in timeline.events[:10]] == forward
    assert events(timeline, "output_gradient") == [(name, 0) for name in reversed(names)]
    assert events(timeline, "full_backward") == [(name, 0) for name in reversed(names)]
    assert sorted(events(timeline, "parameter_gradient")) == [(name, None) for name in ("0", "0", "2", "2", "4", "4")]
    position = {(event.kind, event.path): event.order for event in timeline.events}
    for name, below in itertools.pairwise(reversed(names)):
        assert position["full_backward", name] < position["output_gradient", below]
    for name in ("0", "2", "4"):
        assert position["parameter_gradient", name] > position["output_gradient", name]


@pytest.mark.parametrize("kind", [nets.InPlaceModule, nets.AddsInto, nets.PreActivation, nets.Stochastic, nets.Skip])
def test_every_net_is_traced_and_left_as_it_was(kind, picture, untouched):
    net = untouched(nets.seeded(kind).requires_grad_(False).train())
    timeline = trace_images(net, picture)
    check_order(timeline)
    ran = {path for path, part in net.named_modules() if is_leaf(part)} - {"unused"}
    assert {event.path for event in timeline.events} == ran
    assert timeline.summary.not_run == ("unused",)
    assert timeline.summary.without_gradient == timeline.summary.non_finite == ()
    assert torch.equal(timeline.logits, net.eval()(picture)[0])
    net.train()


def test_calls_are_numbered(picture):
    timeline = trace_images(nets.seeded(nets.Twice), picture)
    check_order(timeline)
    calls = {"before_forward": [0, 1], "after_forward": [0, 1], "output_gradient": [1, 0], "full_backward": [1, 0]}
    for kind, expected in {**calls, "parameter_gradient": [None, None]}.items():
        assert [call for path, call in events(timeline, kind) if path == "again"] == expected, kind


def test_chosen_layers_only(picture):
    net = nets.seeded(nets.Skip)
    timeline = trace_images(net, picture, layers=("", "branch", nn.Linear))
    check_order(timeline)
    assert events(timeline, "before_forward") == [("", 0), ("branch", 0), ("head", 0)]
    assert events(timeline, "after_forward") == [("branch", 0), ("head", 0), ("", 0)]
    assert timeline.events[0].type == "Skip"
    assert sorted({path for path, _ in events(timeline, "parameter_gradient")}) == ["head"], "own parameters only"
    inside = trace_images(net, picture, layers=("branch.?",))
    assert events(inside, "before_forward") == [("branch.0", 0), ("branch.1", 0), ("branch.2", 0)]


def test_several_tensors_are_told_apart_by_their_places(picture):
    """Called with a picture and, by keyword, a number and a tensor."""
    timeline = trace_images(nets.seeded(nets.TupleInside), picture, layers=("pair",))
    names = {
        event.kind: [tensor.name for tensor in event.tensors] for event in timeline.events if event.call is not None
    }
    assert names["before_forward"] == ["input.0", "input.2"]
    assert names["after_forward"] == ["output.0", "output.1"]
    (backward,) = [event for event in timeline.events if event.kind == "full_backward"]
    shapes = {tensor.name: tensor.statistics and tensor.statistics.shape for tensor in backward.tensors}
    assert shapes == {"grad_input.0": (1, 3, 16, 16), "grad_input.1": None, "grad_input.2": (1, 1, 14, 14)}


def test_a_tensor_is_looked_at_again_only_where_it_was_modified(picture):
    """One net doubles, in place, the very tensor that one module returned and the next one gets."""
    parts = {"conv": nn.Conv2d(3, 2, 1), "first": nn.ReLU(inplace=True), "second": nn.Tanh()}
    net = nets.Wired(lambda net, x: net.second(net.first(net.conv(x)).mul_(2)).flatten(1), **parts)
    timeline = trace_images(net, picture)
    norms = {(event.kind, event.path): event.tensors[0].statistics.norm for event in timeline.events}
    assert norms["before_forward", "second"] == pytest.approx(2 * norms["after_forward", "first"])
    timeline = trace_images(chain(), ONES)
    by_event = {(event.kind, event.path): event.tensors[0].statistics for event in timeline.events}
    for before, after in itertools.pairwise("01234"):
        assert by_event["output_gradient", before] is by_event["full_backward", after]


def test_the_time_of_tracing_itself_is_left_out(picture, monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def slow(tensor: Tensor) -> object:
        clock.now += 1.0
        return statistics(tensor)

    monkeypatch.setattr(tracing, "statistics", slow)
    monkeypatch.setattr(tracing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    timeline = trace_images(nets.seeded(nets.Net), picture)
    assert clock.now > len(timeline.events) / 2
    assert {event.microseconds for event in timeline.events} == {0}


# The summary


def test_a_healthy_net_has_nothing_to_tell():
    assert trace_images(chain(), ONES).summary == NOTHING


def test_dead_maps(untouched):
    net = chain()
    with torch.no_grad():
        net[0].bias[1] = -100
        net[0].bias[3] = -100
        net[2].weight[2] = 0
        net[2].bias[2] = 0
    timeline = trace_images(untouched(net), ONES)
    assert timeline.summary.dead_maps == (DeadMaps("1", (1, 3), 4), DeadMaps("2", (2,), 4))
    alive_in_one_cell = ONES.clone()
    alive_in_one_cell[..., 0, 0] = 1e4
    assert trace_images(net, alive_in_one_cell).summary.dead_maps == (DeadMaps("2", (2,), 4),)


def test_maps_are_dead_only_if_dead_in_every_call(picture):
    net = nets.seeded(nets.SharedInside, 4, 4)
    with torch.no_grad():
        net.blocks[0].conv.bias[:] = torch.tensor([-100.0, -100.0, 1.0, 1.0])
        net.blocks[1].conv.bias[:] = torch.tensor([-100.0, 1.0, -100.0, 1.0])
    by_path = {entry.path: entry for entry in trace_images(net, picture, layers=("relu",)).summary.dead_maps}
    assert by_path["relu"].channels == (0,)
    net.relu = nn.ReLU()
    for block in net.blocks:
        block.relu = nn.ReLU()
    results = {entry.path: entry.channels for entry in trace_images(net, picture).summary.dead_maps}
    assert results == {"blocks.0.relu": (0, 1), "blocks.1.relu": (0, 2), "relu": results.get("relu", ())}


def test_what_passes_maps_on_or_has_none_is_not_called_dead():
    net = nn.Sequential(
        nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Identity(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net.append(nn.Linear(2, 2))
    with torch.no_grad():
        nn.init.constant_(net[0].weight, 0.1)
        net[0].bias[:] = torch.tensor([-100.0, 1.0])
    result = trace_images(net.eval(), ONES).summary
    assert result.dead_maps == (DeadMaps("1", (0,), 2),)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-5, 1e-3, 1e3, 2e3, 1e6])
def test_vanishing_and_exploding(scale):
    """The gradient of the second convolution has the norm 8 * scale, that of the first 3.2 times less."""
    timeline = trace_images(chain(scale), ONES)
    gradients = [event for event in timeline.events if event.kind == "output_gradient"]
    norms = {event.path: event.tensors[0].statistics.norm for event in gradients}
    assert norms["2"] == pytest.approx(8 * scale, rel=1e-5)
    assert norms["4"] == 1
    summary = timeline.summary
    assert summary.vanishing == tuple(path for path in ("0", "1", "2", "3") if norms[path] < VANISHING)
    assert summary.exploding == tuple(path for path in ("0", "1", "2", "3") if norms[path] > EXPLODING)
    assert ("2" in summary.vanishing, "2" in summary.exploding) == (8 * scale < VANISHING, 8 * scale > EXPLODING)
    assert len(summary.vanishing) == 4 or scale > 1e-6
    assert summary.without_gradient == summary.non_finite == ()


def detached(net: nn.Module, features: Tensor) -> Tensor:
    """Run a convolution beside the way of the gradient, and one behind a detach."""
    net.beside(features)
    return net.relu(features) + net.before(features).detach()


@pytest.mark.parametrize("trainable", [False, True])
def test_without_gradient(trainable, picture):
    net = nets.Middle(detached, beside=nn.Conv2d(5, 5, 1), before=nn.Conv2d(5, 5, 1), relu=nn.ReLU())
    result = trace_images(net.eval().requires_grad_(trainable), picture).summary
    assert result.without_gradient == ("beside", "before")
    assert result.not_run == ("unused",)
    assert result.vanishing == result.exploding == ()


def test_not_run_lists_each_module_once_and_none_that_ran_under_another_name(picture):
    net = nets.seeded(nets.SharedInside, 4, 4)
    timeline = trace_images(net, picture)
    check_order(timeline)
    assert timeline.summary.not_run == ()
    assert [call for path, call in events(timeline, "before_forward") if path.endswith("relu")] == [0, 1, 2, 3]
    ran = {path for path, _ in events(timeline, "before_forward")}
    assert ran == {"relu", "blocks.0.conv", "blocks.1.conv", "head"}
    net.other = nn.Linear(1, 1)
    net.again = net.other
    net.blocks[0].same = net.blocks[0].conv
    timeline = trace_images(net, picture)
    assert timeline.summary.not_run == ("other",)
    assert events(timeline, "parameter_gradient").count(("blocks.0.conv", None)) == 2, "weight and bias"
    assert "blocks.0.same" not in {event.path for event in timeline.events}


def test_a_module_whose_forward_is_called_directly_is_not_seen(picture):
    net = nets.Middle(lambda net, features: net.relu.forward(features), relu=nn.ReLU())
    assert trace_images(net.eval(), picture).summary.not_run == ("unused", "relu")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values(value):
    net = chain()
    with torch.no_grad():
        net[2].bias[0] = value
    timeline = trace_images(net, ONES, ask=Ask.single(0))
    assert timeline.summary.non_finite == ("2", "3", "4")
    assert timeline.summary.vanishing == timeline.summary.exploding == ()
    (output,) = [event for event in timeline.events if (event.kind, event.path) == ("after_forward", "2")]
    assert (output.tensors[0].statistics.nan, output.tensors[0].statistics.inf) == ((16, 0), (0, 16))[value == math.inf]


@pytest.mark.parametrize(("factor", "scale", "exploding"), [(1.0, 0.0, ("conv",)), (0.0, 1.0, ())])
def test_gradients_of_infinity_and_nan_are_non_finite_and_nan_is_neither_small_nor_large(factor, scale, exploding):
    """The gradient of the square root is infinite at zero, and times zero it is NaN."""
    conv = nets.pointwise([[scale] * 3] * 2, [scale] * 2)
    net = nets.Wired(lambda net, images: torch.sqrt(net.conv(images) * factor).sum(dim=(2, 3)), conv=conv)
    summary = trace_images(net, ONES, ask=Ask.single(0)).summary
    assert (summary.non_finite, summary.exploding) == (("conv",), exploding)
    assert summary.vanishing == summary.without_gradient == ()


# What is refused, other callers and threads


def test_what_is_refused(picture, untouched):
    net = untouched(nets.seeded(nets.Net))
    for target in (3, -1):
        with pytest.raises(TargetError):
            trace_images(net, picture, ask=Ask.single(target))
    with pytest.raises(LayerError, match="Near matches: conv"):
        trace_images(net, picture, layers=("conf",))
    with pytest.raises(ZeroDivisionError):
        trace_images(untouched(nets.seeded(nets.Fails)), picture)
    detached = trace_images(nets.Wrapped(net, lambda logits: logits.detach()), picture)
    assert set(detached.summary.without_gradient) == {"net.stem", "net.conv", "net.head"}
    with pytest.raises(LayerError, match="'unused' never runs"):
        trace_images(net, picture, layers=("unused",))
    with pytest.raises(ModelOutputError):
        trace_images(nets.Wrapped(net, lambda logits: None), picture)


@pytest.mark.parametrize(("allowed", "last"), [(0, "before_forward"), (3, "after_forward"), (9, "full_backward")])
def test_a_check_may_end_the_trace_forward_and_backward(allowed, last, picture, untouched):
    calls = itertools.count()

    def check() -> None:
        if next(calls) == allowed:
            raise TimeoutError

    net = untouched(nets.seeded(nets.Net))
    assert trace_images(net, picture).events[allowed].kind == last
    with pytest.raises(TimeoutError):
        trace_images(net, picture, progress=Progress(cancel=check))
    assert next(calls) == allowed + 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_whatever_the_callers_mode(mode, picture, untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    expected = trace_images(net, picture, ask=Ask.single(1))
    with mode():
        timeline = trace_images(net, picture.clone(), ask=Ask.single(1))
    assert comparable(timeline) == comparable(expected)


def comparable(timeline: Trace) -> list[tuple[object, ...]]:
    return [(event.kind, event.path, event.type, event.call, event.tensors) for event in timeline.events]


# The real model


def test_a_trace_of_the_embedded_model(lite0: LoadedModel, untouched):
    untouched(lite0.module)
    timeline = trace(lite0, CAT, target="tabby")
    check_order(timeline)
    assert timeline.target == lite0.labels.index("tabby")
    leaves = [path for path, part in lite0.module.named_modules() if is_leaf(part)]
    ran = [path for path, _ in events(timeline, "before_forward")]
    assert sorted(ran) == sorted(set(leaves) - set(timeline.summary.not_run))
    assert timeline.summary.without_gradient == timeline.summary.non_finite == ()
    (logits,) = [event for event in timeline.events if (event.kind, event.path) == ("output_gradient", "classifier")]
    assert logits.tensors[0].statistics.norm == 1
    assert logits.tensors[0].statistics.zeros == pytest.approx(0.999)
    assert trace(lite0, CAT, layers=("bn2",)).events[0].path == "bn2"


def test_a_trace_is_saved_as_a_drawing(lite0, tmp_path):
    timeline = trace(lite0, CAT, layers=("conv_stem", "bn2"))
    assert repr(timeline) == f"Trace({len(timeline.events)} events; target {timeline.target})"
    assert timeline.save(tmp_path / "a.svg", title="the cat").read_text().count("the cat")
    assert timeline.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"\.svg"):
        timeline.save(tmp_path / "a.pdf")
    assert len(list(tmp_path.iterdir())) == 2
