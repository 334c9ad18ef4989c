"""Fixtures of the tests of explainers."""

import sys
from collections.abc import Iterator

import pytest
from torch import Tensor

from seewhy.explainers.execution import chunks


@pytest.fixture
def large_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small pictures share a pass of a small net, which takes less time than hundreds of passes."""
    monkeypatch.setattr(chunks, "MOST", 4096)


@pytest.fixture
def picture(images: Tensor) -> Tensor:
    """A random picture of 16 by 16, as a batch."""
    return images[:1, :, :16, :16]


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads that take turns after microseconds, so that they meet wherever they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
