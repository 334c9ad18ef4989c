"""The methods, each in a file with its relatives; importing this package puts all of them into the catalogue."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
