"""What an explanation needs to know of a model beside its module; a `LoadedModel` of the floor above is one."""

from collections.abc import Sequence
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.imaging.geometry import Geometry


class Preprocess(Protocol):
    """How a picture becomes the model's input."""

    def __call__(self, picture: Image.Image) -> Tensor:
        """Return (C, H, W) float32, normalised."""

    def geometry(self, width: int, height: int) -> Geometry:
        """Return which part of a picture of this size the model sees."""


class Model(Protocol):
    """What `explain` asks of a model; a `LoadedModel` is one."""

    @property
    def module(self) -> nn.Module:
        """The classifier."""

    @property
    def preprocess(self) -> Preprocess:
        """Picture to input."""

    @property
    def labels(self) -> Sequence[str]:
        """One label per class."""

    @property
    def default_layers(self) -> tuple[str, ...]:
        """Layers that CAMs use unless told otherwise."""

    @property
    def device(self) -> torch.device:
        """Where the module lives."""


def must_know_pictures(model: object) -> None:
    """Raise where a model does not tell how it sees pictures.

    Raises:
        UnsupportedModuleError: it is a bare module, a name, or nothing of the kind.
    """
    if isinstance(model, nn.Module):
        raise UnsupportedModuleError(
            f"{type(model).__name__} is a bare module: how it sees pictures, and what its classes are called, is not "
            "known. Give `seewhy.wrap_model(module, labels=..., input_size=...)`; or have a method explain tensors, as "
            "`GradCAM().explain(module, images)` does."
        )
    if isinstance(model, str):
        raise UnsupportedModuleError(f"{model!r} is the name of a model; give `seewhy.load_model({model!r})`.")
    if not hasattr(model, "preprocess"):
        raise UnsupportedModuleError(f"A model is needed, as `seewhy.load_model` returns, not {type(model).__name__}.")
