"""What we use of timm and of the Hugging Face Hub.

Both import tqdm's bar for notebooks, which in Jupyter warns where ipywidgets is missing: of a bar that nobody asked
for. So they are imported here alone, and in silence.
"""

import warnings

from tqdm import TqdmWarning

# Not within `process_wide.exclusive`: who imports holds a lock of Python's, which another thread that is in
# there may be waiting for.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)
    import timm
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

__all__ = ["ImageNetInfo", "hf_hub_download", "infer_imagenet_subset", "timm", "try_to_load_from_cache"]
