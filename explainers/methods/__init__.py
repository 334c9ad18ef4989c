"""The methods, a folder for each family; importing this package puts all of them into the catalogue."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
