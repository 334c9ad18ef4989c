"""The origin of an explanation, for its documents: model, options, file, versions."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhy.explainers.core.model import Model, ModelIdentity
from seewhy.explainers.methods.explainer import Explainer

VERSIONS = {name: version(name) for name in ("seewhy", "torch", "torchvision", "timm", "pillow")}
"""The packages whose versions results depend on."""


@dataclass(frozen=True)
class FileIdentity:
    """The identity of a file.

    Attributes:
        sha256: hexadecimal.
        bytes: its size.
        name: without its folder; empty if unknown.
    """

    sha256: str
    bytes: int
    name: str = ""

    def document(self) -> dict[str, Any]:
        """Return the known attributes, for JSON."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def file_identity(content: bytes, name: str = "") -> FileIdentity:
    """Return the identity of a file; bytes of its name that are not text are replaced."""
    return FileIdentity(hashlib.sha256(content).hexdigest(), len(content), name.encode("utf-8", "replace").decode())


@dataclass(frozen=True, eq=False)
class Origin:
    """The origin of an explanation.

    Attributes:
        model: the model; not its module, so that explanations stay small.
        device, accelerator: where the model ran.
        options: options of the method.
        outputs: (K,) float32, the model's outputs, such as logits; None for detectors and segmenters, whose outputs are
            large.
        file: the picture's file; None where there was none.
        environment: variables with which the command line finds the model.
        repeats: whether the command line can repeat the explanation.
    """

    model: ModelIdentity
    device: str
    accelerator: str
    options: Mapping[str, Any]
    outputs: NDArray[np.float32] | None
    file: FileIdentity | None
    environment: tuple[str, ...]
    repeats: bool


def origin_of(
    model: Model,
    explainer: Explainer,
    outputs: NDArray[np.float32] | None,
    file: FileIdentity | None,
    repeats: bool,
) -> Origin:
    """Return the origin of an explanation; arguments as its attributes."""
    options = options_of(explainer)
    return Origin(
        model.identity, str(model.device), model.accelerator, options, outputs, file, model.environment, repeats
    )


def options_of(explainer: Explainer) -> dict[str, Any]:
    """Return the options of a method for JSON, without its layers."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(explainer).items()
        if name != "layers"
    }
