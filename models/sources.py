"""The sources of models. It imports no PyTorch, because the help and the completion of commands use it."""

from typing import Literal, get_args

Source = Literal["own", "embedded", "torchvision", "timm"]
SOURCES: tuple[Source, ...] = get_args(Source)
