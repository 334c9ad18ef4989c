"""Warnings that say less than our own errors."""

import warnings


def ignore_large_pictures() -> None:
    """Keep Pillow's warning about large pictures out of this process's output: `max_pixels` decides about them."""
    warnings.filterwarnings("ignore", r"Image size .* exceeds limit", module=r"PIL\.")
