"""Training of the networks, and what each has learnt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from tools.planted.drawings import CLASSES, KINDS, Drawings, Place, draw
from tools.planted.networks import Classifier, Segmenter, transformer

WEIGHTS = Path(__file__).parents[2] / "tests" / "planted"
"""Folder of the trained weights, a file for each network, float16."""

BATCH = 64


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        build: makes the untrained network.
        places: of the markers; pictures have one or the other.
        loss: of the network's outputs for drawings.
        right: whether the outputs for each of the drawings (N,) are right.
        steps: of Adam, each with `BATCH` new drawings.
        rate: the largest step size.
    """

    build: Callable[[], nn.Module]
    places: tuple[Place, ...]
    loss: Callable[[Tensor, Drawings], Tensor]
    right: Callable[[Tensor, Drawings], Tensor]
    steps: int
    rate: float


def _class_loss(outputs: Tensor, drawings: Drawings) -> Tensor:
    of_classes, of_kinds = outputs.split([CLASSES, KINDS], dim=1)
    return functional.cross_entropy(of_classes, drawings.classes) + functional.cross_entropy(of_kinds, drawings.kinds)


def _right_class(outputs: Tensor, drawings: Drawings) -> Tensor:
    return outputs[:, :CLASSES].argmax(dim=1) == drawings.classes


def _pixel_loss(outputs: Tensor, drawings: Drawings) -> Tensor:
    """The mean over the pixels of objects and that over all others, so that the objects count as much as the ground."""
    losses = functional.cross_entropy(
        outputs, drawings.objects * (1 + drawings.classes)[:, None, None], reduction="none"
    )
    return losses[drawings.objects].mean() + losses[~drawings.objects].mean()


def _right_region(outputs: Tensor, drawings: Drawings) -> Tensor:
    """Whether most of the object has the class of the marker."""
    right = outputs.argmax(dim=1) == 1 + drawings.classes[:, None, None]
    return (right & drawings.objects).sum(dim=(1, 2)) > drawings.objects.sum(dim=(1, 2)) / 2


RECIPES: Mapping[str, Recipe] = {
    "classifier": Recipe(Classifier, ("inside", "outside"), _class_loss, _right_class, 400, 4e-3),
    "transformer": Recipe(transformer, ("inside", "outside"), _class_loss, _right_class, 600, 3e-3),
    "segmenter": Recipe(Segmenter, ("outside",), _pixel_loss, _right_region, 300, 6e-3),
}


def train(recipe: Recipe, seed: int = 0) -> nn.Module:
    """Return a trained network, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = recipe.build().train()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, recipe.steps)
    for step in range(recipe.steps):
        drawings = draw(BATCH, recipe.places[step % len(recipe.places)], generator)
        loss = recipe.loss(network(drawings.images), drawings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval().requires_grad_(False)


def accuracy(recipe: Recipe, network: nn.Module, count: int = 512, marked: bool = True) -> float:
    """Return the share of right answers about drawings that the training never saw."""
    generator = torch.Generator().manual_seed(1_000_003)
    shares = []
    for place in recipe.places:
        drawings = draw(count, place, generator, marked)
        with torch.no_grad():
            shares.append(recipe.right(network(drawings.images), drawings).double().mean())
    return float(torch.stack(shares).mean())


def save(name: str, network: nn.Module) -> Path:
    """Write the weights of a network, and return the file."""
    WEIGHTS.mkdir(exist_ok=True)
    path = WEIGHTS / f"{name}.safetensors"
    halves = {key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()}
    save_file(halves, path)
    return path


def load(name: str) -> nn.Module:
    """Return a network with the weights that were written, in evaluation mode."""
    network = RECIPES[name].build().eval().requires_grad_(False)
    network.load_state_dict(load_file(WEIGHTS / f"{name}.safetensors"))
    return network
