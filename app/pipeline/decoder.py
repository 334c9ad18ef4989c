"""The program of a decoding process: pictures come in, pixels go out, within limits of memory and processor time.

`decoders.py` runs it as ``python decoder.py DESCRIPTOR BYTES SECONDS`` and talks to it over that descriptor, in JSON
 and plain bytes: nothing is ever unpickled. Once it is ready it can open neither files nor sockets.
"""

import json
import logging
import resource
import sys
import warnings
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

PLUGINS = ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP")


def main(descriptor: int, most_bytes: int, seconds: int) -> None:
    """Decode until the other end is closed.

    Args:
        descriptor: of the connection.
        most_bytes: of address space.
        seconds: of processor time for each picture.
    """
    warnings.simplefilter("ignore")
    logging.disable()
    picture, errors = _modules()
    connection: Connection[bytes, bytes] = Connection(descriptor)
    _limit(resource.RLIMIT_AS, most_bytes)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        _limit(kind, 0)

    def least(width: int, height: int) -> tuple[int, int]:
        _send(connection, {"size": (width, height)})
        across, down = json.loads(connection.recv_bytes())
        return across, down

    def begin(pixels: int) -> None:
        _send(connection, {"pixels": pixels})
        connection.recv_bytes()

    while True:
        try:
            asked = json.loads(connection.recv_bytes())
            content = connection.recv_bytes()
        except EOFError:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + 1 + seconds, resource.RLIM_INFINITY))
        try:
            found = picture.read_reduced(content, least, asked["max_pixels"], begin)
            pixels = found.picture.tobytes()
        except MemoryError:
            _send(connection, {"memory": most_bytes})
        except errors.PictureTooLargeError as error:
            _send(connection, {"too_large": str(error)})
        except errors.UnreadablePictureError as error:
            _send(connection, {"unreadable": str(error)})
        else:
            _send(connection, {"picture": found.picture.size, "sent": found.size})
            connection.send_bytes(pixels)
        content, found, pixels = b"", None, b""


def _modules() -> tuple[Any, Any]:
    """Import what decodes, but not the package it is in: that imports PyTorch."""
    package = ModuleType("explainers")
    package.__path__ = [str(Path(__file__).parents[1] / "explainers")]
    sys.modules["explainers"] = package
    for name in PLUGINS:
        import_module(f"PIL.{name}ImagePlugin")
    # Before anything is limited Pillow looks for its plugins, and each decoder for what it needs.
    picture, errors = import_module("seewhy.explainers.imaging.decode"), import_module("seewhy.explainers.errors")
    import_module("PIL.Image").preinit()
    return picture, errors


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _send(connection: "Connection[bytes, bytes]", message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
