"""Pretrained CNNs by name: weights, preprocessing, labels, layers.

This floor knows torchvision and timm; of the explainers it uses the survey of layers and the geometry. What
`__init__.pyi` names is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
