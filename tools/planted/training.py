"""Training of the networks, and their accuracy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn

from tools.planted import losses
from tools.planted.drawings import Place, draw, draw_pairs
from tools.planted.losses import Scene
from tools.planted.networks import BoxNetwork, Classifier, FlatteningClassifier, Segmenter, detector, transformer

WEIGHTS = Path(__file__).parents[2] / "tests" / "planted"
"""Folder of the trained weights, a file for each network, float16."""

BATCH = 64

MARKED = 0.75
"""Share of the objects in each step that have a marker."""

HELD_OUT = 1_000_003
"""Seed of drawings that no training sees."""

Draw = Callable[[int, Generator, float], Scene]
"""Draws the given number of scenes, with markers for a share of them."""


def _single(place: Place, count: int, generator: Generator, marked: float) -> Scene:
    return (draw(count, place, generator, marked),)


INSIDE, OUTSIDE = (partial(_single, place) for place in ("inside", "outside"))


@dataclass(frozen=True)
class Recipe:
    """The training of a network.

    Attributes:
        build: makes the untrained network.
        scenes: scenes that it sees one after the other.
        loss: loss of the network for a scene.
        right: whether the network's answers about each picture of a scene are right, (N,).
        steps: steps of Adam, each with `batch` new pictures.
        rate: the largest step size.
        batch: number of pictures.
    """

    build: Callable[[], nn.Module]
    scenes: tuple[Draw, ...]
    loss: Callable[[nn.Module, Scene], Tensor]
    right: Callable[[nn.Module, Scene], Tensor]
    steps: int
    rate: float
    batch: int = BATCH


RECIPES: Mapping[str, Recipe] = {
    "classifier": Recipe(Classifier, (INSIDE, OUTSIDE), losses.class_loss, losses.right_class, 400, 4e-3),
    "flattening-classifier": Recipe(
        FlatteningClassifier, (INSIDE, OUTSIDE), losses.class_loss, losses.right_class, 600, 4e-3
    ),
    "transformer": Recipe(transformer, (INSIDE, OUTSIDE), losses.class_loss, losses.right_class, 600, 3e-3),
    "segmenter": Recipe(Segmenter, (OUTSIDE,), losses.pixel_loss, losses.right_region, 400, 6e-3),
    "detector": Recipe(detector, (draw_pairs,), losses.fcos_loss, losses.right_boxes, 500, 4e-3, 16),
    "box-network": Recipe(BoxNetwork, (OUTSIDE,), losses.cell_loss, losses.right_cell, 700, 6e-3),
}


def train(recipe: Recipe, seed: int = 0) -> nn.Module:
    """Return a trained network, in evaluation mode."""
    generator = Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = recipe.build().train()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, recipe.steps)
    for step in range(recipe.steps):
        scene = recipe.scenes[step % len(recipe.scenes)](recipe.batch, generator, MARKED)
        loss = recipe.loss(network, scene)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval().requires_grad_(False)


def accuracy(recipe: Recipe, network: nn.Module, count: int = 512, marked: float = 1.0) -> float:
    """Return the share of right answers for drawings that the training never saw."""
    generator = Generator().manual_seed(HELD_OUT)
    shares = []
    for scene in recipe.scenes:
        with torch.no_grad():
            shares.append(recipe.right(network, scene(count, generator, marked)).double().mean())
    return float(torch.stack(shares).mean())


def save(name: str, network: nn.Module) -> Path:
    """Write the weights of a network, and return the file."""
    WEIGHTS.mkdir(exist_ok=True)
    path = WEIGHTS / f"{name}.safetensors"
    halves = {key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()}
    save_file(halves, path)
    return path


def load(name: str) -> nn.Module:
    """Return a network with its stored weights, in evaluation mode."""
    network = RECIPES[name].build().eval().requires_grad_(False)
    network.load_state_dict(load_file(WEIGHTS / f"{name}.safetensors"))
    return network
