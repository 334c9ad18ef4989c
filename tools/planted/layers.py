"""The best layers for CAMs of transformers: ``python -m tools.planted.layers``, half an hour on one core.

Transformers of several sizes and seeds learn the drawings, and the maps of CAMs at several layers are tested: how often
is a map largest on the marker, which shows the class? It prints the table of docs/own-models.md.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import timm
import torch
from torch import nn
from torch.nn import functional
from torchvision.models import SwinTransformer

from seewhy.explainers.methods.catalogue import METHODS
from tools.planted.drawings import SIDE, Drawings, draw
from tools.planted.networks import OUTPUTS
from tools.planted.training import RECIPES, accuracy, train

METHOD_NAMES = ("gradcam", "hirescam", "eigencam")
SEEDS = (0, 1, 2)


def vit(width: int, depth: int, class_token: bool) -> nn.Module:
    """Return a Vision Transformer of patches of 8 pixels, whose head reads a class token or the average of patches."""
    head = {"global_pool": "token"} if class_token else {"global_pool": "avg", "class_token": False, "fc_norm": False}
    sizes = {"embed_dim": width, "depth": depth, "num_heads": 4, "mlp_ratio": 2.0}
    return timm.models.VisionTransformer(SIDE, 8, 3, OUTPUTS, **head, **sizes)


def swin(width: int, depth: int) -> nn.Module:
    """Return a Swin transformer of two stages, of 16 by 16 and of 8 by 8 cells, whose average the head reads."""
    return SwinTransformer([4, 4], width, [2, depth], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=OUTPUTS)


def of_block(block: str, last: str) -> dict[str, str]:
    """Return the layers to try, by their descriptions."""
    return {"last norm": last, "last block": block, "its norm2": f"{block}.norm2", "its norm1": f"{block}.norm1"}


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "ViT, average, 2 blocks": (lambda: vit(48, 2, class_token=False), of_block("blocks.1", "norm")),
    "ViT, average, 4 blocks": (lambda: vit(48, 4, class_token=False), of_block("blocks.3", "norm")),
    "ViT, class token, 3 blocks": (lambda: vit(48, 3, class_token=True), {"its norm1": "blocks.2.norm1"}),
    "Swin, 2 + 2 blocks": (lambda: swin(24, 2), of_block("features.3.1", "norm")),
}
"""The function that makes the untrained network, and its layers."""

STEPS = {"Swin, 2 + 2 blocks": 1000}
"""Training steps of the networks that learn more slowly than the planted transformer."""


def pointing(method: str, network: nn.Module, layer: str, drawings: Drawings) -> float:
    """Return the share of drawings whose map for the marker's class is largest on the marker."""
    explainer = METHODS[method].build({"layers": (layer,)})
    maps = explainer.explain(network, drawings.images, drawings.classes).maps[:, None]
    resized = functional.interpolate(maps, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return float(drawings.hits(resized[:, 0]).double().mean())


def rows(kind: str) -> Iterator[str]:
    """Train networks of a kind, and yield a row of the table for each of its layers."""
    build, layers = KINDS[kind]
    recipe = RECIPES["transformer"]
    recipe = replace(recipe, build=build, steps=STEPS.get(kind, recipe.steps))
    networks = [train(recipe, seed) for seed in SEEDS]
    right = min(accuracy(recipe, network, count=128) for network in networks)
    print(f"{kind}: at least {right:.3f} right", file=sys.stderr)
    drawings = draw(128, "outside", torch.Generator().manual_seed(7))
    for name, layer in layers.items():
        cells = [
            " ".join(f"{pointing(method, network, layer, drawings):.2f}" for network in networks)
            for method in METHOD_NAMES
        ]
        yield f"| {kind} | {name} | {' | '.join(cells)} |"


def main(kinds: list[str]) -> None:
    """Print the rows of kinds of networks; empty for all."""
    torch.set_num_threads(1)
    for kind in kinds or list(KINDS):
        start = time.perf_counter()
        for row in rows(kind):
            print(row, flush=True)
        print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
