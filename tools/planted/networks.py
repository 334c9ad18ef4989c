"""The networks that learn the drawings: small ones of common kinds."""

from collections import OrderedDict

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOSHead
from torchvision.ops import FeaturePyramidNetwork

from seewhy import BoxHead, Candidates
from tools.planted.drawings import CLASSES, KINDS, SIDE

ANSWERS = CLASSES + 1
"""Number of the classes of markers, including that of no marker."""

OUTPUTS = ANSWERS + KINDS
"""Logits of classifiers: of the classes of markers and then of the kinds of objects, with a softmax for each."""


CELL = 8
"""Height and width of the coarsest cells, in pixels."""


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution; with a stride of 2 it has windows of 4, whose centres are spread evenly over the
    picture."""
    convolution = nn.Conv2d(inputs, outputs, 2 + stride, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Classifier(nn.Module):
    """A convolutional network: features of 8 by 8 cells, and a linear head that reads the largest of each."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, 16, 2), _convolution(16, 32, 2), _convolution(32, 48, 2), nn.Conv2d(48, 48, 1), nn.ReLU()
        )
        self.head = nn.Linear(48, OUTPUTS)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, OUTPUTS)."""
        return self.head(self.features(images).amax(dim=(2, 3)))


class FlatteningClassifier(nn.Module):
    """The same features, and a head that reads the list of all cells, as those of VGG and AlexNet do."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, 16, 2), _convolution(16, 32, 2), _convolution(32, 48, 2), nn.Conv2d(48, 12, 1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(12 * (SIDE // CELL) ** 2, 48), nn.ReLU(), nn.Linear(48, OUTPUTS))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, OUTPUTS)."""
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits


def transformer() -> nn.Module:
    """Return a Vision Transformer: patches of 8 pixels, whose average the head reads."""
    return timm.models.VisionTransformer(SIDE, 8, 3, OUTPUTS, "avg", 48, 2, 4, 2.0, class_token=False, fc_norm=False)


class Segmenter(nn.Module):
    """A class for each pixel: 0 for the ground, and for pixels of the object 1 and the class of the marker.

    The object's pixels know the marker, which is outside, through the maximum of each of the coarsest features.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _Context()
        self.decoder = nn.Sequential(_convolution(48 + 32, 48), nn.Conv2d(48, 1 + ANSWERS, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 1 + ANSWERS, SIDE, SIDE)."""
        logits = self.decoder(self.encoder(images))
        return functional.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


class _Context(nn.Module):
    """Features of cells of four pixels, and beside them, in each cell, the maxima of the coarsest features."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(_convolution(3, 16, 2), _convolution(16, 32, 2))
        self.coarse = nn.Sequential(nn.Conv2d(32, 48, 2, 2), nn.ReLU())  # with the smallest receptive field
        self.context = nn.Linear(48, 48)

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 32 + 48, h, w)."""
        fine = self.fine(images)
        coarse = self.coarse(fine)
        context = self.context(coarse.amax(dim=(2, 3)))[:, :, None, None].expand(-1, -1, *fine.shape[2:])
        return torch.cat([fine, context], dim=1)


class _Pyramid(nn.Module):
    """Features of cells of four and of eight pixels, and a feature pyramid of them."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(_convolution(3, 16, 2), _convolution(16, 32, 2))
        self.coarse = _convolution(32, 48, 2)
        self.fpn = FeaturePyramidNetwork([32, 48], self.out_channels)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the two levels."""
        fine = self.fine(images)
        levels: dict[str, Tensor] = self.fpn(OrderedDict([("0", fine), ("1", self.coarse(fine))]))
        return levels


def detector() -> FCOS:
    """Return a detector of torchvision; it takes pictures in [0, 1], and its classes are those of the markers."""
    anchors = AnchorGenerator(((4,), (8,)), ((1.0,), (1.0,)))
    head = FCOSHead(_Pyramid.out_channels, 1, ANSWERS, num_convs=1)
    means = [0.5] * 3
    return FCOS(_Pyramid(), ANSWERS, SIDE, SIDE, means, means, anchors, head, score_thresh=0.5)


class BoxNetwork(nn.Module):
    """A detector with a head like YOLO's: a cell predicts the extent of a box, whether there is one, and its class.

    As with the segmenter, the classes of objects are those of markers outside their boxes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _Context()
        self.head = nn.Sequential(_convolution(48 + 32, 48, 2), nn.Conv2d(48, 4 + 1 + ANSWERS, 1))
        self.box_head = BoxHead(decode, overlap=0.3)

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 4 + 1 + ANSWERS, rows, columns): logarithms of the extents of boxes in cells, and logits."""
        return self.head(self.encoder(images))


def decode(raw: Tensor) -> Candidates:
    """Return the boxes of all cells of `BoxNetwork`, in pixels."""
    cells = raw.flatten(2).mT
    reaches = CELL * cells[..., :4].exp()
    middles = middles_of_cells().to(raw.device)
    boxes = torch.cat([middles - reaches[..., :2], middles + reaches[..., 2:]], dim=2)
    return Candidates(boxes, cells[..., 5:], cells[..., 4])


def middles_of_cells() -> Tensor:
    """Return (A, 2) float32: x and y of the centres of the coarsest cells, row by row, in pixels."""
    places = CELL * torch.arange(SIDE // CELL) + CELL / 2
    return torch.cartesian_prod(places, places).flip(1)
