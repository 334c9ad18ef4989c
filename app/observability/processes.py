"""The folder that the metrics of several processes share.

`share_figures` must run before prometheus_client is imported, which then decides where it keeps figures: in
memory-mapped files. A write to such a file on a full disk ends the process, so the space is allocated beforehand, in
memory (`/dev/shm`) if there is such a folder.
"""

import atexit
import fcntl
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client for the folder."""

PARENTS = ("/dev/shm", None)  # nosec B108 - a new folder is made in it, by mkdtemp
"""Parents of the folder, in order of preference; None for the folder of temporary files."""

PREFIX = "seewhy-metrics-"
"""Prefix of the folder's name."""

SPACE = {"counter": 2**20, "gauge_livesum": 2**18, "gauge_max": 2**16, "histogram": 2**22, "summary": 2**20}
"""Files of a process and the bytes allocated for each: enough for hundreds of combinations of labels."""

_log = logging.getLogger(__name__)


def share_figures(workers: int) -> Callable[[], None]:
    """Create the folder for the figures of several processes; a single one keeps them in memory.

    Returns:
        A function that removes the folder. It also runs when this process exits normally.
    """
    os.environ.pop(FOLDER, None)
    for parent in PARENTS:
        _remove_abandoned(parent or tempfile.gettempdir())
    for parent in PARENTS if workers > 1 else ():
        try:
            folder = _locked_folder(parent)
        except OSError:
            continue
        if _take_space(Path(folder)):
            os.environ[FOLDER] = folder
            remove = partial(_remove, folder, os.getpid())
            atexit.register(remove)
            return remove
        shutil.rmtree(folder, ignore_errors=True)
    if workers > 1:
        _log.warning(
            "There is no space for the metrics of all processes: /metrics shows only those of the process "
            "that responds."
        )
    return lambda: None


def join_figures() -> None:
    """Allocate space for the figures of a process just forked; without space, it keeps them in memory."""
    if FOLDER in os.environ and not _take_space(Path(os.environ[FOLDER])):
        from prometheus_client import values  # reads the variable as it is imported

        values.ValueClass = values.MutexValue
        _log.warning("There is no space for the metrics of process %d: /metrics does not include them.", os.getpid())


def forget_figures(pid: int) -> None:
    """Drop the gauges of an ended process; its counters stay, in files cut to the size they need."""
    if FOLDER not in os.environ:
        return
    from prometheus_client.multiprocess import mark_process_dead  # reads the variable as it is imported

    mark_process_dead(pid)  # type: ignore[no-untyped-call]
    for file in Path(os.environ[FOLDER]).glob(f"*_{pid}.db"):
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(4), sys.byteorder)  # a file begins with the number of bytes used
        os.truncate(file, max(length, 8))


def _take_space(folder: Path) -> bool:
    """Allocate the files of this process, and return whether there was space."""
    files = {folder / f"{kind}_{os.getpid()}.db": size for kind, size in SPACE.items()}
    try:
        for file, size in files.items():
            file.write_bytes(bytes(size))
    except OSError:
        for file in files:
            file.unlink(missing_ok=True)
        return False
    return True


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # workers inherit the registration
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(parent: str | None) -> str:
    """Create a folder that is locked while this process or one forked from it lives.

    Raises:
        OSError: there is no space for it.
    """
    for _ in range(3):  # another process may remove it as abandoned before it is locked
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        if _lock(folder) is not None:  # the file is never closed
            return folder
    raise OSError(f"no folder in {parent} can be locked")


def _remove_abandoned(parent: str) -> None:
    """Remove folders of services whose first process was killed: those without a lock."""
    for folder in Path(parent).glob(f"{PREFIX}*"):
        lock = _lock(str(folder))
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: str) -> int | None:
    """Lock a folder; return the open file that holds the lock, or None if another process has it or it is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder)
    except OSError:
        os.close(lock)
        return None
    return lock


def live_processes() -> list[int]:
    """Return the processes with figures: this one, or all live workers and the process that watches them."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return [os.getpid()]
    return sorted(int(file.stem.rpartition("_")[2]) for file in Path(folder).glob("gauge_livesum_*.db"))
