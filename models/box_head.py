"""Reading the results of a detector, and selecting the candidates to show."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchvision.ops import batched_nms

from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.tasks.candidates import Candidates, Layout, Scoring


def as_it_is(raw: Any) -> Candidates:
    """Return the candidates that a module returns itself."""
    candidates: Candidates = raw
    return candidates


@dataclass(frozen=True)
class BoxHead:
    """Reads a detector's results and selects the boxes to show; the ``head`` of `wrap_model`.

    It shows at most `most` candidates with a score above `threshold`, except those that overlap a box of their class
    with a higher score by more than `overlap`.

    Attributes:
        decode: converts the module's output to `Candidates`; differentiable, with boxes in pixels of the model's input.
        scoring: converts logits to scores: ``sigmoid`` of each, times that of the objectness if there is one;
            ``geometric-mean``, the square root of that product; or ``softmax`` of classes that exclude each other.
        threshold, overlap: thresholds of the score, and of the intersection over union.
        most: maximum number of shown boxes per picture.
        background: the class of the background; None without one.
        moving: whether the order of the candidates depends on the picture, as with proposals. In modified pictures, the
            candidate that overlaps the explained box most then replaces it.
        preselected: number of candidates considered per level or class, if the detector limits it.
        least_side: smallest side of boxes that are shown, as a share of the picture's sides, once what lies beyond it
            is cut off.
        size: height and width of the model's input, in pixels; `wrap_model` knows it.
        shape: shape of the candidates in one tensor; `wrap_model` knows it.
    """

    decode: Callable[[Any], Candidates] = as_it_is
    scoring: Scoring = "sigmoid"
    threshold: float = 0.25
    overlap: float = 0.5
    most: int = 100
    background: int | None = None
    moving: bool = False
    preselected: tuple[Literal["level", "class"], int] | None = None
    least_side: float = 1e-4
    size: tuple[int, int] = (1, 1)
    shape: Layout | None = None

    def fitted(self, raw: Any, size: tuple[int, int]) -> Self:
        """Return the head of a module that returns this for a picture of height and width `size`.

        Raises:
            ModelOutputError: there are no candidates in it.
        """
        sized = replace(self, size=size)
        return replace(sized, shape=Layout.of(sized.candidates(raw)))

    @property
    def layout(self) -> Layout:
        """Layout of its candidates."""
        if self.shape is None:
            raise ModelOutputError("The head of a detector is known once `wrap_model` has run it.")
        return self.shape

    def candidates(self, raw: Any) -> Candidates:
        """Return the candidates in the module's result, with boxes as fractions of the model's input."""
        candidates = self.decode(raw)
        if not isinstance(candidates, Candidates) or not _fit(candidates):
            shapes = [tuple(part.shape) for part in tree_leaves(candidates) if isinstance(part, Tensor)]
            raise ModelOutputError(
                "`decode` must return Candidates(boxes, logits, objectness), float tensors of shape (N, A, 4), (N, A, "
                f"K) and (N, A), the last one optional; it returned {type(candidates).__name__} of {shapes}."
            )
        height, width = self.size
        return candidates._replace(boxes=candidates.boxes / candidates.boxes.new_tensor((width, height) * 2))

    def shown(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return which candidates (A, ...) of one picture are shown, (D,), and as which classes, in order of score."""
        scores = candidates.scores(self.scoring)
        if self.background is not None:
            scores[:, self.background] = 0
        numbers, labels = (scores > self.threshold).nonzero(as_tuple=True)
        boxes = candidates.boxes.clamp(0, 1)
        boxes = boxes[numbers, labels] if boxes.ndim == 3 else boxes[numbers]
        order = self._preselection(scores[numbers, labels], labels, candidates.levels, numbers)
        sides = boxes[order, 2:] - boxes[order, :2]
        order = order[(sides >= self.least_side).all(dim=1)]
        numbers, labels = numbers[order], labels[order]
        places = batched_nms(boxes[order], scores[numbers, labels], labels, self.overlap)[: self.most]
        return numbers[places], labels[places]

    def _preselection(self, scores: Tensor, labels: Tensor, levels: Tensor | None, numbers: Tensor) -> Tensor:
        """Return the places in scores (M,) of the best of each level or class."""
        if self.preselected is None:
            return torch.arange(len(scores), device=scores.device)
        by, most = self.preselected
        groups = labels if by == "class" or levels is None else levels[numbers]
        places = [(groups == group).nonzero()[:, 0] for group in torch.unique(groups)]
        best = [part[scores[part].topk(min(most, len(part))).indices] for part in places]
        return torch.cat([scores.new_zeros(0, dtype=torch.int64), *best])


def _fit(candidates: Candidates) -> bool:
    """Whether the shapes of candidates fit each other."""
    boxes, logits, objectness, *_ = candidates
    tensors = [part for part in candidates if part is not None]
    if not all(isinstance(part, Tensor) and part.is_floating_point() for part in tensors) or logits.ndim != 3:
        return False
    shapes = (*logits.shape[:2], 4), (*logits.shape, 4)
    return boxes.shape in shapes and (objectness is None or objectness.shape == logits.shape[:2])
