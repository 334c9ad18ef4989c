"""Immediate end of a process, whatever its threads do."""

import logging
import os
import sys
from typing import NoReturn


def end_process(error: BaseException | None) -> NoReturn:
    """End this process.

    At a normal exit Python dismantles PyTorch, waits for threads that answer, and kills threads in the middle of their
    work, such as loading a model, on which C++ aborts.

    Args:
        error: the reason; the exit status is the one that Python would give it.
    """
    status = error.code if isinstance(error, SystemExit) else error and 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else int(bool(status)))
