"""Maps must not depend on the rest of the batch or on the number of threads: `python -m tools.company`.

A picture is explained alone, as the first and as the last of a batch, and with one and two threads: the processor then
takes sums in another order, and rounding differs. It prints, for each network and method, the largest difference
between two maps of one picture, over the map's largest value. Answers with a diagnostic that rounding decides them, or
is visible in them, are marked and not counted.
"""

import argparse
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import seewhy.explainers.methods  # noqa: F401  which enters the methods into the catalogue
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.base import KINKS
from seewhy.models import load_model, wrap_model
from seewhy.models.spec import LoadedModel
from tests import nets

EXAMPLES = Path(__file__).parents[1] / "examples"

TOLERANCE = 1e-4
"""Largest difference over the map's largest value."""

KINK_TOLERANCE = 0.05
"""The same for means of gradients at many pictures, where a rectifier may open at one of them."""

COUNT = 8
"""Number of pictures in the batch."""

ROW = 3
"""The index of the observed picture."""

FEW: Mapping[str, Any] = {
    "samples": 3,
    "steps": 4,
    "masks": 12,
    "segments": 8,
    "iterations": 6,
    "grid": 2,
    "concepts": 3,
    "patch": 16,
    "stride": 16,
    "cells": 3,
}
"""Small values of the options that make methods expensive."""


def network(name: str, trained: bool = False) -> nn.Module:
    """Return a network with fixed random weights, biases and statistics, or with those included in the project."""
    if trained:
        return load_model(name).module
    net: nn.Module = nets.seeded(torchvision.models.get_model, name)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for key, value in net.state_dict().items():
        if key.endswith(("bias", "running_mean")):
            value.copy_(torch.randn(value.shape, generator=generator) / 5)
        elif key.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return net.eval().requires_grad_(False)


@dataclass(frozen=True)
class Network:
    """A network to try methods on.

    Attributes:
        name: name by which it is loaded.
        side: side of its pictures.
        trained: whether its weights are those included in the project.
        accelerated: whether the part before its layers runs on an accelerator.
        layer: a layer of few channels, for methods that run the model for each channel.
    """

    name: str
    side: int = 64
    trained: bool = False
    accelerated: bool = False
    layer: str = ""

    def __str__(self) -> str:
        kind = "trained" if self.trained else "random"
        return f"{self.name}, {kind}{', accelerated' * self.accelerated}, {self.side} pixels"

    def load(self) -> nn.Module | LoadedModel:
        """Return the module, or the model if it is accelerated, ready."""
        module = network(self.name, self.trained)
        if not self.accelerated:
            return module
        model = wrap_model(module, input_size=self.side)
        model.accelerated.warm()
        return model


NETWORKS = (
    Network("efficientnet_lite0", 96, trained=True, layer="blocks.0"),
    Network("efficientnet_lite0", 96, trained=True, accelerated=True, layer="blocks.0"),
    Network("mobilenet_v2", 96, trained=True, layer="features.1"),
    Network("mobilenet_v3_small", layer="features.0"),
    Network("resnet18", layer="layer1"),
    Network("densenet121", layer="features.transition1"),
    Network("convnext_tiny", layer="features.1"),
    Network("regnet_y_400mf", layer="stem"),
)


def options_of(name: str, network: Network) -> dict[str, Any]:
    """Return the options with which a method is tried on a network."""
    return {"layers": (network.layer,)} if "channels" in METHODS[name].forwards else {}


def pictures(side: int) -> Tensor:
    """Return eight pictures (8, 3, side, side), normalised: the examples, and parts of them."""
    tensors = []
    for path in sorted(EXAMPLES.glob("*.png")):
        with Image.open(path) as image:
            upright = image.convert("RGB")
        width, height = upright.size
        boxes = (None, (width // 4, height // 4, 3 * width // 4, 3 * height // 4))
        tensors += [torch.tensor(bytearray(upright.resize((side, side), box=box).tobytes())) for box in boxes]
    pixels = torch.stack(tensors[:COUNT]).view(COUNT, side, side, 3).permute(0, 3, 1, 2).contiguous() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (pixels - mean) / std


def explainer_of(name: str, model: Any, **options: Any) -> Explainer:
    """Return a method with few passes."""
    method = METHODS[name]
    if name == "kernel-shap":  # its values need a minimum number of samples
        options = {"samples": 16, "segments": 4, **options}
    settings = {option: value for option, value in FEW.items() if option in method.options}
    for option, value in settings.items():
        settings[option] = max(value, method.options[option].get("minimum", value))
    return method.build({**settings, **options})


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def answers(
    explain: Callable[[Tensor, Tensor], Attribution], images: Tensor, targets: Tensor, row: int
) -> Iterator[tuple[str, Attribution]]:
    """Yield the attribution (N = 1) of a picture alone and in company, with the name of the company.

    Args:
        explain: makes the attribution of pictures and targets.
        images: (N, 3, H, W).
        targets: (N,).
        row: index of the picture.
    """
    turned = images.roll(-1 - row, 0), targets.roll(-1 - row, 0)  # the picture comes last
    ordered = images.roll(-row, 0), targets.roll(-row, 0)
    own = images[row : row + 1], targets[row : row + 1]
    for count in (1, 2):
        with threads(count):
            yield f"alone, {count} threads", explain(*own).rows()[0]
            if count == 1:
                yield "first of the batch", explain(*ordered).rows()[0]
            else:
                yield "last of the batch, 2 threads", explain(*turned).rows()[-1]


class Gap(NamedTuple):
    """The difference of two maps of one picture.

    Attributes:
        size: the largest difference over the largest value.
        company: the company that caused it.
        remark: the code of the diagnostic about rounding; empty without one.
        limit: the maximum size that is allowed.
    """

    size: float
    company: str
    remark: str
    limit: float

    @property
    def is_allowed(self) -> bool:
        """Whether the size is within the limit, or a diagnostic about rounding explains it."""
        return self.size <= self.limit


def gap_of(name: str, attributions: Mapping[str, Attribution]) -> Gap:
    """Return the largest difference of a method's maps of one picture."""
    (_, first), *rest = attributions.items()
    largest = max(float(first.maps.abs().max()), torch.finfo(torch.float32).tiny)
    size, company = max((float((row.maps - first.maps).abs().max()) / largest, company) for company, row in rest)
    is_faint = any(attribution.is_faint(0) for attribution in attributions.values())
    if rounding := METHODS[name].rounding:
        return Gap(size, company, "rounding-decides", KINK_TOLERANCE if rounding == KINKS else inf)
    return Gap(size, company, "faint-map", inf) if is_faint else Gap(size, company, "", TOLERANCE)


def targets_of(module: nn.Module, images: Tensor) -> Tensor:
    """Return the most probable class of each picture."""
    with torch.no_grad():
        return module(images.clone()).argmax(dim=1)


def measured(model: Any, name: str, images: Tensor, targets: Tensor, row: int = 0, **options: Any) -> Gap:
    """Return the largest difference of a method's maps of a picture, and its company.

    For methods with many passes, which hold several pictures in any case, the company is two pictures.
    """
    if METHODS[name].forwards not in ("1", "2"):
        images, targets, row = images[row - 1 : row + 2], targets[row - 1 : row + 2], 1
    explainer = explainer_of(name, model, **options)
    return gap_of(name, dict(answers(lambda *inputs: explainer.explain(model, *inputs), images, targets, row)))


def main() -> int:
    """Print the table; return 1 if a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--networks", default="")
    parser.add_argument("--signed", action="store_true")
    arguments = parser.parse_args()
    broken = 0
    for network in NETWORKS:
        if arguments.networks not in str(network):
            continue
        model = network.load()
        images = pictures(network.side)
        targets = targets_of(getattr(model, "module", model), images)
        for name in arguments.methods or METHODS:
            options = options_of(name, network)
            if arguments.signed and "signed" in METHODS[name].options["sign"]["enum"]:
                options["sign"] = "signed"
            started = time.perf_counter()
            try:
                gap = measured(model, name, images, targets, ROW, **options)
            except ExplainerError as error:
                print(f"{network!s:50}{name:24}refused: {str(error)[:60]}", flush=True)
                continue
            broken += not gap.is_allowed
            mark = f" {gap.remark or '<<<'}" if gap.size > TOLERANCE else ""
            seconds = time.perf_counter() - started
            print(f"{network!s:50}{name:24}{gap.size:8.1e} {gap.company:25} {seconds:5.1f} s{mark}", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
