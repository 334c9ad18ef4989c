"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

This package imports PyTorch, but neither model zoos nor Flask. The names in `__init__.pyi` are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
