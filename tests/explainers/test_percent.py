"""Shares for people."""

import pytest

from seewhy.explainers.core.percent import likelihood, more_points, percent, points

SHARES = {
    0.0: "0.0%",
    1e-9: "<0.01%",
    0.000099: "<0.01%",
    0.0001: "0.010%",
    0.00010595: "0.011%",
    0.0009: "0.090%",
    0.000996: "0.10%",
    0.00125: "0.13%",
    0.0025: "0.25%",
    0.00996: "1.0%",
    0.0152: "1.5%",
    0.0625: "6.3%",
    0.393: "39.3%",
    0.999: "99.9%",
    0.9994: ">99.9%",
    1 - 1e-9: ">99.9%",
    1.0: "100.0%",
}


@pytest.mark.parametrize("share", SHARES)
def test_a_share_is_told_to_a_tenth_of_a_percent_and_a_small_one_to_two_digits(share):
    assert percent(share) == SHARES[share]


def test_no_probability_is_told_to_be_one():
    assert [likelihood(value) for value in (0.0, 0.393, 1 - 1e-9, 1.0)] == ["0.0%", "39.3%", ">99.9%", ">99.9%"]


def test_a_difference_may_be_negative_and_is_never_minus_nothing():
    assert [points(value) for value in (-0.223, 0.05, -1e-9)] == ["-22.3 points", "5.0 points", "0.0 points"]
    changes = {-0.223: "-22.3 points", 0.0008: "+0.080 points", -0.004: "-0.40 points", -1e-9: "+0.0 points"}
    assert [more_points(value) for value in changes] == [*changes.values()]
