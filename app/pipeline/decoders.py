"""Processes that decode pictures within limits, and are replaced when they break them; quiet for all who decode."""

import ctypes
import json
import logging
import os
import signal
import socket
import struct
import subprocess  # nosec B404
import sys
import warnings
from multiprocessing import Pipe
from pathlib import Path
from queue import LifoQueue
from typing import Any

from PIL import Image, _imaging

from seewhy.app.errors import DeadlineError
from seewhy.app.system.allocator import PIECE_BYTES
from seewhy.explainers.errors import PictureError, PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.decode import Begin, Least, Reduced, at_once

_PROGRAM = Path(__file__).with_name("decoder.py")
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")


_log = logging.getLogger(__name__)


class BrokenDecoderError(Exception):
    """A decoding process ended, or did not answer in time."""


class Decoders:
    """Processes that decode, each one picture at a time; they start when they are needed.

    Args:
        count: how many at most.
        most_bytes: of address space that each may have.
        seconds: of processor time that each may spend on a picture.
        patience: seconds to wait for a picture, whatever the process is doing.
    """

    def __init__(self, count: int, most_bytes: int, seconds: int, patience: float) -> None:
        self._most_bytes, self._seconds, self._patience = most_bytes, seconds, patience
        self._idle: LifoQueue[_Decoder | None] = LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def read(self, content: bytes, least: Least, max_pixels: int, begin: Begin = at_once) -> Reduced:
        """Return the picture as `read_reduced` does.

        Raises:
            UnreadablePictureError: also if the picture brought the process down.
            PictureTooLargeError: also if it took too much memory or time.
            DeadlineError: the process did not answer in time, although it spent none on the picture.
        """
        decoder = self._idle.get()
        try:
            if decoder is None or not decoder.lives:
                decoder = _Decoder(self._most_bytes, self._seconds, self._patience)
            return decoder.read(content, least, max_pixels, begin)
        except PictureError:
            raise
        except BrokenDecoderError as error:
            status = decoder.end() if decoder else 0
            decoder = None
            if status is None:
                _log.warning("A decoding process did not answer for %.0f s, and is replaced.", self._patience)
                raise DeadlineError(
                    f"The picture was not decoded within {self._patience:.0f} s; try again, or send a smaller one."
                ) from error
            _log.warning("A decoding process ended with status %d, and is replaced.", status)
            if status in (-signal.SIGXCPU, -signal.SIGKILL):
                raise PictureTooLargeError(
                    f"The picture took more than {self._seconds} s of processor time, or more memory than there is, to "
                    "decode; send a smaller or simpler one."
                ) from error
            raise UnreadablePictureError(
                "The picture is damaged and broke the decoder; open it in an image editor and save it anew."
            ) from error
        except BaseException:
            if decoder:
                decoder.end()
            decoder = None
            raise
        finally:
            self._idle.put(decoder)

    def stop(self) -> None:
        """End all processes; those that are at work end with their picture."""
        idle = [self._idle.get() for _ in range(self._idle.qsize())]
        for decoder in idle:
            if decoder:
                decoder.end()
            self._idle.put(None)


class _Decoder:
    """One process."""

    def __init__(self, most_bytes: int, seconds: int, patience: float) -> None:
        self._patience = patience
        self._connection, other = Pipe()
        self._most_bytes = most_bytes
        with socket.socket(fileno=os.dup(self._connection.fileno())) as sent:  # the same one, seen as a socket
            sent.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(patience * 1e6), 10**6))
            )
        with other:
            descriptor = other.fileno()
            self._process = subprocess.Popen(  # nosec B603 - a program of this package, with numbers for arguments
                [sys.executable, "-P", str(_PROGRAM), *map(str, (descriptor, most_bytes, seconds))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                # Nothing of what the service knows, such as keys; no threads, whose stacks count as memory; and large
                # pictures in one piece, as `share_heaps` has it.
                env={name: os.environ[name] for name in _INHERITED if name in os.environ}
                | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PILLOW_BLOCK_SIZE": str(PIECE_BYTES)},
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def read(self, content: bytes, least: Least, max_pixels: int, begin: Begin) -> Reduced:
        try:
            self._send({"max_pixels": max_pixels})
            self._connection.send_bytes(content)
            answer = self._receive()
            if "size" in answer:
                self._send(least(*answer["size"]))
                answer = self._receive()
            if "pixels" in answer:
                begin(answer["pixels"])
                self._send("begin")
                answer = self._receive()
            if "unreadable" in answer:
                raise UnreadablePictureError(answer["unreadable"])
            if "too_large" in answer:
                raise PictureTooLargeError(answer["too_large"])
            if "memory" in answer:
                raise PictureTooLargeError("The picture takes more memory to decode than allowed; send a smaller one.")
            return Reduced(Image.frombytes("RGB", tuple(answer["picture"]), self._bytes()), *answer["sent"])
        except (EOFError, OSError) as error:
            raise BrokenDecoderError from error

    def end(self) -> int | None:
        """End the process; return what it ended with, None if it had to be made to."""
        self._connection.close()
        try:
            # One that broke a limit is ending by itself, and says how.
            return self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def _send(self, message: Any) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self) -> Any:
        return json.loads(self._bytes())

    def _bytes(self) -> bytes:
        if not self._connection.poll(self._patience):
            raise BrokenDecoderError
        return self._connection.recv_bytes(self._most_bytes)


def quiet_decoders() -> None:
    """Keep out of the log what decoders say of damaged pictures: whoever sent them is told."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    log = logging.getLogger("PIL")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    decoders = ctypes.CDLL(_imaging.__file__)
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):  # libtiff writes to the standard error by itself
        handle = getattr(decoders, name, None)
        if handle is not None:
            handle.argtypes, handle.restype = [ctypes.c_void_p], ctypes.c_void_p
            handle(None)
