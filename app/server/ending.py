"""The end of a process, at once: in the midst of whatever its threads do."""

import logging
import os
import sys
from typing import NoReturn


def end_process(error: BaseException | None) -> NoReturn:
    """End this process.

    As Python ends it takes PyTorch apart, waits for threads that answer, and kills those that are in the midst of
    something, such as loading a model; C++ takes that for a fault.

    Args:
        error: that ends it; its exit status is that of a program that Python ends with it.
    """
    status = error.code if isinstance(error, SystemExit) else error and 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else int(bool(status)))
