"""The statistics of tensors against NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.inspection.statistics import Statistics, statistics
from tests import nets

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check(tensor: Tensor, tolerance: float = 1e-6) -> Statistics:
    """Compare with float64, NaN and infinity left out."""
    summary = statistics(tensor)
    values = (tensor.abs() if tensor.is_complex() else tensor).detach().double().numpy().reshape(-1)
    finite = values[np.isfinite(values)]
    assert summary.shape == tuple(tensor.shape)
    assert summary.dtype == str(tensor.dtype).split(".")[1]
    assert (summary.nan, summary.inf) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert summary.zeros == pytest.approx((values == 0).mean(), rel=1e-12)
    assert (summary.min, summary.max) == (finite.min(), finite.max())
    largest = np.abs(finite).max()
    assert summary.mean == pytest.approx(finite.mean(), rel=tolerance, abs=tolerance * largest)
    assert summary.std == pytest.approx(finite.std(), rel=1e-4, abs=tolerance * largest)
    assert summary.norm == pytest.approx(math.sqrt(np.square(finite).sum()), rel=tolerance)
    numbers = (summary.mean, summary.std, summary.min, summary.max, summary.norm, summary.zeros)
    assert {type(number) for number in numbers} == {float}
    assert {type(summary.nan), type(summary.inf)} == {int}
    return summary


def test_a_vector_by_hand():
    summary = statistics(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    assert summary == Statistics((2, 2), "float32", -0.25, summary.std, -4.0, 3.0, 5.0, 0.5, 0, 0)
    assert summary.std == pytest.approx(math.sqrt(25 / 4 - 1 / 16))


@pytest.mark.parametrize("dtype", FLOATS, ids=nets.label)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 5, 5)], ids=nets.label)
def test_floats_of_all_shapes(dtype, shape, generator):
    check(torch.randn(shape, generator=generator).to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=nets.label)
def test_integers(dtype, generator):
    summary = check(torch.randint(0, 100, (4, 50), generator=generator).to(dtype))
    assert isinstance(summary.min, float)


def test_eight_bit_floats():
    summary = statistics(torch.tensor([3.0, 0.0, -4.0]).to(torch.float8_e4m3fn))
    assert (summary.dtype, summary.min, summary.max, summary.norm) == ("float8_e4m3fn", -4, 3, 5)


def test_large_integers_do_not_wrap():
    check(torch.tensor([250, 250, 250], dtype=torch.uint8))
    check(torch.tensor([2**62, -(2**62), 0]))
    assert statistics(torch.full((100,), 200, dtype=torch.uint8)).norm == 2000


def test_bools():
    summary = check(torch.tensor([True, False, True, True]))
    assert (summary.mean, summary.zeros, summary.norm) == (0.75, 0.25, pytest.approx(math.sqrt(3)))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=nets.label)
def test_complex_numbers_count_by_magnitude(dtype, generator):
    check(torch.randn(3, 4, dtype=dtype, generator=generator), 1e-6)
    summary = statistics(torch.tensor([3 + 4j, 0], dtype=dtype))
    assert (summary.min, summary.max, summary.mean, summary.norm, summary.zeros) == (0, 5, 2.5, 5, 0.5)
    broken = statistics(torch.tensor([3 + 4j, complex(math.nan, 1), complex(0, -math.inf)], dtype=dtype))
    assert (broken.mean, broken.std, broken.nan, broken.inf) == (5, 0, 1, 1)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)], ids=nets.label)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64], ids=nets.label
)
def test_empty_tensors(shape, dtype):
    nothing = Statistics(shape, str(dtype).split(".")[1], None, None, None, None, 0.0, 0.0, 0, 0)
    assert statistics(torch.empty(shape, dtype=dtype)) == nothing


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-30, 1e-19, 1e-12, 1e12, 1e19, 1e30, 1e37])
def test_squares_neither_overflow_nor_underflow(scale, generator):
    summary = check(torch.randn(1000, generator=generator).double().mul(scale).float())
    assert 0 < summary.norm < math.inf
    assert 0 < summary.std < math.inf


def test_the_largest_numbers_of_each_precision():
    for dtype in FLOATS[:3]:
        summary = check(torch.full((64,), torch.finfo(dtype).max, dtype=dtype))
        assert summary.norm == pytest.approx(8 * torch.finfo(dtype).max, rel=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=nets.label)
def test_nan_and_infinity_are_counted_and_left_out(dtype):
    broken = torch.tensor([math.nan, 3, 0, math.inf, -4, -math.inf, math.nan, math.inf], dtype=dtype)
    summary = check(broken)
    assert (summary.nan, summary.inf, summary.min, summary.max, summary.norm, summary.zeros) == (2, 3, -4, 3, 5, 1 / 8)
    for extreme in (math.nan, math.inf, -math.inf):
        assert check(torch.tensor([1, extreme], dtype=dtype)).max == 1
        assert check(torch.tensor([extreme, 1], dtype=dtype)).min == 1


@pytest.mark.parametrize("values", [[math.nan] * 3, [math.inf, -math.inf], [math.nan, math.inf]], ids=nets.label)
def test_nothing_finite_leaves_nothing_to_say(values):
    summary = statistics(torch.tensor(values))
    assert (summary.mean, summary.std, summary.min, summary.max) == (None,) * 4
    assert (summary.norm, summary.zeros, summary.nan + summary.inf) == (0, 0, len(values))


def test_zeros_of_both_signs_and_denormals():
    summary = check(torch.tensor([0.0, -0.0, 1e-45, 1.0]))
    assert summary.zeros == 0.5
    assert statistics(torch.zeros(5)) == Statistics((5,), "float32", 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0, 0)


@pytest.mark.parametrize(("count", "offset"), [(3_000_000, 0.0), (300_000, 1e6), (300_000, -1e3)])
def test_many_values_far_from_zero_keep_their_digits(count, offset, generator):
    check(torch.rand(count, generator=generator) + offset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=nets.label)
@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0, -1e3, 1e5, 1e7])
def test_the_spread_of_values_far_from_zero(offset, dtype, generator):
    """Where the values are nearly alike, the difference of the sum of squares and the square of the sum is noise."""
    tensor = (torch.randn(200_000, generator=generator, dtype=torch.float64) + offset).to(dtype)
    assert statistics(tensor).std == pytest.approx(tensor.double().numpy().std(), rel=1e-9)
    assert statistics(tensor).mean == pytest.approx(tensor.double().numpy().mean(), rel=1e-11, abs=1e-9)


@pytest.mark.parametrize("value", [0.1, -3.3, 1e-42, 1e30])
def test_equal_values_have_no_spread(value):
    summary = statistics(torch.full((1001,), value))
    assert (summary.std, summary.mean) == (0, summary.min)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e160, 1e300])
def test_squares_of_doubles_neither_overflow_nor_underflow(scale, generator):
    ones = torch.randn(100, dtype=torch.float64, generator=generator)
    unit, actual = statistics(ones), statistics(ones * scale)
    assert actual.std == pytest.approx(unit.std * scale, rel=1e-9, abs=0)
    assert actual.norm == pytest.approx(unit.norm * scale, rel=1e-9, abs=0)
    assert actual.mean == pytest.approx(unit.mean * scale, rel=1e-9, abs=0)
    assert statistics(torch.tensor([0, 1e-300, 1e300], dtype=torch.float64)).zeros == pytest.approx(1 / 3)


def test_strides_views_and_graphs_do_not_matter(generator):
    tensor = torch.randn(4, 6, 5, generator=generator)
    check(tensor.permute(2, 0, 1))
    check(tensor[::2, 1:4])
    check(tensor[:1].expand(3, 6, 5))
    parameter = nn.Parameter(tensor)
    assert statistics(parameter * 1) == statistics(tensor)
    with torch.inference_mode():
        assert statistics(tensor * 1) == statistics(tensor)
    assert parameter.grad is None


def test_a_tensor_is_left_alone(generator):
    tensor = torch.randn(10, generator=generator)
    before = tensor.clone()
    statistics(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == 0
