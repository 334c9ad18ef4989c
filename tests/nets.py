"""Small nets, each with one peculiarity that hooks or explainers must survive."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Net(nn.Module):
    """Two convolutions, global mean, linear head; what happens to the feature maps is the subclass's."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 5, 3, padding=1, stride=2)
        self.unused = nn.Conv2d(4, 5, 3)
        self.head = nn.Linear(5, classes)

    def middle(self, features: Tensor) -> Tensor:
        return features.relu()

    def forward(self, images: Tensor) -> Any:
        return self.head(self.middle(self.conv(self.stem(images))).mean(dim=(2, 3)))


class InPlaceModule(Net):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def middle(self, features: Tensor) -> Tensor:
        return self.relu(features)


class InPlaceFunction(Net):
    def middle(self, features: Tensor) -> Tensor:
        return functional.relu(features, inplace=True)


class AddsInto(Net):
    def middle(self, features: Tensor) -> Tensor:
        features += features.mean(dim=1, keepdim=True)
        return features.relu()


class Twice(Net):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Conv2d(5, 5, 3, padding=1)

    def middle(self, features: Tensor) -> Tensor:
        return self.again(self.again(features).relu())


class PreActivation(Net):
    """The in-place ReLU's input is used again afterwards, so what it does to that input counts."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.branch = nn.Conv2d(5, 5, 3, padding=1)

    def middle(self, features: Tensor) -> Tensor:
        return self.branch(self.relu(features)) + features


class Stochastic(Net):
    """Batch norm and dropout: in training mode two passes differ and change the statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(5)
        self.dropout = nn.Dropout(0.5)

    def middle(self, features: Tensor) -> Tensor:
        return self.dropout(self.norm(features).relu())


class Fails(Net):
    def middle(self, features: Tensor) -> Tensor:
        raise ZeroDivisionError


class NoGradAfter(Net):
    def middle(self, features: Tensor) -> Tensor:
        return features.detach()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor, *, scale: float = 1.0, shift: Tensor | None = None) -> Any:
        features = self.conv(images) * scale
        return features, {"shifted": features + (0 if shift is None else shift)}


class TupleInside(Net):
    """A module inside takes keywords and returns a tuple with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, images: Tensor) -> Tensor:
        features, more = self.pair(images, scale=2.0, shift=images[:, :1, 1:-1, 1:-1])
        return (features * more["shifted"]).mean(dim=(2, 3))


class Wrapped(nn.Module):
    """Returns its logits inside something else."""

    def __init__(self, net: nn.Module, wrap: Any) -> None:
        super().__init__()
        self.net = net
        self.wrap = wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.net(images))


def seeded(kind: type[nn.Module], *args: Any) -> nn.Module:
    """Make a net with fixed random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind(*args).eval()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest expected magnitude."""
    assert found.shape == expected.shape
    largest = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((found - expected).abs().max() / largest)
