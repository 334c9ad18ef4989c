"""Limits of pictures; without NumPy and Pillow, because settings use them."""

MAX_PIXELS = 64_000_000
"""Default of the maximum number of pixels of a picture: 64 megapixels."""

PIXEL_BYTES = 16
"""Maximum bytes of memory per pixel while decoding: those of WebP, with 8 in its decoder."""
