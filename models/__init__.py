"""Pretrained networks by name: weights, preprocessing, labels, layers.

It imports torchvision and timm. What `__init__.pyi` names is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
