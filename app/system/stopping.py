"""Whether the whole service stops: one byte, which all processes forked from this one share."""

import mmap


class SharedFlag:
    """A flag that is seen at once by the process that makes it and by all that are forked from it later."""

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
"""Set once the service has been told to stop. A process that ends alone, as others take its place, does not set it."""
