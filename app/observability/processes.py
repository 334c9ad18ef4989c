"""What the metrics of several processes need: one folder for their figures.

`share_figures` must come before anything imports prometheus_client, which decides then where figures are kept: in files
that are mapped into memory. A write to such a file on a full disk ends the process, so the space is taken beforehand,
in memory (`/dev/shm`) where there is such a folder.
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
"""The variable that tells prometheus_client the folder."""

PARENTS = ("/dev/shm", None)  # nosec B108 - a new folder is made in it, by mkdtemp
"""Parents of the folder, in order of preference; None for the folder of temporary files."""

PREFIX = "seewhy-metrics-"
"""The beginning of the folder's name."""

SPACE = {"counter": 2**20, "gauge_livesum": 2**18, "histogram": 2**22, "summary": 2**20}
"""The files of a process and the bytes reserved for each: enough for hundreds of combinations of labels."""

_log = logging.getLogger(__name__)


def share_figures(workers: int) -> Callable[[], None]:
    """Give several processes a folder for their figures; a single one keeps them in memory.

    Returns:
        What removes the folder. It is called as this process ends, if it ends by itself.
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
        _log.warning("There is no space for figures of all processes: /metrics has those of the one that answers.")
    return lambda: None


def join_figures() -> None:
    """Take space for the figures of a process that has just been forked; without any, it keeps them to itself."""
    if FOLDER in os.environ and not _take_space(Path(os.environ[FOLDER])):
        from prometheus_client import values  # reads the variable as it is imported

        values.ValueClass = values.MutexValue
        _log.warning("There is no space for the figures of process %d: /metrics misses them.", os.getpid())


def forget_figures(pid: int) -> None:
    """Drop what was true of a process only while it lived; what it counted stays, in no more space than it needs."""
    if FOLDER not in os.environ:
        return
    from prometheus_client.multiprocess import mark_process_dead  # reads the variable as it is imported

    mark_process_dead(pid)  # type: ignore[no-untyped-call]
    for file in Path(os.environ[FOLDER]).glob(f"*_{pid}.db"):
        with file.open("rb") as opened:
            used = int.from_bytes(opened.read(4), sys.byteorder)  # a file begins with the number of bytes used
        os.truncate(file, max(used, 8))


def _take_space(folder: Path) -> bool:
    """Return whether there is space for the files of this process; if so, they are there."""
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
    """Make a folder that is locked as long as this process, or one that is forked from it, lives.

    Raises:
        OSError: there is no place for it.
    """
    for _ in range(3):  # another process may take it for abandoned before it is locked
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        if _lock(folder) is not None:  # and is never closed
            return folder
    raise OSError(f"no folder in {parent} can be locked")


def _remove_abandoned(parent: str) -> None:
    """Remove the folders of services whose first process was killed: those that nobody locks."""
    for folder in Path(parent).glob(f"{PREFIX}*"):
        lock = _lock(str(folder))
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: str) -> int | None:
    """Lock a folder; return the open file that keeps it so, or None where another process has it, or it is gone."""
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
    """Return the processes with figures: this one; of several, those that live and the one that watches them."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return [os.getpid()]
    return sorted(int(file.stem.rpartition("_")[2]) for file in Path(folder).glob("gauge_livesum_*.db"))
