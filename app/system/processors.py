"""Number of processors of this process, by its affinity and its container's quota, and their division among threads.

PyTorch itself sees only the former.
"""

import math
import os
from pathlib import Path

from seewhy.app.system.control_groups import CONTROL_GROUPS, OWN_GROUPS, own_groups


def processors(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Return the number of processors, at least one.

    Args:
        groups: folder of control groups, version 2 or 1.
        own: file that lists those of this process, as far as it can see them.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _quota(groups, own))))


def share_processors(workers: int) -> None:
    """Divide the processors among processes, and let waiting threads of models release theirs.

    By default PyTorch uses all processors that it sees, also those beyond a container's limit. This must run before
    PyTorch is imported; variables that are already set stay.
    """
    share = max(1, processors() // workers)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if share < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(share))


def _quota(groups: Path, own: Path) -> float:
    """Return the quota of this process in processors; infinity without a limit."""
    names = {False: ("cpu.max",), True: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    limits = [_limit(group, names[first]) for group, first in own_groups("cpu", groups, own)]
    return min(limits, default=math.inf)


def _limit(group: Path, names: tuple[str, ...]) -> float:
    try:
        quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ArithmeticError):  # the file does not exist, or says "max"
        return math.inf
