"""Accelerators by name. It imports no PyTorch, because settings use it."""

ACCELERATOR_NAMES = ("auto", "eager", "openvino", "compile")
