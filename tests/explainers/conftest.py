"""What tests of explainers share."""

import pytest

from seewhy.explainers.execution import chunks


@pytest.fixture
def large_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small pictures share a pass of a small net, which takes less time than hundreds of passes."""
    monkeypatch.setattr(chunks, "MOST", 4096)
