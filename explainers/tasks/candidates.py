"""Candidates of a detector: boxes and their logits before any threshold or suppression, and one tensor of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Scoring = Literal["softmax", "sigmoid", "geometric-mean"]
"""From logits to scores: the softmax of classes that exclude each other; the sigmoid of each, times that of the
objectness where there is one; or the square root of that product."""


class Candidates(NamedTuple):
    """The candidate boxes of a detector, before thresholding and suppression.

    Attributes:
        boxes: (N, A, 4), or (N, A, K, 4) if each class has its own box: left, top, right, bottom.
        logits: (N, A, K), raw logits of the classes.
        objectness: (N, A), raw logit for an object of any class; None if the detector has none.
        masks: (N, A, K), the mean logit of a shown box's mask over its own pixels, and 0 for other boxes; None without
            masks.
        levels: (N, A), the number of the feature map that a box is read from; None if that does not matter.
    """

    boxes: Tensor
    logits: Tensor
    objectness: Tensor | None = None
    masks: Tensor | None = None
    levels: Tensor | None = None

    def boxes_of(self, label: int) -> Tensor:
        """Return the boxes (..., A, 4) of a class."""
        return self.boxes[..., label, :] if self.boxes.ndim > self.logits.ndim else self.boxes

    def scores(self, scoring: Scoring) -> Tensor:
        """Return the scores (..., A, K) in [0, 1]; 0 for boxes without an area, which stand for no candidate."""
        if scoring == "softmax":
            scores = self.logits.softmax(dim=-1)
        else:
            scores = self.logits.sigmoid()
            if self.objectness is not None:
                scores = scores * self.objectness.sigmoid()[..., None]
            scores = scores.sqrt() if scoring == "geometric-mean" else scores
        areas = areas_of(self.boxes)
        return torch.where((areas if self.boxes.ndim > self.logits.ndim else areas[..., None]) > 0, scores, 0)


@dataclass(frozen=True)
class Layout:
    """The layout of a picture's candidates in one tensor (A, F): each part takes some columns.

    Attributes:
        classes: number K of classes.
        per_class: whether each class has a box of its own.
        objectness, masks, levels: whether the candidates have them.
    """

    classes: int
    per_class: bool = False
    objectness: bool = False
    masks: bool = False
    levels: bool = False

    @classmethod
    def of(cls, candidates: Candidates) -> "Layout":
        """Return the layout for candidates like these."""
        boxes, logits, *optional = candidates
        return cls(logits.shape[-1], boxes.ndim > logits.ndim, *(part is not None for part in optional))

    @property
    def columns(self) -> dict[str, int]:
        """The number of columns of each part, in their order."""
        columns = {"boxes": 4 * (self.classes if self.per_class else 1), "logits": self.classes}
        further = {"objectness": 1, "masks": self.classes, "levels": 1}
        return columns | {name: count for name, count in further.items() if getattr(self, name)}

    def pack(self, candidates: Candidates) -> Tensor:
        """Return the candidates as one tensor (N, A, F), with their graph."""
        parts = candidates._asdict()
        return torch.cat([parts[name].reshape(*candidates.logits.shape[:2], -1) for name in self.columns], dim=2)

    def unpack(self, outputs: Tensor) -> Candidates:
        """Return the candidates in a tensor (..., A, F), as views of it."""
        columns = self.columns
        parts: dict[str, Any] = dict(zip(columns, torch.split(outputs, list(columns.values()), dim=-1), strict=True))
        if self.per_class:
            parts["boxes"] = parts["boxes"].unflatten(-1, (self.classes, 4))
        for name in {"objectness", "levels"} & parts.keys():
            parts[name] = parts[name][..., 0]
        return Candidates(**parts)

    def replaced(self, outputs: Tensor, function: Callable[[Candidates], Tensor]) -> Tensor:
        """Return outputs (..., A, F) with other numbers in place of the logits."""
        columns = self.columns
        parts = dict(zip(columns, torch.split(outputs, list(columns.values()), dim=-1), strict=True))
        parts["logits"] = function(self.unpack(outputs))
        return torch.cat(list(parts.values()), dim=-1)


class Detector(Protocol):
    """The head of a detector: reads its results and selects the candidates to show; see `models.detectors`."""

    @property
    def layout(self) -> Layout:
        """Layout of its candidates."""

    @property
    def scoring(self) -> Scoring:
        """From logits to scores."""

    @property
    def threshold(self) -> float:
        """Minimum score of a shown candidate."""

    @property
    def background(self) -> int | None:
        """The class of the background; None without one."""

    @property
    def moving(self) -> bool:
        """Whether the candidates, such as proposals, depend on the picture, so that their order says nothing."""

    def candidates(self, raw: Any) -> Candidates:
        """Return the candidates in the module's result, with boxes as fractions of the model's input.

        Raises:
            ModelOutputError: there are none.
        """

    def shown(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return which candidates (A, ...) of one picture are shown, (D,), and as which classes, in order of score."""


def areas_of(boxes: Tensor) -> Tensor:
    """Return the areas (...) of boxes (..., 4); 0 of those whose edges are exchanged."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp_min(0)
    return sides[..., 0] * sides[..., 1]


def overlaps(boxes: Tensor, references: Tensor) -> Tensor:
    """Return the intersection over union of boxes (..., 4) and references (..., 4)."""
    corners = torch.maximum(boxes[..., :2], references[..., :2]), torch.minimum(boxes[..., 2:], references[..., 2:])
    common = areas_of(torch.cat(corners, dim=-1))
    union = areas_of(boxes) + areas_of(references) - common
    return torch.where(union > 0, common / union, 0)
