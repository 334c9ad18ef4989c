"""Accelerators by name. It imports no PyTorch, because settings use it."""

ACCELERATOR_NAMES = ("auto", "eager", "onnxruntime", "openvino", "fastest", "compile")
