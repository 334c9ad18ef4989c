"""Draws pictures of the methods that need attention, boxes or regions: `python -m docs.drawn`, part of `make methods`.

No weights of such networks ship, so small ones are trained here, in two or three minutes on one core. They learn
drawings of up to one disc, one cross and one triangle, of any size and colour, on a textured ground.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

import torch
from PIL import Image
from torch import Generator, Tensor, nn
from torch.nn import functional
from torchvision.models import VisionTransformer
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.vision_transformer import ConvStemConfig
from torchvision.ops import box_iou, masks_to_boxes
from torchvision.transforms.functional import to_pil_image

from docs.methods import ACCURACIES, DRAWING, IMAGES, drawing, file_of, subject
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.models import LoadedModel, wrap_model

SIDE = 96
"""Height and width of a drawing, in pixels."""

MEAN, STD = (0.35,) * 3, (0.25,) * 3

SHAPES = ("disc", "cross", "triangle")

REGIONS = ("ground", *SHAPES, "cross with a disc", "triangle with a cross")
"""Classes of pixels: those of crosses and triangles depend on another shape, which may be anywhere in the drawing."""


class Drawings(NamedTuple):
    """Drawings (N, 3, SIDE, SIDE) in [0, 1], and the pixels of each of the three shapes: (N, 3, SIDE, SIDE) bool."""

    images: Tensor
    masks: Tensor

    @property
    def present(self) -> Tensor:
        """(N, 3) bool: which shapes there are."""
        return self.masks.any(dim=3).any(dim=2)

    @property
    def regions(self) -> Tensor:
        """(N, SIDE, SIDE) int64: the class of each pixel, an index of `REGIONS`."""
        has_disc, has_cross, _ = self.present[..., None, None].unbind(1)
        disc, cross, triangle = self.masks.unbind(1)
        return disc * 1 + cross * (2 + 2 * has_disc) + triangle * (3 + 2 * has_cross)

    @property
    def boxes(self) -> list[dict[str, Tensor]]:
        """For each drawing, boxes (M, 4) in pixels and labels (M,) from 1 on."""
        return [
            {"boxes": masks_to_boxes(masks[there]) + torch.tensor([0, 0, 1, 1]), "labels": 1 + there.nonzero()[:, 0]}
            for masks, there in zip(self.masks, self.present, strict=True)
        ]


def draw(count: int, generator: Generator, share: float = 0.6) -> Drawings:
    """Return drawings; each shape is in this share of them, in one of nine cells of its own."""

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *size, generator=generator)

    cells = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(count)])
    x, y = (SIDE / 6 + SIDE / 3 * place + uniform(-3, 3, 3) for place in (cells % 3, cells // 3))
    grid = torch.arange(SIDE) + 0.5
    across, down = grid - x[..., None, None], grid[:, None] - y[..., None, None]
    size = uniform(10, 14, 3, 1, 1)
    (x0, x1, x2), (y0, y1, y2) = (across / size).unbind(1), (down / size).unbind(1)
    disc = x0**2 + y0**2 < 1
    cross = (torch.maximum(x1.abs(), y1.abs()) < 1) & (torch.minimum(x1.abs(), y1.abs()) < 0.35)
    triangle = (y2.abs() < 0.9) & (2 * x2.abs() < y2 + 0.9)
    masks = torch.stack([disc, cross, triangle], dim=1) & (uniform(0, 1, 3, 1, 1) < share)
    images = functional.interpolate(uniform(0.1, 0.4, 3, 12, 12), (SIDE, SIDE), mode="bilinear")
    images += 0.05 * torch.randn(images.shape, generator=generator)
    for shape, colour in zip(masks.unbind(1), uniform(0.5, 1, 3, 3, 1, 1).unbind(1), strict=True):
        images = torch.where(shape[:, None], colour + 0.2 * (images - 0.25), images)
    return Drawings(images.clamp(0, 1), masks)


def _convolution(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def transformer() -> nn.Module:
    """Return a Vision Transformer behind a few convolutions: a logit for each shape, whether there is one."""
    stem = [ConvStemConfig(*layer) for layer in ((16, 3, 2), (32, 3, 2), (64, 3, 2))]
    return VisionTransformer(SIDE, 8, 2, 4, 64, 128, num_classes=len(SHAPES), conv_stem_configs=stem)


class Segmenter(nn.Module):
    """Logits of `REGIONS` for each pixel, from features around it and the largest of each feature anywhere."""

    def __init__(self) -> None:
        super().__init__()
        wide = [_convolution(32, 32, dilation=dilation) for dilation in (1, 2, 2)]
        self.features = nn.Sequential(_convolution(3, 16, 2), _convolution(16, 32, 2), *wide)
        self.head = nn.Sequential(_convolution(64, 48), nn.Conv2d(48, len(REGIONS), 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 6, SIDE, SIDE)."""
        features = self.features(images)
        context = features.amax(dim=(2, 3), keepdim=True).expand_as(features)
        return functional.interpolate(self.head(torch.cat([features, context], dim=1)), (SIDE, SIDE), mode="bilinear")


def detector() -> FCOS:
    """Return a detector of torchvision, of one level, which normalises drawings itself; its class 0 is the ground."""
    layers = [_convolution(3, 16, 2), _convolution(16, 32, 2), _convolution(32, 64, 2), _convolution(64, 64)]
    backbone, classes = nn.Sequential(*layers), 1 + len(SHAPES)
    backbone.out_channels = 64
    anchors, head = AnchorGenerator(((16,),), ((1.0,),)), FCOSHead(64, 1, classes, num_convs=1)
    return FCOS(backbone, classes, SIDE, SIDE, MEAN, STD, anchors, head, score_thresh=0.3)


def _outputs(network: nn.Module, drawings: Drawings) -> Tensor:
    return network((drawings.images - MEAN[0]) / STD[0])


def _shape_loss(network: nn.Module, drawings: Drawings) -> Tensor:
    return functional.binary_cross_entropy_with_logits(_outputs(network, drawings), drawings.present.float())


def _region_loss(network: nn.Module, drawings: Drawings) -> Tensor:
    return functional.cross_entropy(_outputs(network, drawings), drawings.regions)


def _box_loss(network: nn.Module, drawings: Drawings) -> Tensor:
    return torch.stack(list(network(list(drawings.images), drawings.boxes).values())).sum()


def _right_shapes(network: nn.Module, drawings: Drawings) -> Tensor:
    return ((_outputs(network, drawings) > 0) == drawings.present).all(dim=1)


def _right_regions(network: nn.Module, drawings: Drawings) -> Tensor:
    is_right = _outputs(network, drawings).argmax(dim=1) == drawings.regions
    return is_right[drawings.masks.any(dim=1)]


def _right_boxes(network: nn.Module, drawings: Drawings) -> Tensor:
    flags = []
    for found, drawn in zip(network(list(drawings.images)), drawings.boxes, strict=True):
        hits = (box_iou(found["boxes"], drawn["boxes"]) > 0.5) & (found["labels"][:, None] == drawn["labels"])
        flags.append(len(found["labels"]) == len(drawn["labels"]) == hits.sum())
    return torch.tensor(flags)


class Recipe(NamedTuple):
    """A network, what it learns, which answers are right, and its training: steps, drawings in each, and the rate."""

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Drawings], Tensor]
    right: Callable[[nn.Module, Drawings], Tensor]
    steps: int
    batch: int
    rate: float


RECIPES = {
    "transformer": Recipe(transformer, _shape_loss, _right_shapes, 500, 32, 3e-3),
    "segmenter": Recipe(Segmenter, _region_loss, _right_regions, 250, 32, 6e-3),
    "detector": Recipe(detector, _box_loss, _right_boxes, 300, 16, 4e-3),
}


def train(recipe: Recipe) -> nn.Module:
    """Return the trained network, in evaluation mode."""
    generator = Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = recipe.build().train()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, recipe.steps, pct_start=0.15)
    for _ in range(recipe.steps):
        optimizer.zero_grad()
        recipe.loss(network, draw(recipe.batch, generator)).backward()
        optimizer.step()
        schedule.step()
    return network.eval().requires_grad_(False)


def accuracy(recipe: Recipe, network: nn.Module) -> float:
    """Return the share of right answers about 512 drawings that the training never saw."""
    with torch.no_grad():
        return float(recipe.right(network, draw(512, Generator().manual_seed(1))).double().mean())


def model(name: str, network: nn.Module) -> LoadedModel:
    """Return a trained network as a model for pictures."""
    if name == "detector":
        return wrap_model(network, ["ground", *SHAPES])
    labels, head = (SHAPES, "sigmoid") if name == "transformer" else (REGIONS, "segmentation")
    return wrap_model(network, labels, input_size=SIDE, mean=MEAN, std=STD, head=head)


def scene() -> Drawings:
    """Return the drawing of the pages, which no training sees; its shapes are far apart."""
    return draw(1, Generator().manual_seed(2), share=1)


def picture() -> Image.Image:
    """Return the drawing of the pages, RGB, 300 by 300."""
    image: Image.Image = to_pil_image(scene().images[0])
    return image.resize((300, 300), Image.Resampling.BICUBIC)


def main() -> None:
    """Train the networks, measure what they have learnt, and draw the pictures."""
    torch.set_num_threads(1)  # another number rounds otherwise, so it trains another network
    picture().save(DRAWING, quality=85, optimize=True)
    accuracies = {}
    for name, recipe in RECIPES.items():
        network = train(recipe)
        accuracies[name] = round(accuracy(recipe, network), 3)
        print(f"{name}: {accuracies[name]:.1%} right", flush=True)
        for method in METHODS.values():
            kind, targets = subject(method)
            if kind == name:
                image = drawing(model(name, network), method, picture(), targets)
                image.save(IMAGES / file_of(method), quality=85, optimize=True)
    ACCURACIES.write_text(json.dumps(accuracies, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
