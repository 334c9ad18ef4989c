"""ONNX models that were exported once, for this process and those that it forks.

Exporting takes longer than all else that loading a model does. A process that takes the place of another, or that loads
a model anew, finds here what was exported before it.
"""

import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx

SPACE = 2**28
"""Bytes that may be kept. What comes when they are used up takes the place of all that is there."""

_LENGTH = 8
"""Bytes in which a length is written down."""

_log = logging.getLogger(__name__)


class Exports:
    """Exported models by what they were exported from, in memory that forked processes share; only these can reach it.

    A file without a name, in memory: the number of its bytes in use, and entries of key, length and value. A process
    that is killed while it writes leaves bytes that are not in use yet. Where the file fails, nothing is kept.

    Args:
        space: bytes that may be kept.

    Raises:
        OSError: the system has no such memory.
    """

    def __init__(self, space: int = SPACE) -> None:
        self._file = os.memfd_create("seewhy-exports")
        self._space = space
        self._lock = threading.Lock()
        self._use(_LENGTH)
        # Not at the end of the process, when other threads may still use it.
        weakref.finalize(self, os.close, self._file).atexit = False

    def get(self, key: bytes) -> bytes | None:
        """Return what was kept under a key; None if nothing was."""
        try:
            with self._locked():
                return next(
                    (os.pread(self._file, length, place) for found, place, length in self._entries() if found == key),
                    None,
                )
        except OSError as error:
            _log.info("No exported model can be looked up: %s", error)
            return None

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value, if none of that key is there.

        Args:
            key: of 32 bytes.
            value: of any number; one that alone takes more than the space is not kept.
        """
        try:
            with self._locked():
                if all(key != found for found, _, _ in self._entries()):
                    self._append(key + len(value).to_bytes(_LENGTH, "big") + value)
        except OSError as error:
            _log.info("An exported model is not kept: %s", error)

    def _append(self, entry: bytes) -> None:
        if _LENGTH + len(entry) > self._space:
            _log.info("An exported model of %d bytes is not kept: there is space for %d.", len(entry), self._space)
            return
        end = self._used()
        if end + len(entry) > self._space:
            end = _LENGTH
            self._use(end)
            os.ftruncate(self._file, end)
        if os.pwrite(self._file, entry, end) == len(entry):
            self._use(end + len(entry))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep out other threads, and other processes, whose lock the system lets go of when they are killed."""
        import fcntl

        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield key, place and length of each value."""
        place, end, header = _LENGTH, self._used(), hashlib.sha256().digest_size + _LENGTH
        while place < end:
            found = os.pread(self._file, header, place)
            length = int.from_bytes(found[-_LENGTH:], "big")
            yield found[:-_LENGTH], place + header, length
            place += header + length

    def _use(self, count: int) -> None:
        os.pwrite(self._file, count.to_bytes(_LENGTH, "big"), 0)

    def _used(self) -> int:
        return int.from_bytes(os.pread(self._file, _LENGTH, 0), "big")


def fingerprint(part: fx.GraphModule, image: Tensor) -> bytes:
    """Return 32 bytes that tell what is exported of a part for images (1, C, H, W): its code, modules and weights.

    Modules that differ in what they do not print have the same, so what comes out must be compared with the model.
    """
    digest = hashlib.sha256(f"{part} {tuple(image.shape)}".encode())
    for name, value in (*part.named_parameters(), *part.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
