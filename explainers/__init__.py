"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

This floor knows torch and nothing of model zoos or HTTP. What `__init__.pyi` names is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
