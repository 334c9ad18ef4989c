"""Why a vision model said what it said: heatmaps, and the hooks below them.

Its names are those of `explainers` and `models`, and the client in `app`, imported when they are first used: `import
seewhy` imports no PyTorch.
"""

from typing import Any

from . import app, explainers, models

_OF_APP = ("Client", "ServiceError")

__all__ = sorted([*explainers.__all__, *models.__all__, *_OF_APP])


def __dir__() -> list[str]:
    return [*__all__, "app", "explainers", "models"]


def __getattr__(name: str) -> Any:
    if name in _OF_APP:
        return getattr(app, name)
    for floor in (explainers, models):
        if name in floor.__all__:
            return getattr(floor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
