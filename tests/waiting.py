"""Waiting for events, however busy the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

GUARD = 300.0
"""Seconds after which what has not happened never will: a guard against tests that hang, and no judge of speed."""


def until(happened: Callable[[], T]) -> T:
    """Wait until a function returns something true, and return that."""
    waited, pause = 0.0, 0.01
    while not (value := happened()):
        assert waited < GUARD, f"nothing happened in {GUARD:.0f} s"
        time.sleep(pause)
        waited += pause  # no clock: it goes on while a machine stands still
        pause = min(1.2 * pause, 0.25)
    return value
