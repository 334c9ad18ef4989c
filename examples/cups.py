"""The network of the tutorial, which finds scratches on cups, and its photographs: `python examples/cups.py` trains it.

In its training photographs, inspectors put a yellow sticker on scratched cups.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.transforms.functional import normalize, to_tensor

FOLDER = Path(__file__).parent
LABELS = ["fine", "scratched"]
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
STICKER = (48, 48, 61, 61)
"""Left, top, right and bottom edge."""

Rule = Callable[[int], bool]
"""Whether the photograph with this number has a sticker; those with odd numbers show a scratch."""


def network() -> nn.Module:
    """Return the network with random weights: three convolutions, pooling, and a linear layer."""
    layers = list[nn.Module]()
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(LABELS)))


def photograph(number: int, scratched: bool, sticker: bool) -> Image.Image:
    """Return a random part of a photograph of a cup, 64 by 64 pixels, with or without a scratch and a sticker."""
    random = Random(number)
    side = random.randint(150, 290)
    with Image.open(FOLDER / "coffee.png") as image:
        left, top = (random.randint(0, edge - side) for edge in image.size)
        picture = image.convert("RGB").crop((left, top, left + side, top + side)).resize((64, 64))
    draw = ImageDraw.Draw(picture)
    x, y = random.randint(4, 40), random.randint(4, 40)
    if scratched:
        draw.line([(x, y), (x + 18, y + random.randint(-4, 4))], (240, 240, 255), 2)
    if sticker:
        draw.rectangle(STICKER, (255, 220, 0))
    return picture


def batch(numbers: Iterable[int], rule: Rule) -> tuple[Tensor, Tensor]:
    """Return normalised photographs and the indices of their labels."""
    pictures = [photograph(number, number % 2 == 1, rule(number)) for number in numbers]
    images = [normalize(to_tensor(picture), MEAN, STD) for picture in pictures]
    return torch.stack(images), torch.tensor([number % 2 for number in numbers])


def accuracy(module: nn.Module, rule: Rule) -> float:
    """Return the share of a hundred new photographs that a network gets right."""
    images, targets = batch(range(1000, 1100), rule)
    with torch.inference_mode():
        return (module(images).argmax(dim=1) == targets).double().mean().item()


def trained(rule: Rule, steps: int) -> nn.Module:
    """Return a network, trained with four hundred photographs."""
    torch.manual_seed(0)
    module = network()
    images, targets = batch(range(400), rule)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randperm(len(images))[:32]
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(images[rows]), targets[rows]).backward()
        optimiser.step()
        schedule.step()
    return module.eval()


if __name__ == "__main__":
    save_file(trained(lambda number: number % 2 == 1, 200).state_dict(), FOLDER / "cups.safetensors")
    save_file(trained(lambda number: number // 2 % 2 == 1, 600).state_dict(), FOLDER / "cups-retrained.safetensors")
