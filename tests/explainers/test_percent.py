"""Shares for people."""

import pytest

from seewhy.explainers.core.percent import percent, points

SHARES = {
    0.0: "0.0%",
    1e-9: "<0.1%",
    0.00099: "<0.1%",
    0.001: "0.1%",
    0.0025: "0.3%",
    0.0152: "1.5%",
    0.0625: "6.3%",
    0.393: "39.3%",
    0.999: "99.9%",
    0.9994: ">99.9%",
    1 - 1e-9: ">99.9%",
    1.0: "100.0%",
}


@pytest.mark.parametrize("share", SHARES)
def test_a_share_is_told_to_a_tenth_of_a_percent(share):
    assert percent(share) == SHARES[share]


def test_a_difference_may_be_negative_and_is_never_minus_nothing():
    assert [points(value) for value in (-0.223, 0.05, -1e-9)] == ["-22.3 points", "5.0 points", "0.0 points"]
