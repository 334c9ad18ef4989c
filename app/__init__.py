"""HTTP, web page and command line: the only floor that knows Flask."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from seewhy.app.settings import Settings

__all__ = ["create_app"]


def create_app(settings: "Settings | None" = None, strict: bool = True) -> "Flask":
    """Make the application. No thread starts and no model loads before the first request.

    Args:
        settings: by default those of the environment.
        strict: refuse a file of keys that cannot be read; otherwise it lets nobody in until it can.
    """
    # PyTorch takes seconds and half a gigabyte to import: what needs none of it, such as the help of the command, does
    # not wait for it, and `seewhy serve` divides the processors before.
    from seewhy.app.application import create_app as create

    return create(settings, strict)
