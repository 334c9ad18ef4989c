"""Scheduling: which work runs next, and how long it takes; only the rules, without threads or clocks."""

import math

import pytest

from seewhy.app.pipeline.scheduler import Pace, Shares, tier_of, time_left
from seewhy.explainers.core.costs import Passes


def turns(shares, tiers, count, seconds=None):
    """Return who runs in so many turns, where all tiers always have something to do."""
    results = []
    for _ in range(count):
        results.append(shares.choose(tiers))
        shares.charge(results[-1], (seconds or {}).get(results[-1], 1.0))
    return results


@pytest.mark.parametrize(
    ("passes", "tier"),
    [(1, "short"), (32, "short"), (33, "medium"), (800, "medium"), (801, "long"), (10**9, "long"), (None, "long")],
)
def test_the_tier_of_work_follows_from_its_passes_and_unknown_work_is_long(passes, tier):
    assert tier_of(passes) == tier


@pytest.mark.parametrize(
    ("tiers", "counts"),
    [
        (("medium", "short"), [100, 200]),
        (("long", "short"), [100, 200]),
        (("long", "medium", "short"), [200, 200, 400]),
        (("long",), [5]),  # work that is alone has all the time
    ],
)
def test_what_is_short_goes_first_and_all_tiers_have_the_shares_of_their_weights(tiers, counts):
    results = turns(Shares(), tiers, sum(counts))
    assert results[0] == tiers[-1]
    assert [results.count(tier) for tier in tiers] == counts


def test_it_is_time_that_is_shared_and_not_turns():
    seconds = {"short": 0.1, "long": 0.8}
    counts = turns(Shares(), ("short", "long"), 1000, seconds)
    spent = {tier: counts.count(tier) * seconds[tier] for tier in seconds}
    assert spent["long"] / sum(spent.values()) == pytest.approx(1 / 3, abs=0.01)


def test_a_tier_that_had_nothing_to_do_makes_no_claims_for_that_time():
    shares = Shares()
    turns(shares, ("long",), 1000)
    counts = turns(shares, ("short", "long"), 30)
    assert counts[0] == "short"
    assert counts.count("long") in (9, 10)
    turns(shares, ("short",), 1000)
    assert turns(shares, ("short", "long"), 30).count("long") in (10, 11)


def test_a_pace_that_nobody_measured_refuses_nothing():
    assert Pace().least(Passes(10**6, 10**6)) == Pace().usual(Passes(1)) == 0


def test_the_least_time_is_that_of_the_fastest_measurement_and_the_usual_an_average():
    pace = Pace()
    for seconds in (2.0, 1.0, 4.0):
        pace.learn(Passes(100), seconds)
    assert pace.least(Passes(1000)) == pytest.approx(10)
    assert 10 < pace.usual(Passes(1000)) < 40


def test_short_work_that_waited_does_not_make_long_work_look_slow():
    pace = Pace()
    pace.learn(Passes(100, 100), 4.0)
    for _ in range(6):
        pace.learn(Passes(1, 1), 1.0)  # 25 times as long for each pass
    assert 0.02 <= pace.usual(Passes(1, 1)) / 2 < 0.15
    pace.learn(Passes(100, 100), 8.0)
    assert pace.usual(Passes(1, 1)) / 2 == pytest.approx(0.04, abs=0.03)


def test_the_usual_time_forgets_long_work_too():
    pace = Pace()
    pace.learn(Passes(8000), 80.0)
    for _ in range(20):
        pace.learn(Passes(2), 0.1)
    assert 0.04 < pace.usual(Passes(1)) < 0.05


def test_what_else_the_machine_does_makes_the_least_time_no_longer():
    pace = Pace()
    pace.learn(Passes(100), 60.0, busy=1.0)
    assert pace.least(Passes(1000)) == pytest.approx(10)
    assert pace.usual(Passes(1000)) == pytest.approx(600)


def test_backward_passes_are_measured_by_themselves_and_are_no_quicker_than_forward_ones():
    pace = Pace()
    pace.learn(Passes(10), 1.0)
    assert pace.least(Passes(5, 5)) == pytest.approx(1.0)
    pace.learn(Passes(5, 5), 3.0)
    assert pace.least(Passes(5, 5)) == pytest.approx(3.0)
    assert pace.least(Passes(10)) == pytest.approx(1.0)
    pace.learn(Passes(), 1.0)
    assert math.isfinite(pace.usual(Passes(10)))


def test_passes_through_a_part_of_the_model_are_measured_by_themselves():
    pace = Pace()
    pace.learn(Passes(10), 1.0)
    assert pace.usual(Passes(10), "part") == 0
    pace.learn(Passes(1000), 2.0, part="part")
    assert pace.usual(Passes(10), "part") == pytest.approx(0.02)
    assert pace.usual(Passes(10), "other") == 0
    assert pace.usual(Passes(10)) == pace.least(Passes(10)) == pytest.approx(1.0)


def test_the_time_left_follows_from_the_pace_once_that_tells():
    assert time_left(50, 1000, 5, 10.0) == pytest.approx(190)
    assert time_left(1000, 1000, 60, 200.0) == 0
    assert time_left(49, 1000, 5, 10.0) == time_left(50, 1000, 4, 10.0) == time_left(0, 0, 9, 1.0) == 0
