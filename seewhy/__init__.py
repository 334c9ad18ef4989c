"""Why a vision model said what it said: heatmaps, and the hooks below them.

What `__init__.pyi` names is imported when it is first used: `import seewhy` imports no PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
