"""How many files a process may have open, and how many of these may be connections."""

import resource

MOST_CONNECTIONS = 1000
"""At a time, of a process. A proxy needs no more than there are requests; the rest is for who comes without one."""

RESERVED_FILES = 128
"""For models, figures, logs, and processes that decode."""

FILES_PER_THREAD = 4
"""One to wait for a connection, and some for the work."""


def raise_file_limit() -> None:
    """Let this process, and those that it forks, open as many files as the system allows it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections(threads: int) -> int:
    """Return how many connections a process may have at a time, so that files are left for its work.

    Args:
        threads: that answer requests.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(threads + 1, min(MOST_CONNECTIONS, files - FILES_PER_THREAD * threads - RESERVED_FILES))
