"""How much memory this process may take, how much it has, and what is left of it for requests."""

import math
import os
from pathlib import Path

from seewhy.app.system.control_groups import CONTROL_GROUPS, OWN_GROUPS, own_groups

PASSES_SHARE = 0.2
"""Share of the limit for passes through models and for gaps between the allocator's pieces."""

LEAST_BYTES = 128 * 2**20
"""Requests may take this much even under a narrow limit: with less, hardly a picture could be answered."""

STATUS = Path("/proc/self/status")

PASS_BYTES = 128 * 2**20, 2**30
"""Least and most that one pass may take: with less, pictures run one by one; more gains nothing."""

_FILES = {False: "memory.max", True: "memory.limit_in_bytes"}


def memory_limit(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Return the bytes that all processes of this container may take: the control groups' limit, or the machine's.

    Args:
        groups: where Linux tells the limits of control groups, version 2 or 1.
        own: the file that names those of this process, as far as it can see them.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_limit(group / _FILES[first]) for group, first in own_groups("memory", groups, own)]
    return int(min([physical, *limits]))


def own_memory(status: Path = STATUS) -> int:
    """Return the bytes that this process has taken and the system cannot take back; 0 where it does not tell.

    Pages of files, such as PyTorch's libraries, are not among them: under pressure the system drops them.
    """
    try:
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, ValueError):
        return 0


def request_memory(workers: int) -> int:
    """Return the bytes that all requests of a process may take together, before any model is loaded.

    Args:
        workers: processes that share the limit.
    """
    share = memory_limit() // workers
    return max(LEAST_BYTES, int(share * (1 - PASSES_SHARE)) - own_memory())


def pass_memory(workers: int, models: int) -> int:
    """Return the bytes that one pass through a model may take, where the pass is computed in this memory.

    Args:
        workers: processes that share the limit.
        models: that may run at once in each of them.
    """
    least, most = PASS_BYTES
    return max(least, min(most, int(memory_limit() * PASSES_SHARE) // (workers * models)))


def _limit(file: Path) -> float:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return math.inf
