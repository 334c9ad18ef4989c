"""Where models come from. Without PyTorch: the help and the completion of commands name the sources."""

from typing import Literal, get_args

Source = Literal["own", "embedded", "torchvision", "timm"]
SOURCES: tuple[Source, ...] = get_args(Source)
