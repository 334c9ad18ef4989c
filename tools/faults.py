"""Faults, and what users see of them: a table of the tests that are marked `fault`."""

from dataclasses import dataclass, field

import pytest


@dataclass
class Fault:
    """What breaks, what users see of it, the number of tests that passed, and the tests that did not."""

    breakage: str
    effect: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)


class Faults:
    """A plugin of pytest that collects faults."""

    def __init__(self) -> None:
        self.by_test: dict[str, Fault] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> "object":
        """Note the outcome of a test."""
        report = yield
        marker = item.get_closest_marker("fault")
        if marker is not None and (report.when == "call" or not report.passed):
            fault = self.by_test.setdefault(item.function.__name__, Fault(*marker.args))
            if report.passed:
                fault.passed += 1
            else:
                fault.failed.append(item.nodeid)
        return report


def faults() -> list[Fault]:
    """Run the tests, and return the faults."""
    plugin = Faults()
    options = ["-q", "-m", "fault", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([*options, "tests/app", "tests/models"], [plugin])
    return list(plugin.by_test.values())


def table(entries: list[Fault]) -> list[str]:
    """Return the rows of a table."""
    rows = ["| what breaks | what users see | tests passed |", "| --- | --- | ---: |"]
    for fault in entries:
        count = f"{fault.passed} of {fault.passed + len(fault.failed)}" if fault.failed else str(fault.passed)
        rows.append(f"| {fault.breakage} | {fault.effect} | {count} |")
    return rows
