"""How many processors this process may use: those it is bound to, or fewer where its container is allowed less time.

And how threads of models share them.
"""

import math
import os
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")


OWN_GROUPS = Path("/proc/self/cgroup")


def processors(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Return the number of processors, at least one.

    Args:
        groups: where Linux tells the limits of control groups, version 2 or 1.
        own: the file that names those of this process, as far as it can see them.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _allowed(groups, own))))


def share_processors(workers: int) -> None:
    """Let the threads of models leave the processors to others while they wait, and all processes have enough of them.

    PyTorch by itself takes all processors that it sees, also those that a container's limit keeps from it. Must come
    before PyTorch is imported; what the environment says already stays.
    """
    share = max(1, processors() // workers)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if share < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(share))


def _allowed(groups: Path, own: Path) -> float:
    """Return how many processors' time this process may take; infinity where there is no limit."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    found = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        for mount in (controllers, "cpu") if controllers else ("",):
            group = groups / mount / path.strip("/")
            # A group's limit holds for those within it; what lies above the container's own cannot be seen.
            found += [_limit(one, names) for one in (group, *group.parents) if one.is_relative_to(groups / mount)]
    return min(found)


def _limit(group: Path, names: tuple[str, ...]) -> float:
    try:
        quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ArithmeticError):  # there is no such file, or it says "max"
        return math.inf
