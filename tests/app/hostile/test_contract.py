import pytest

from tools.hostile.contract import check

pytestmark = pytest.mark.slow

LARGE = ("/explain", "/evaluate", "/hooks/intervene", "/similar")
"""Routes with so many options, or such long answers, that going through all of them is for `make fuzz`."""


def test_requests_made_up_from_the_document_find_nothing(url):
    run = check(url, ["examples", "fuzzing", "stateful"], examples=1)
    assert not run.is_faulty, run.report
    assert run.cases > 50, run.report


def test_each_option_at_its_bounds_finds_nothing(url):
    run = check(url, ["coverage"], examples=1, excluded=LARGE)
    assert not run.is_faulty, run.report
    assert run.cases > 300, run.report
