"""Limits of pictures. It imports no NumPy or Pillow, because settings use it."""

MAX_PIXELS = 64_000_000
"""Default of the most pixels of a picture: 64 megapixels."""

PIXEL_BYTES = 16
"""Most bytes of memory per pixel while decoding: those of WebP, with 8 in its decoder."""
