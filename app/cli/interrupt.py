"""Ctrl-C: the first one ends a command in good order, a second one at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""

_NOTICE = b"\nEnding. Press Ctrl-C again to stop at once.\n"


@contextmanager
def graceful() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first Ctrl-C in this block, and end the process for a second one.

    It changes nothing where Python's own handler is not in place, as in the background of a shell.
    """
    if not _is_main() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:  # after a Ctrl-C, the next one ends Python's own exit too
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def unbroken() -> Iterator[None]:
    """Put off the first Ctrl-C to the end of this block, so that what it writes is whole."""
    if not _is_main() or signal.getsignal(signal.SIGINT) is not _interrupt:
        yield
        return
    is_interrupted = False

    def put_off(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        _notice()

    signal.signal(signal.SIGINT, put_off)
    try:
        yield
    finally:
        if not is_interrupted:
            signal.signal(signal.SIGINT, _interrupt)
    if is_interrupted:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    _notice()
    raise KeyboardInterrupt


def _notice() -> None:
    signal.signal(signal.SIGINT, _stop)
    os.write(2, _NOTICE)  # `sys.stderr` may be in the middle of a line


def _stop(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)  # Python's own exit would wait for the threads of pictures


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
