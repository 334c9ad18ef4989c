"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

It imports PyTorch, and neither model zoos nor Flask. What `__init__.pyi` names is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
