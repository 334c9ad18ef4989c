"""The losses of the networks, and the checks of their answers.

A scene is a list of drawings of the same pictures: an entry for each object of a picture.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import box_iou

from tools.planted.drawings import KINDS, SIDE, Drawings
from tools.planted.networks import ANSWERS, CELL, decode, middles_of_cells

Scene = tuple[Drawings, ...]

HIT = 0.5
"""Least intersection over union of a right box and an object's."""


def class_loss(network: nn.Module, scene: Scene) -> Tensor:
    """Cross-entropies of the class of the marker and of the kind of the object."""
    of_classes, of_kinds = network(scene[0].images).split([ANSWERS, KINDS], dim=1)
    loss = functional.cross_entropy(of_classes, scene[0].classes)
    return loss + functional.cross_entropy(of_kinds, scene[0].kinds)


def right_class(network: nn.Module, scene: Scene) -> Tensor:
    """Return whether the class of the marker is right, (N,)."""
    return network(scene[0].images)[:, :ANSWERS].argmax(dim=1) == scene[0].classes


def pixel_loss(network: nn.Module, scene: Scene) -> Tensor:
    """The sum of the mean over the pixels of objects and that over all others, so that both count equally."""
    drawings = scene[0]
    classes = drawings.objects * (1 + drawings.classes)[:, None, None]
    losses = functional.cross_entropy(network(drawings.images), classes, reduction="none")
    return losses[drawings.objects].mean() + losses[~drawings.objects].mean()


def right_region(network: nn.Module, scene: Scene) -> Tensor:
    """Return whether most of the object has the class of the marker, (N,)."""
    drawings = scene[0]
    right = network(drawings.images).argmax(dim=1) == 1 + drawings.classes[:, None, None]
    return (right & drawings.objects).sum(dim=(1, 2)) > drawings.objects.sum(dim=(1, 2)) / 2


def fcos_loss(network: nn.Module, scene: Scene) -> Tensor:
    """The losses of torchvision's FCOS, summed."""
    boxes = torch.stack([drawings.boxes for drawings in scene], dim=1)
    labels = torch.stack([drawings.classes for drawings in scene], dim=1)
    targets = [{"boxes": near, "labels": names} for near, names in zip(boxes, labels, strict=True)]
    return torch.stack(list(network(list(scene[0].pictures), targets).values())).sum()


def right_boxes(network: nn.Module, scene: Scene) -> Tensor:
    """Return whether the most confident box at each object has the class of its marker, (N,)."""
    results = network(list(scene[0].pictures))
    right = torch.ones(len(results), dtype=torch.bool)
    for drawings in scene:
        for row, (result, box, label) in enumerate(zip(results, drawings.boxes, drawings.classes, strict=True)):
            labels = result["labels"][box_iou(box[None], result["boxes"])[0] >= HIT]  # the most confident one first
            right[row] &= len(labels) > 0 and bool(labels[0] == label)
    return right


def cell_loss(network: nn.Module, scene: Scene) -> Tensor:
    """The losses of boxes: their presence, for all cells; their edges and classes, for the cell with the object's
    centre."""
    raw, drawings = network(scene[0].images).flatten(2).mT, scene[0]
    rows = torch.arange(len(raw))
    middles = (drawings.boxes[:, :2] + drawings.boxes[:, 2:]) / 2
    column, row = (middles // CELL).long().unbind(1)
    cells = row * (SIDE // CELL) + column
    is_box = functional.one_hot(cells, raw.shape[1]).float()
    objectness = functional.binary_cross_entropy_with_logits(raw[..., 4], is_box, reduction="sum") / len(raw)
    edges, _, logits = raw[rows, cells].split([4, 1, ANSWERS], dim=1)
    places = middles_of_cells()[cells]
    reaches = torch.cat([places - drawings.boxes[:, :2], drawings.boxes[:, 2:] - places], dim=1)
    classes = functional.one_hot(drawings.classes, ANSWERS).float()
    of_classes = functional.binary_cross_entropy_with_logits(logits, classes, reduction="sum") / len(raw)
    return objectness + of_classes + functional.l1_loss(edges, (reaches / CELL).log())


def right_cell(network: nn.Module, scene: Scene) -> Tensor:
    """Return whether the most confident box lies at the object and has the class of the marker, (N,)."""
    drawings, candidates = scene[0], decode(network(scene[0].images))
    scores = candidates.scores("sigmoid").flatten(1)
    rows, surest = torch.arange(len(scores)), scores.argmax(dim=1)
    overlap = box_iou(candidates.boxes[rows, surest // ANSWERS], drawings.boxes).diagonal()
    return (surest % ANSWERS == drawings.classes) & (overlap >= HIT)
