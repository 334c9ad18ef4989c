"""The parts of timm and of the Hugging Face Hub that SeeWhy uses.

Both import tqdm's bar for notebooks, which warns in Jupyter if ipywidgets is missing, though SeeWhy shows no such bar.
So they are imported only here, with that warning off.
"""

import warnings

from tqdm import TqdmWarning

# Outside `process_wide.exclusive`: an importing thread holds Python's import lock, and a thread inside `exclusive` may
# wait for that lock.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)
    import timm
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

__all__ = ["ImageNetInfo", "hf_hub_download", "infer_imagenet_subset", "timm", "try_to_load_from_cache"]
