"""Memory limits: of this process, of its requests, and of one pass."""

import os
from pathlib import Path

from seewhy.app.system.control_groups import own_limits

PASSES_SHARE = 0.2
"""Share of the limit for passes through models and for fragmentation."""

LEAST_BYTES = 128 * 2**20
"""Requests may take this much even under a low limit: with less, hardly any picture could be answered."""

STATUS = Path("/proc/self/status")

PASS_BYTES = 128 * 2**20, 2**30
"""Minimum and maximum memory of one pass: with less, pictures run one by one; more gains nothing."""


def memory_limit() -> int:
    """Return the memory limit of this container in bytes: that of its control groups, or the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for (limit,) in own_limits("memory", "memory.max", "memory.limit_in_bytes"))])


def own_memory() -> int:
    """Return the unreclaimable memory of this process in bytes; 0 if the system does not report it.

    It does not include pages of files, such as PyTorch's libraries: under memory pressure the system drops them.
    """
    try:
        lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines() if ":" in line)
        return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, ValueError):
        return 0


def request_memory(workers: int) -> int:
    """Return the memory for all requests of a process in bytes, before any model is loaded."""
    share = memory_limit() // workers
    return max(LEAST_BYTES, int(share * (1 - PASSES_SHARE)) - own_memory())


def pass_memory(workers: int, models: int) -> int:
    """Return the memory for one pass through a model in bytes, if it runs in this memory (on a CPU).

    Args:
        workers: number of processes that share the limit.
        models: number of models that may run at once in each of them.
    """
    least, most = PASS_BYTES
    return max(least, min(most, int(memory_limit() * PASSES_SHARE) // (workers * models)))
