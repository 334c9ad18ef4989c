"""HTTP, web page and command line: the only package that imports Flask.

The names in `__init__.pyi` are imported on first use: importing PyTorch takes seconds and half a gigabyte, and code
that does not need it, such as the command's help, does not wait for it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
