"""Limits on a process's open files and connections."""

import resource

MOST_CONNECTIONS = 1000
"""Per process. A proxy needs one for each request in flight; the rest is for clients without a proxy."""

RESERVED_FILES = 128
"""Files for models, metrics and logs."""

FILES_PER_THREAD = 4
"""Files per thread: one to wait for a connection, the others for the work."""


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections(threads: int) -> int:
    """Return how many connections a process may have at once, so that files are left for its work."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(threads + 1, min(MOST_CONNECTIONS, files - FILES_PER_THREAD * threads - RESERVED_FILES))
