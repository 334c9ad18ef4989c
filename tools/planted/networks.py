"""The networks that learn the drawings: small ones of the kinds that people have."""

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.planted.drawings import CLASSES, KINDS, SIDE

OUTPUTS = CLASSES + KINDS
"""Logits of classifiers: of the classes of markers and then of the kinds of objects, with a softmax for each."""


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution; that of a stride of 2 has windows of 4, whose middles lie evenly in the picture."""
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


def transformer() -> nn.Module:
    """Return a Vision Transformer: patches of 8 pixels, whose average the head reads."""
    return timm.models.VisionTransformer(SIDE, 8, 3, OUTPUTS, "avg", 48, 2, 4, 2.0, class_token=False, fc_norm=False)


class Segmenter(nn.Module):
    """A class for each pixel: 0 for the ground, and for pixels of the object 1 and the class of the marker.

    The object's pixels know the marker, which is outside, by the largest of each of the coarsest features.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(_convolution(3, 16, 2), _convolution(16, 32, 2))
        self.coarse = nn.Sequential(nn.Conv2d(32, 48, 2, 2), nn.ReLU())  # cells that see no further than they must
        self.context = nn.Linear(48, 48)
        self.decoder = nn.Sequential(_convolution(48 + 32, 48), nn.Conv2d(48, 1 + CLASSES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 1 + CLASSES, SIDE, SIDE)."""
        fine = self.fine(images)
        coarse = self.coarse(fine)
        context = self.context(coarse.amax(dim=(2, 3)))[:, :, None, None].expand(-1, -1, *fine.shape[2:])
        logits = self.decoder(torch.cat([fine, context], dim=1))
        return functional.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)
