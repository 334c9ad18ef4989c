"""Why a vision model said what it said: heatmaps, and the hooks below them.

Its names are those of `explainers` and `models`, and some of `app`, imported when they are first used: `import seewhy`
imports no PyTorch.
"""

from importlib import import_module
from typing import Any

from . import explainers, models

_OF_APP = {
    "Client": "seewhy.app.client.client",
    "ServiceError": "seewhy.app.errors",
    "batch": "seewhy.app.batch.run",
    "forecast": "seewhy.app.batch.run",
    "open_batch": "seewhy.app.batch.reader",
}
"""Modules by the names that they hold."""

__all__ = sorted([*explainers.__all__, *models.__all__, *_OF_APP])


def __dir__() -> list[str]:
    return [*__all__, "explainers", "models"]


def __getattr__(name: str) -> Any:
    if name in _OF_APP:
        return getattr(import_module(_OF_APP[name]), name)
    for floor in (explainers, models):
        if name in floor.__all__:
            return getattr(floor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
