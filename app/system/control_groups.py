"""Linux control groups, version 2 or 1, which hold the limits of this process's container."""

from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")

OWN_GROUPS = Path("/proc/self/cgroup")


def own_groups(controller: str, groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the limits of this process, each with whether it is of version 1.

    Args:
        controller: the limited resource, such as ``cpu`` or ``memory``.
        groups: folder of control groups.
        own: file that lists those of this process, as far as it can see them.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (controllers, controller) if controllers else ("",):
            group = groups / mount / path.strip("/")
            # A group's limit applies to those within it; groups above the container's own are not visible.
            yield from (
                (folder, bool(controllers))
                for folder in (group, *group.parents)
                if folder.is_relative_to(groups / mount)
            )
