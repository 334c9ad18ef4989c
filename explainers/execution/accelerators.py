"""Accelerators: they run the part of a model before a cut, without hooks or gradients, faster than plain PyTorch."""

import logging
import threading
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse

from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution.choices import ACCELERATOR_NAMES
from seewhy.explainers.execution.conversion import convert
from seewhy.explainers.execution.runtime import Run, openvino_run
from seewhy.explainers.process_wide import exclusive

Compile = Callable[[fx.GraphModule, Tensor], Run]
"""From a part of a model in evaluation mode, and an image (1, C, H, W) of the right size, to its `Run`."""

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Numbers of pictures for which `compile` records a part."""

_log = logging.getLogger(__name__)


def eager(part: fx.GraphModule, image: Tensor) -> Run:
    """PyTorch itself, with batch normalisation folded into convolutions, channels last."""
    try:
        folded: nn.Module = fuse(part, no_trace=True)
    except Exception:  # a graph that `fuse` does not expect
        folded = deepcopy(part)
    folded = folded.to(memory_format=torch.channels_last)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            values: tuple[Tensor, ...] = folded(images.clone(memory_format=torch.channels_last))
            return values

    return run


def openvino(part: fx.GraphModule, image: Tensor) -> Run:
    """OpenVINO on the processor, in float32."""
    return openvino_run(convert(part, image))


@exclusive()
def compiled(part: fx.GraphModule, image: Tensor) -> Run:
    """`torch.compile`, on CUDA with CUDA graphs: compiled for any number of pictures, recorded for those in `BUCKETS`.

    Batches are filled up to the next bucket. CUDA graphs belong to the thread that records them; other threads run the
    part uncompiled.
    """
    from torch._dynamo import mark_dynamic  # takes seconds to import

    compiled_part = torch.compile(part.forward, mode="reduce-overhead" if image.is_cuda else "default")
    thread = threading.local()
    thread.records = True

    def run_bucket(images: Tensor) -> tuple[Tensor, ...]:
        size = next(size for size in BUCKETS if size >= len(images))
        repeated = images[:1].expand(size - len(images), -1, -1, -1)
        filled = torch.cat((images, repeated)).contiguous(memory_format=torch.channels_last)
        if size > 1:
            mark_dynamic(filled, 0)
        # Copies: the next run of a CUDA graph overwrites its outputs.
        return tuple(values[: len(images)].clone() for values in compiled_part(filled))

    def run(images: Tensor) -> tuple[Tensor, ...]:
        with torch.inference_mode(False), torch.no_grad():  # another mode would compile the part again
            if image.is_cuda and not hasattr(thread, "records"):
                values: tuple[Tensor, ...] = part(images.clone())
                return values
            chunks = [run_bucket(chunk) for chunk in torch.split(images.detach(), BUCKETS[-1])]
            return tuple(torch.cat(values) for values in zip(*chunks, strict=True)) if len(chunks) > 1 else chunks[0]

    for size in BUCKETS * 2:  # a CUDA graph is recorded the second time
        run(image.expand(size, -1, -1, -1))
    return run


ACCELERATORS: dict[str, Compile] = dict(zip(ACCELERATOR_NAMES[1:], (eager, openvino, compiled), strict=True))


def choose(name: str, device: torch.device) -> str:
    """Return the accelerator for a name and a device: for ``auto``, openvino on a processor, else eager.

    Raises:
        OptionError: there is no such accelerator, it does not run on the device, or is not installed.
    """
    if name == "auto":
        if device.type != "cpu":
            return "eager"
        if not find_spec("openvino"):
            _log.warning("openvino: not installed; models run on PyTorch, several times slower.")
            return "eager"
        return "openvino"
    if name not in ACCELERATORS:
        raise OptionError(f"No accelerator {name!r}; choose from {', '.join(ACCELERATOR_NAMES)}.", "accelerator")
    if name == "openvino" and device.type != "cpu":
        raise OptionError(f"{name} only runs on the CPU here; choose eager or auto.", "accelerator")
    if name == "openvino" and not find_spec("openvino"):
        raise OptionError(f"{name} is not installed; install the package openvino.", "accelerator")
    return name
