"""The order of the tests, and the sources of their fixtures."""

import pytest

OUTSIDE = {"served", "tight", "browser"}
"""Fixtures that start a service or a browser."""

pytest.register_assert_rewrite("tests.leftovers")


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures that take PyTorch, but not where tests are only handed out to other processes."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.leftovers")


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Put tests with a service or a browser first: one process runs them all, for others take over the last tests."""
    items.sort(key=lambda item: OUTSIDE.isdisjoint(item.fixturenames))
