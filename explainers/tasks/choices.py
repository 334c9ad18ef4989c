"""The choices that tasks offer, and their default methods.

This module imports no PyTorch, because the help and the completion of commands use it.
"""

from typing import Literal, get_args

Part = Literal["region", "border", "picture"]
"""Where a segmenter's logits are averaged: over a region, over its border, or over all positions."""

PARTS: tuple[Part, ...] = get_args(Part)

DEFAULT_METHOD = "gradcam"
"""The default method of tasks that name no other."""

CLASS_METHOD = "votes-detail"
"""The method that the page starts with for classifiers."""

REGION_METHOD = "hirescam"
"""The default method of segmenters: each position is weighed by its own gradient, which the region's place decides."""

BOX_METHOD = "odam"
"""The default method of detectors: Grad-CAM averages gradients over the picture, and so mixes boxes up."""
