"""Why a vision model said what it said: heatmaps, and the hooks below them.

Its names are those of `explainers` and `models`, and some of `app`, imported when they are first used: `import seewhy`
imports no PyTorch.
"""

from importlib import import_module
from importlib.util import find_spec
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

# Without the extra `batch`, a star import must not fail.
_left_out = {name for name, module in _OF_APP.items() if ".batch." in module and not find_spec("pyarrow")}

__all__ = sorted({*explainers.__all__, *models.__all__, *_OF_APP} - _left_out)


def __dir__() -> list[str]:
    return [*__all__, "explainers", "models"]


def __getattr__(name: str) -> Any:
    if name in _OF_APP:
        try:
            return getattr(import_module(_OF_APP[name]), name)
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} needs the package {error.name}: pip install 'seewhy[batch]'") from error
    for floor in (explainers, models):
        if name in floor.__all__:
            return getattr(floor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
