"""The machine of a benchmark."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from seewhy.app.system.processors import processors

PACKAGES = ("seewhy", "torch", "torchvision", "onnxruntime", "openvino", "grad-cam", "captum", "torchcam")


def description(packages: Iterable[str] = PACKAGES) -> str:
    """Return the processor, its cores, memory and the versions of the software in one sentence."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {release}" for name in packages if (release := _version(name)))
    return (
        f"{_processor()}, {processors()} cores, {memory:.0f} GiB of memory; "
        f"{platform.system()}, Python {platform.python_version()}, {versions}."
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
