"""How many processors this process may use: those it is bound to, or fewer where its container is allowed less time."""

import math
import os
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")


def processors(groups: Path = CONTROL_GROUPS) -> int:
    """Return the number of processors, at least one.

    Args:
        groups: where Linux tells the limits of the container (control groups, version 2 or 1).
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _allowed(groups))))


def _allowed(groups: Path) -> float:
    """Return how many processors' time a container may take; infinity where there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((groups / name).read_text(encoding="ascii") for name in names).split()
            return int(quota) / int(period) if int(quota) > 0 else math.inf
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return math.inf
