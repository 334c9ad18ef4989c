"""Why a vision model said what it said: heatmaps, and the hooks below them.

Its names are those of `explainers` and `models`, imported when they are first used: `import seewhy` imports no PyTorch.
"""

from typing import Any

from . import explainers, models

__all__ = sorted([*explainers.__all__, *models.__all__])


def __dir__() -> list[str]:
    return [*__all__, "explainers", "models"]


def __getattr__(name: str) -> Any:
    for floor in (explainers, models):
        if name in floor.__all__:
            return getattr(floor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
