"""HTTP, web page and command line: the only floor that knows Flask.

What `__init__.pyi` names is imported when it is first used: PyTorch takes seconds and half a gigabyte to import, and
what needs none of it, such as the help of the command, does not wait for it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
