"""How many processors this process may use: those it is bound to, or fewer where its container is allowed less time.

And how threads of models share them.
"""

import math
import os
from pathlib import Path

from seewhy.app.system.control_groups import CONTROL_GROUPS, OWN_GROUPS, own_groups


def processors(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Return the number of processors, at least one.

    Args:
        groups: where Linux tells the limits of control groups, version 2 or 1.
        own: the file that names those of this process, as far as it can see them.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _quota(groups, own))))


def share_processors(workers: int) -> None:
    """Let the threads of models leave the processors to others while they wait, and all processes have enough of them.

    PyTorch by itself takes all processors that it sees, also those that a container's limit keeps from it. Must come
    before PyTorch is imported; what the environment says already stays.
    """
    share = max(1, processors() // workers)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if share < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(share))


def _quota(groups: Path, own: Path) -> float:
    """Return how many processors' time this process may take; infinity where there is no limit."""
    names = {False: ("cpu.max",), True: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    limits = [_limit(group, names[first]) for group, first in own_groups("cpu", groups, own)]
    return min(limits, default=math.inf)


def _limit(group: Path, names: tuple[str, ...]) -> float:
    try:
        quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ArithmeticError):  # there is no such file, or it says "max"
        return math.inf
