"""Linux control groups, version 2 or 1, which hold the limits of this process's container."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")

OWN_GROUPS = Path("/proc/self/cgroup")
"""The file that lists the control groups of this process, as far as it can see them."""


def own_limits(controller: str, second: str, *first: str) -> Iterator[list[int]]:
    """Yield the numbers of each limit of this process; files that say ``max``, or are not there, do not limit.

    Args:
        controller: the limited resource, such as ``cpu`` or ``memory``.
        second: file of the limit in a group of version 2.
        first: its files in one of version 1.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (controllers, controller) if controllers else ("",):
            root = CONTROL_GROUPS / mount
            group = root / path.strip("/")
            # A group's limit applies to those within it; groups above the container's own are not visible.
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):
                    if folder.is_relative_to(root):
                        files = first if controllers else (second,)
                        yield [int(number) for name in files for number in (folder / name).read_text().split()]
