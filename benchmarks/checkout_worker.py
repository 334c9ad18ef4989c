"""Runs cases of `benchmarks.checkouts`, one per line, with the code of one checkout, and answers each with a line."""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PREFIX = "seewhy." if (Path(sys.argv[1]) / "seewhy").is_dir() else ""
"""The prefix of a checkout's packages: empty for checkouts from before there was one package."""


@cache
def model(name: str) -> Any:
    """Return a model, compiled; all but the embedded one with fixed random weights."""
    load_model = import_module(f"{PREFIX}models").load_model
    torch.manual_seed(0)
    loaded = load_model(name) if "lite" in name else load_model(name, weights=None)
    loaded.accelerated.warm()
    return loaded


@cache
def images(count: int) -> Tensor:
    """Return random pictures (count, 3, 224, 224) float32."""
    return torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def main() -> None:
    """Run cases until there are no more."""
    explainers = import_module(f"{PREFIX}explainers")
    for line in sys.stdin:
        method, name, count = line.split()
        explainers.get_method(method).explainer().explain(model(name), images(int(count)))
        print("done", flush=True)


if __name__ == "__main__":
    main()
