"""Edits on their own: valid edits, the part of a tensor that an edit selects, and the new values of that part."""

import math

import pytest
import torch
from torch import Tensor

from seewhy.explainers.errors import EditError
from seewhy.explainers.inspection.edit_parts import MisfitError
from seewhy.explainers.inspection.edits import EDITS, MAX_EDITS, OPS, Edit, Scale, Zero, parse_edits
from tests import nets

IMAGE = (8, 8)
VALUES = {op: {"value": 2.0} for op in ("scale", "add", "set", "noise")} | {"clamp": {"min": -0.5, "max": 0.5}}


def edit_of(op: str, **fields: object) -> Edit:
    (edit,) = parse_edits([{"op": op, "layer": "conv", **VALUES.get(op, {}), **fields}])
    return edit


def applied(op: str, values: Tensor, swapped: Tensor | None = None, **fields: object) -> Tensor:
    edit = edit_of(op, **fields)
    return edit.apply(values, edit.part(values, IMAGE, swapped))


@pytest.fixture
def grid(generator: torch.Generator) -> Tensor:
    """Two pictures' feature maps of three channels and four by four cells."""
    return torch.randn(2, 3, 4, 4, generator=generator)


# What is an edit


def test_every_op_is_made_from_a_mapping_and_comes_back_as_one():
    assert set(OPS) == {type(edit_of(op)).model_fields["op"].default for op in OPS}
    assert len(set(OPS)) == 11
    for op in OPS:
        edit = edit_of(op, at="input", channels=[2, 0], region=[0, 0, 2, 2], calls=[1])
        assert (edit.channels, edit.region, edit.calls) == ((2, 0), (0, 0, 2, 2), (1,))
        assert parse_edits([edit.model_dump()]) == parse_edits([edit]) == (edit,)
        assert EDITS.validate_json(EDITS.dump_json((edit,))) == (edit,)
        assert hash(edit) == hash(edit_of(op, at="input", channels=[2, 0], region=[0, 0, 2, 2], calls=[1]))


def test_edits_may_come_from_any_iterable_and_keep_their_order():
    edits = [Zero(layer="a"), {"op": "scale", "layer": "b", "value": 2}]
    assert parse_edits(iter(edits)) == parse_edits(tuple(edits)) == (Zero(layer="a"), Scale(layer="b", value=2))
    assert len(parse_edits(edits * (MAX_EDITS // 2))) == MAX_EDITS


@pytest.mark.parametrize(
    ("second", "place"),
    [
        ({"channels": [-1]}, "channels[0]"),
        ({"channels": [0, 1, True]}, "channels[2]"),
        ({"channels": [0.0]}, "channels[0]"),
        ({"channels": ["0"]}, "channels[0]"),
        ({"channels": []}, "channels"),
        ({"channels": 3}, "channels"),
        ({"channels": "3"}, "channels"),
        ({"region": [0, 0, 1]}, "region"),
        ({"region": [0, 0, 1, 1, 1]}, "region"),
        ({"region": [0, -1, 1, 1]}, "region"),
        ({"region": [0, 0, True, 1]}, "region"),
        ({"region": [0, 0, 1.0, 1]}, "region"),
        ({"calls": [-1]}, "calls[0]"),
        ({"calls": []}, "calls"),
        ({"calls": [False]}, "calls[0]"),
        ({"at": "outputs"}, "at"),
        ({"at": None}, "at"),
        ({"layer": 3}, "layer"),
        ({"layer": None}, "layer"),
        ({"layer": "x" * 201}, "layer"),
        ({"op": "erase"}, "op"),
        ({"op": None}, "op"),
        ({"op": 0}, "op"),
        ({"op": "Zero"}, "op"),
        ({"parameter": "weight"}, "parameter"),
        ({"parameter": "weight", "at": "grad_input"}, "parameter"),
        ({"parameter": 1, "at": "parameter_grad"}, "parameter"),
        ({"value": 1}, "value"),
        ({"chanels": [1]}, "chanels"),
        ({"op": "scale"}, "value"),
        ({"op": "scale", "value": True}, "value"),
        ({"op": "scale", "value": "2"}, "value"),
        ({"op": "scale", "value": None}, "value"),
        ({"op": "add", "value": math.nan}, "value"),
        ({"op": "set", "value": math.inf}, "value"),
        ({"op": "set", "value": -math.inf}, "value"),
        ({"op": "set", "value": 1j}, "value"),
        ({"op": "noise", "value": -0.1}, "value"),
        ({"op": "noise", "value": math.inf}, "value"),
        ({"op": "noise", "value": 1, "seed": -1}, "seed"),
        ({"op": "noise", "value": 1, "seed": 2**63}, "seed"),
        ({"op": "noise", "value": 1, "seed": 1.0}, "seed"),
        ({"op": "permute_channels", "seed": True}, "seed"),
        ({"op": "clamp", "min": 1, "max": 0}, "max"),
        ({"op": "clamp", "min": math.nan}, "min"),
        ({"op": "clamp", "max": True}, "max"),
        ({"op": "clamp"}, ""),
        ({"op": "mean", "over": "pictures"}, "over"),
        ({"op": "normalize", "to": "one"}, "to"),
    ],
    ids=nets.label,
)
def test_a_fault_is_named_by_index_and_field(second, place):
    good = {"op": "zero", "layer": "conv"}
    with pytest.raises(EditError) as caught:
        parse_edits([good, {**good, **second}])
    assert caught.value.field == ("edits[1]" + (place and f".{place}")).replace(".[", "[")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("edit", "place", "message"),
    [
        ({"op": "zero"}, "layer", "."),
        ({"layer": "conv"}, "op", ", ".join(OPS)),
        ({}, "op", ", ".join(OPS)),
        *(({"op": op, "layer": "conv"}, "value", ".") for op in ("scale", "add", "set", "noise")),
        ({"op": "zero", "layer": "conv", "at": "parameter_grad", "calls": [0]}, "calls", "all calls"),
    ],
    ids=nets.label,
)
def test_missing_fields_are_named(edit, place, message):
    with pytest.raises(EditError, match=message) as caught:
        parse_edits([edit])
    assert caught.value.field == f"edits[0].{place}"


EDIT = Zero(layer="conv")


@pytest.mark.parametrize(
    "edits",
    ["zero", b"zero", 5, None, {"op": "zero", "layer": "conv"}, EDIT, True, [], [EDIT] * (MAX_EDITS + 1)],
    ids=lambda edits: str(edits)[:20],
)
def test_what_is_no_list_of_a_few_is_refused(edits):
    with pytest.raises(EditError) as caught:
        parse_edits(edits)
    assert caught.value.field == "edits"


@pytest.mark.parametrize("entry", ["zero", 3, None, ["zero"], ("op", "zero")], ids=nets.label)
def test_an_entry_that_is_no_object_is_named(entry):
    with pytest.raises(EditError) as caught:
        parse_edits([Zero(layer="conv"), entry])
    assert caught.value.field in ("edits[1]", "edits[1].op")


def test_an_edit_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Zero(layer="conv").layer = "other"


# Which part


def test_without_channels_and_region_all_is_meant(grid):
    part = edit_of("zero").part(grid, IMAGE)
    assert part.mask.shape == (1, 1, 1, 1)
    assert bool(part.mask.all())
    assert (part.channel, part.spatial) == (1, (2, 3))


@pytest.mark.parametrize(
    ("shape", "channel", "spatial"),
    [
        ((2, 3, 4, 4), 1, (2, 3)),
        ((2, 4, 4, 6), 3, (1, 2)),
        ((2, 5, 2, 7), 1, (2, 3)),
        ((2, 5, 6), 2, (1,)),
        ((2, 5), 1, ()),
        ((2,), None, ()),
        ((2, 3, 4, 5, 6), None, ()),
    ],
    ids=nets.label,
)
def test_axes_of_channels_and_positions(shape, channel, spatial):
    part = edit_of("zero").part(torch.ones(shape), IMAGE)
    assert (part.channel, part.spatial) == (channel, spatial)
    if channel is None:
        with pytest.raises(MisfitError) as caught:
            edit_of("zero", channels=[0]).part(torch.ones(shape), IMAGE)
        assert caught.value.field == "channels"
        return
    changed = applied("zero", torch.ones(shape), channels=[1])
    assert torch.equal(changed.sum(dim=channel), torch.full_like(changed.sum(dim=channel), shape[channel] - 1))
    assert not changed.select(channel, 1).any()
    with pytest.raises(MisfitError, match=f"0 to {shape[channel] - 1}") as caught:
        edit_of("zero", channels=[0, shape[channel]]).part(torch.ones(shape), IMAGE)
    assert caught.value.field == "channels"


@pytest.mark.parametrize(
    ("shape", "channel", "spatial"), [((1, 6, 3, 2, 2), 1, ()), ((1, 6, 3), 1, ()), ((1, 6), 1, ()), ((1,), None, ())]
)
def test_channels_of_a_parameter_are_those_of_its_output(shape, channel, spatial):
    part = edit_of("zero", at="parameter_grad").part(torch.ones(shape), IMAGE)
    assert (part.channel, part.spatial) == (channel, spatial)


def test_a_region_is_half_open_and_of_both_layouts(grid):
    changed = applied("zero", grid, region=[1, 0, 3, 2], channels=[2])
    expected = grid.clone()
    expected[:, 2, 1:3, 0:2] = 0
    assert torch.equal(changed, expected)
    last = torch.ones(1, 4, 4, 6)
    changed = applied("zero", last, region=[0, 1, 1, 4], channels=[0, 5])
    expected = last.clone()
    expected[:, 0:1, 1:4, [0, 5]] = 0
    assert torch.equal(changed, expected)
    assert torch.equal(applied("zero", grid, region=[0, 0, 4, 4]), torch.zeros_like(grid))


@pytest.mark.parametrize(
    "region", [[3, 0, 3, 4], [0, 2, 4, 2], [2, 0, 1, 4], [0, 0, 5, 4], [0, 0, 4, 5], [4, 4, 5, 5], [0, 0, 2**70, 1]]
)
def test_a_region_that_is_empty_or_outside_is_refused(region, grid):
    with pytest.raises(MisfitError, match="4x4") as caught:
        edit_of("zero", region=region).part(grid, IMAGE)
    assert caught.value.field == "region"


@pytest.mark.parametrize("shape", [(1, 5), (1, 4, 5), (1,), (1, 1, 1, 1, 1)], ids=nets.label)
def test_a_region_needs_a_feature_map(shape):
    with pytest.raises(MisfitError, match="not a feature map") as caught:
        edit_of("zero", region=[0, 0, 1, 1]).part(torch.ones(shape), IMAGE)
    assert caught.value.field == "region"


def test_channels_may_repeat_and_come_in_any_order(grid):
    assert torch.equal(applied("scale", grid, channels=[2, 0, 2]), applied("scale", grid, channels=[0, 2]))


# What becomes of it


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("zero", {}, lambda x: torch.zeros_like(x)),
        ("scale", {"value": -3}, lambda x: -3 * x),
        ("add", {"value": 0.25}, lambda x: x + 0.25),
        ("set", {"value": 7}, lambda x: torch.full_like(x, 7)),
        ("clamp", {"min": -0.5, "max": 0.5}, lambda x: x.clamp(-0.5, 0.5)),
        ("clamp", {"min": 0.1, "max": None}, lambda x: x.clamp_min(0.1)),
        ("clamp", {"min": None, "max": 0.1}, lambda x: x.clamp_max(0.1)),
        ("negate", {}, lambda x: -x),
        ("mean", {}, lambda x: x.mean(dim=(2, 3), keepdim=True).expand_as(x)),
        ("mean", {"over": "channel"}, lambda x: x.mean(dim=1, keepdim=True).expand_as(x)),
        ("normalize", {"to": "norm"}, lambda x: x / x.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()),
        ("normalize", {"to": "maximum"}, lambda x: x / x.abs().amax(dim=(1, 2, 3), keepdim=True)),
        ("normalize", {"to": "sum"}, lambda x: x / x.sum(dim=(1, 2, 3), keepdim=True)),
        ("swap", {}, lambda x: torch.full_like(x, 9)),
    ],
    ids=nets.label,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=nets.label)
def test_ops_by_their_formulas(op, fields, expected, dtype, grid):
    values = grid.to(dtype)
    changed = applied(op, values, torch.full((1, 3, 4, 4), 9).to(dtype), **fields)
    assert changed.dtype == dtype
    precision = max(4 * torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(changed.double(), expected(values.double()), rtol=precision, atol=precision)


def test_mean_is_of_the_part_only(grid):
    changed = applied("mean", grid, region=[0, 0, 2, 2], channels=[1])
    expected = grid.clone()
    expected[:, 1, :2, :2] = grid[:, 1, :2, :2].mean(dim=(1, 2))[:, None, None]
    torch.testing.assert_close(changed, expected)
    changed = applied("mean", grid, over="channel", channels=[0, 2])
    expected = grid.clone()
    expected[:, [0, 2]] = grid[:, [0, 2]].mean(dim=1, keepdim=True)
    torch.testing.assert_close(changed, expected)
    tokens = grid.reshape(2, 6, 8)
    torch.testing.assert_close(applied("mean", tokens), tokens.mean(dim=1, keepdim=True).expand_as(tokens))


@pytest.mark.parametrize("odd", [math.inf, math.nan])
def test_mean_and_normalize_do_not_see_what_is_outside_of_their_part(odd, grid):
    grid[:, :, 0, 0] = odd
    for op in ("mean", "normalize"):
        changed = applied(op, grid, region=[1, 1, 3, 3])
        assert bool(torch.isfinite(changed[:, :, 1:3, 1:3]).all())


def test_normalize_makes_its_part_one(grid):
    fields = {"region": [0, 1, 3, 4], "channels": [0, 2]}
    for to, measure in [
        ("sum", lambda part: part.sum(dim=(1, 2, 3))),
        ("norm", lambda part: part.square().sum(dim=(1, 2, 3)).sqrt()),
        ("maximum", lambda part: part.abs().amax(dim=(1, 2, 3))),
    ]:
        changed = applied("normalize", grid, to=to, **fields)
        torch.testing.assert_close(measure(changed[:, [0, 2], 0:3, 1:4]), torch.ones(2))
        assert torch.equal(changed[:, 1], grid[:, 1])
        assert torch.equal(changed[:, :, 3], grid[:, :, 3])


@pytest.mark.parametrize("to", ["sum", "norm", "maximum"])
def test_normalize_refuses_zero_and_infinity(to):
    for values in (torch.zeros(1, 2, 4, 4), torch.full((1, 2, 4, 4), math.inf), torch.full((1, 2, 4, 4), math.nan)):
        with pytest.raises(MisfitError) as caught:
            applied("normalize", values, to=to)
        assert caught.value.field == "to"
    with pytest.raises(MisfitError):
        applied("normalize", torch.stack([torch.ones(2, 4, 4), torch.zeros(2, 4, 4)]), to=to)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=nets.label)
def test_sums_in_half_precision_do_not_overflow(dtype):
    values = torch.full((1, 2, 320, 320), 3.0, dtype=dtype)
    assert torch.equal(applied("mean", values), values)
    normalized = applied("normalize", values, to="sum")
    torch.testing.assert_close(normalized.double().sum(), torch.ones(()).double(), rtol=2e-2, atol=0)
    assert torch.equal(applied("normalize", values, to="maximum"), torch.ones_like(values))


def test_noise_is_reproducible_normal_and_the_same_for_all_pictures():
    values = torch.zeros(2, 8, 64, 64)
    noise = applied("noise", values, value=3)
    assert torch.equal(noise[0], noise[1])
    assert noise.std() == pytest.approx(3, rel=0.05)
    assert abs(float(noise.mean())) < 0.1
    assert torch.equal(noise, applied("noise", values, value=3, seed=0))
    assert not torch.equal(noise, applied("noise", values, value=3, seed=1))
    assert torch.equal(applied("noise", values + 1, value=0), values + 1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        state = torch.random.get_rng_state()
        applied("noise", values)
        assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers are its own"


@pytest.mark.parametrize("count", [2, 3, 4, 17])
def test_permuted_channels_all_move(count):
    values = torch.arange(count).float()[None, :, None, None].expand(1, count, 8, 8)
    for seed in range(20):
        order = applied("permute_channels", values, seed=seed)[0, :, 0, 0].long()
        assert sorted(order.tolist()) == list(range(count))
        assert not bool((order == torch.arange(count)).any())
    orders = {tuple(applied("permute_channels", values, seed=seed)[0, :, 0, 0].tolist()) for seed in range(20)}
    assert count == 2 or len(orders) > 1


def test_permuting_some_channels_leaves_the_others(grid):
    changed = applied("permute_channels", grid, channels=[2, 0])
    assert torch.equal(changed, grid[:, [2, 1, 0]])
    changed = applied("permute_channels", grid, channels=[2, 0], region=[0, 0, 1, 1])
    assert torch.equal(changed[:, :, 1:], grid[:, :, 1:])
    assert torch.equal(changed[:, :, 0, 0], grid[:, [2, 1, 0], 0, 0])


def test_misfits_are_named(grid):
    for op, values, fields, place in [
        ("permute_channels", grid, {"channels": [1]}, "channels"),
        ("permute_channels", grid, {"channels": [1, 1]}, "channels"),
        ("permute_channels", grid[:, :1], {}, "channels"),
        ("permute_channels", torch.ones(2), {}, "op"),
        ("mean", torch.ones(2, 3), {}, "over"),
        ("mean", torch.ones(2), {"over": "channel"}, "over"),
        ("swap", grid, {}, "op"),
        ("clamp", grid.to(torch.complex64), {}, "op"),
    ]:
        with pytest.raises(MisfitError) as caught:
            applied(op, values, **fields)
        assert caught.value.field == place
    for replacement in (torch.ones(1, 3, 4, 5), torch.ones(1, 4, 4, 4), torch.ones(1, 3)):
        with pytest.raises(MisfitError, match="shape") as caught:
            applied("swap", grid, replacement)
        assert caught.value.field == "op"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=nets.label)
@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("set", {"value": 1e308}),
        ("set", {"value": -1e308}),
        ("scale", {"value": 1e308}),
        ("add", {"value": 1e308}),
        ("noise", {"value": 1e308}),
        ("clamp", {"min": 1e308, "max": None}),
        ("clamp", {"min": None, "max": 1e308}),
    ],
    ids=nets.label,
)
def test_values_beyond_the_precision_are_infinite_and_no_crash(op, fields, dtype, grid):
    changed = applied(op, grid.to(dtype), channels=[1], **fields)
    assert torch.equal(changed[:, [0, 2]], grid.to(dtype)[:, [0, 2]])
    if fields.get("max"):
        assert torch.equal(changed, grid.to(dtype))
    else:
        assert float(changed[:, 1].abs().max()) > 0.5 * torch.finfo(dtype).max


@pytest.mark.parametrize("op", OPS)
def test_a_scalar_stays_a_scalar_or_is_refused(op):
    scalar = torch.tensor(2.0)
    try:
        changed = applied(op, scalar, torch.tensor(3.0))
    except MisfitError:
        assert op in ("permute_channels", "mean", "normalize", "swap")
    else:
        assert changed.shape == ()


# Properties


@pytest.mark.parametrize(
    ("op", "fields"), [("scale", {"value": 1}), ("add", {"value": 0}), ("noise", {"value": 0}), ("clamp", {"min": -9})]
)
def test_edits_that_change_nothing(op, fields, grid):
    assert torch.equal(applied(op, grid, **{"max": 9, **fields} if op == "clamp" else fields), grid)


@pytest.mark.parametrize("op", ["zero", "set", "clamp", "mean", "normalize", "swap"])
def test_twice_is_once(op, grid):
    replacement = torch.full((1, 3, 4, 4), 2.0)
    once = applied(op, grid, replacement, channels=[0, 1])
    torch.testing.assert_close(applied(op, once, replacement, channels=[0, 1]), once)


def test_twice_is_none(grid):
    assert torch.equal(applied("negate", applied("negate", grid)), grid)
    swapped = {"channels": [0, 1]}
    assert torch.equal(applied("permute_channels", applied("permute_channels", grid, **swapped), **swapped), grid)


@pytest.mark.parametrize("op", OPS)
def test_an_edit_makes_a_new_tensor_that_is_differentiable(op, grid):
    before, leaf = grid.clone(), grid.clone().requires_grad_()
    replacement = torch.ones(1, 3, 4, 4)
    changed = applied(op, grid, replacement, channels=[0, 2], region=[0, 0, 4, 2])
    assert changed is not grid
    assert torch.equal(grid, before)
    assert torch.equal(changed[:, 1], grid[:, 1])
    assert torch.equal(changed[..., 2:], grid[..., 2:])
    assert not torch.equal(changed[:, 0, :, :2], grid[:, 0, :, :2])
    (gradient,) = torch.autograd.grad(applied(op, leaf, replacement, channels=[0, 2], region=[0, 0, 4, 2]).sum(), leaf)
    assert torch.equal(gradient[:, 1], torch.ones(2, 4, 4))
    assert bool(torch.isfinite(gradient).all())
    if op in ("zero", "set", "swap"):
        assert not gradient[:, [0, 2], :, :2].any()
