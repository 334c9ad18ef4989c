"""Flag that the whole service is stopping: one byte shared by all processes forked from this one."""

import mmap


class SharedFlag:
    """A flag shared by the process that creates it and all processes forked from it later."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._byte[0] != 0

    def set(self) -> None:
        """Set the flag."""
        self._byte[0] = 1

    def clear(self) -> None:
        """Clear the flag."""
        self._byte[0] = 0


stopping = SharedFlag()
"""Set once the whole service stops, not when a single process is replaced."""
