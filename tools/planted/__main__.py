"""Train the networks and write their weights: ``python -m tools.planted [NAME ...]``, minutes on two cores."""

import sys
import time

import torch

from tools.planted.training import RECIPES, accuracy, load, save, train


def main(names: list[str]) -> None:
    """Train networks, and print their accuracy.

    Args:
        names: names of the networks; empty for all.
    """
    torch.set_num_threads(1)
    for name in names or list(RECIPES):
        recipe, start = RECIPES[name], time.perf_counter()
        path = save(name, train(recipe))
        network = load(name)
        print(
            f"{name}: {accuracy(recipe, network):.3f} right with the marker, "
            f"{accuracy(recipe, network, marked=0):.3f} without; {path.stat().st_size:,} bytes, "
            f"{time.perf_counter() - start:.0f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
