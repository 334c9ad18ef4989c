"""The interface of models that explanations need; `LoadedModel` implements it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.execution.accelerated import AcceleratedModel
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.layers.survey import Survey


class Preprocess(Protocol):
    """How a picture becomes the model's input."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean to subtract from each channel in [0, 1]."""

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation to divide each channel by."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the model's input, in pixels."""

    def __call__(self, picture: Image.Image) -> Tensor:
        """Return (C, H, W) float32, normalised."""

    def geometry(self, width: int, height: int) -> Geometry:
        """Return which part of a picture of this size the model sees."""


@dataclass(frozen=True)
class ModelIdentity:
    """The identity of a model, for documents.

    Attributes:
        name: as users type it.
        weights: name of the weight set; None for random or unknown weights.
        sha256: SHA-256 of the weights file, hexadecimal; None likewise.
        head: how outputs are interpreted, such as ``softmax``.
        precision: the lowest precision in which the model computes, such as ``float32``.
    """

    name: str
    weights: str | None
    sha256: str | None
    head: str
    precision: str


class Model(Protocol):
    """The interface that `explain` needs; `LoadedModel` implements it."""

    @property
    def module(self) -> nn.Module:
        """The network, in evaluation mode."""

    @property
    def task(self) -> Task:
        """The task that the model was trained for."""

    @property
    def preprocess(self) -> Preprocess:
        """Picture to input."""

    @property
    def identity(self) -> ModelIdentity:
        """The model's identity, for documents."""

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables with which the command line finds it; `MODELS` stands for the models file, `FOLDER` for its code's
        folder."""

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the weights file, hexadecimal; None for random or unknown weights."""

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """Scores that its proofs are compared with, before the included ones."""

    @property
    def labels(self) -> Sequence[str]:
        """One label per class."""

    @property
    def default_layers(self) -> tuple[str, ...]:
        """Layers that CAMs use unless others are named."""

    @property
    def no_default_layer(self) -> str | None:
        """The reason if it has no default layers; else None."""

    @property
    def survey(self) -> Survey:
        """The layers, in execution order."""

    @property
    def accelerated(self) -> AcceleratedModel | None:
        """The runtime of the parts that need no hooks; None if PyTorch runs everything."""

    @property
    def device(self) -> torch.device:
        """The module's device."""

    @property
    def accelerator(self) -> str:
        """Runtime for the parts of the model that need no hooks, or ``auto``."""


AnyModel = nn.Module | Model
"""A bare module, or a model that knows its task, its layers and how it sees pictures."""


def must_know_pictures(model: object, picture: object) -> None:
    """Raise an error if a model's preprocessing is unknown.

    Args:
        model: the first argument of a user's call.
        picture: the second.

    Raises:
        UnsupportedModuleError: the model is a bare module, a name or another object; or the arguments were swapped.
    """
    if not hasattr(model, "preprocess") and (isinstance(picture, nn.Module) or hasattr(picture, "preprocess")):
        raise UnsupportedModuleError("The model comes first, then the picture: swap the two arguments.")
    if isinstance(model, nn.Module):
        raise UnsupportedModuleError(
            f"{type(model).__name__} is a bare module without preprocessing and labels. Pass "
            "`seewhy.wrap_model(module, labels=..., input_size=...)`, or explain tensors with a method, as in "
            "`GradCAM().explain(module, images)`."
        )
    if isinstance(model, str):
        raise UnsupportedModuleError(f"{model!r} is the name of a model; pass `seewhy.load_model({model!r})`.")
    if not hasattr(model, "preprocess"):
        raise UnsupportedModuleError(
            f"Expected a model, as returned by `seewhy.load_model`, got {type(model).__name__}."
        )
