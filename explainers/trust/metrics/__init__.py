"""Metrics of maps: faithfulness, localisation, complexity, stability. Importing this package fills the catalogue."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
