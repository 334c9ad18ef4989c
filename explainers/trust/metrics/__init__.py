"""Metrics of maps: how faithful, well placed, simple and stable they are; importing it fills the catalogue."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
