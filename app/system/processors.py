"""Number of processors of this process, by its affinity and its container's quota, and their division among threads.

PyTorch itself sees only the former.
"""

import math
import os

from seewhy.app.system.control_groups import own_limits


def processors() -> int:
    """Return the number of processors, at least one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = own_limits("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    quotas = [quota / period for quota, period in limits if quota > 0 and period > 0]
    return max(1, math.ceil(min([bound, *quotas])))


def share_processors(workers: int) -> None:
    """Divide the processors among processes, and let waiting threads of models release theirs.

    By default PyTorch uses all processors that it sees, also those beyond a container's limit. This must run before
    PyTorch is imported; variables that are already set stay.
    """
    share = max(1, processors() // workers)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if share < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(share))
