"""Small nets, each with one peculiarity that hooks or explainers must survive."""

import re
from collections.abc import Callable
from copy import deepcopy
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def label(value: object) -> str:
    """Name a parameter of a test as every process names it, without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


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


class OneLogit(Net):
    """Tells whether one thing is there: a single logit."""

    def __init__(self) -> None:
        super().__init__(classes=1)


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


class Branched(Net):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(5, 5, 3, padding=1)


class PreActivation(Branched):
    """The in-place ReLU's input is used again afterwards, so what it does to that input counts."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

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


class AttentionBlock(nn.Module):
    """A block of a transformer, with fused attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(self.before(tokens)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts.unbind(0))
        tokens = tokens + self.project(attended.transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.behind(tokens))


class Transformer(nn.Module):
    """Patches of four pixels and a class token, two blocks, and a head that reads the class token."""

    def __init__(self, classes: int = 4, width: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(AttentionBlock(width, heads), AttentionBlock(width, heads))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class Wired(nn.Module):
    """Parts by their names, and the function of the module and its input that runs them."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, images: Tensor) -> Any:
        return self.run(self, images)


class Middle(Net):
    """Does with its feature maps what a function of the net and the features says, which may use further parts."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def middle(self, features: Tensor) -> Tensor:
        return self.function(self, features)


def out_of_sight() -> nn.Module:
    """Make a module that leaves PyTorch for a moment."""
    return Wired(lambda _, images: torch.from_numpy(images.detach().tanh().numpy()))


def linear(rows: Any, bias: Any = None) -> nn.Linear:
    """Make a linear layer of the given weights."""
    weight = torch.as_tensor(rows).float().clone()
    layer = nn.Linear(*reversed(weight.shape), bias=bias is not None)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = torch.as_tensor(bias).float().clone()
    return layer


def pointwise(rows: Any, bias: Any = None) -> nn.Conv2d:
    """Make a 1x1 convolution of the given weights."""
    dense = linear(rows, bias)
    layer = nn.Conv2d(dense.in_features, dense.out_features, 1, bias=bias is not None)
    layer.weight.data, layer.bias = dense.weight.data[:, :, None, None], dense.bias
    return layer


class Pooled(nn.Module):
    """Its layer hands on the picture, or what it makes of it; a head, if there is one, reads the means."""

    def __init__(self, head: nn.Module | None = None, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.head = layer or nn.Identity(), head or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layer(images).mean(dim=(2, 3)))


class Wrapped(nn.Module):
    """Returns its logits inside something else."""

    def __init__(self, net: nn.Module, wrap: Any) -> None:
        super().__init__()
        self.net = net
        self.wrap = wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.net(images))


class Weighted(nn.Module):
    """Logits are sums over all cells: of a picture of ones, 16 times the rows of the 1x1 convolution's weight."""

    def __init__(self, *rows: tuple[float, ...]) -> None:
        super().__init__()
        self.conv = pointwise(rows)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).sum(dim=(2, 3))


class Averaged(Weighted):
    """Logits are the means of what the 1x1 convolution returns."""

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).mean(dim=(2, 3))


class SetsItsWeights(Averaged):
    """Sets its weights to real values when it is built."""

    def __init__(self) -> None:
        super().__init__((1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (0.0, 1.0, 0.0))


def leaves() -> nn.Module:
    """End the program, as parsers of command lines do."""
    raise SystemExit(2)


class Bright(nn.Module):
    """Tells whether a picture in [0, 1] is bright: a single logit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 1)
        nn.init.constant_(self.conv.weight, 4.0)
        nn.init.constant_(self.conv.bias, -6.0)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).mean(dim=(2, 3))


class Colours(nn.Module):
    """A segmenter of pictures in [0, 1]: the class of a position is its strongest colour."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.ReLU())
        self.head = nn.Conv2d(3, 3, 1, bias=False)
        for conv in (self.encoder[0], self.head):
            nn.init.dirac_(conv.weight)

    def forward(self, images: Tensor) -> Any:
        return {"out": self.head(self.encoder(images))}


class Skip(Net):
    """What the swept layer gets is added to what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(5, 5, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(5, 5, 1))

    def middle(self, features: Tensor) -> Tensor:
        return functional.relu(self.branch(features) + features, inplace=True)


class InPlaceLater(Branched):
    """Modifies in place what a module had returned before another one ran."""

    def middle(self, features: Tensor) -> Tensor:
        branch = self.branch(features.tanh())
        features += branch
        return features.relu_()


class MasksLater(Branched):
    """Writes by a mask, which PyTorch lets it do to memory that rows share."""

    def middle(self, features: Tensor) -> Tensor:
        features[self.branch(features.tanh()) > 0] = 0
        return features.tanh()


class ReturnsItsInput(Branched):
    """An identity hands on the very tensor, which is then overwritten for both."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()

    def middle(self, features: Tensor) -> Tensor:
        same = self.same(features)
        branch = self.branch(features.tanh())
        same += 1
        return features * branch


class ViewsLater(Net):
    def middle(self, features: Tensor) -> Tensor:
        features[:, 0] *= 2
        features.view(len(features), -1)[:, -1].add_(1)
        return features.relu_()


class Remembers(Net):
    """Keeps a tensor of the graph and a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()

    def middle(self, features: Tensor) -> Tensor:
        with self.lock:
            self.last = features.relu()
        return self.last


class Smooth(Net):
    def middle(self, features: Tensor) -> Tensor:
        return functional.softplus(features)


class Block(nn.Module):
    def __init__(self, relu: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.relu = relu

    def forward(self, features: Tensor) -> Tensor:
        return self.relu(self.conv(features))


class SharedInside(nn.Module):
    """One ReLU inside several blocks, and between them; it has several names."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(
            *(Block(self.relu, inputs, width) for inputs, width in zip((3, *widths), widths, strict=False))
        )
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(images)
        for block in self.blocks:
            features = block(features)
        return self.head(self.relu(features - 0.01).mean(dim=(2, 3)))


class OneByOne(Net):
    """Takes no batch of pictures."""

    def middle(self, features: Tensor) -> Tensor:
        if len(features) != 1:
            raise ValueError("One picture at a time.")
        return features.relu()


def seeded(kind: type[nn.Module], *args: Any) -> nn.Module:
    """Make a net with fixed random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind(*args).eval()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest expected magnitude."""
    assert actual.shape == expected.shape
    largest = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((actual - expected).abs().max() / largest)


def modules_of_their_own(model: nn.Module) -> nn.Module:
    """Return a copy whose rectifiers do not work in place, for captum, which cannot hook those that do."""
    model = deepcopy(model)
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(part, name, nn.ReLU())
    return model
