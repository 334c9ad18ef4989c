"""The base of perturbations: masked copies of a picture, their scores, superpixels."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.baselines import PLAIN, PlainBaseline, baseline_of
from seewhy.explainers.methods.explainer import Explainer, SignOption

Segmentation = Literal["slic", "quickshift", "grid"]

Score = Annotated[
    Literal["logit", "probability"],
    Field(description="Score to explain: the `logit` or the `probability` of the class."),
]

ROUNDING = 1e-6
"""Largest standard deviation of scores, as a share of the largest score, that counts as rounding."""

UNCHANGED = 2.0**-18
"""Largest change of a score, as a share of the values that it is a difference of, that counts as rounding: 32 units in
the last place."""


def certain_change(changes: Tensor, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return changes of scores as a share of values, (N,) float32; 0 where they may be mere rounding.

    Args:
        changes: (N,), the largest change of each picture.
        values: (N,), the largest magnitude of the values whose differences the changes are.
        dtype: dtype of the model's computation.
    """
    change = changes.detach().float().abs() / values.float().abs().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(change > max(UNCHANGED, 2 * torch.finfo(dtype).eps), change, 0.0)


@dataclass(frozen=True, kw_only=True)
class Masking(Explainer):
    """Base of methods that run masked copies of a picture."""

    sign: SignOption = "signed"
    baseline: Annotated[PlainBaseline, Field(description=f"Replacement of hidden pixels. {PLAIN}")] = "zero"

    @abstractmethod
    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the scores (R,) float32 of outputs (R, ...)."""

    def probe(
        self,
        question: Question,
        objective: Objective,
        counts: Sequence[int],
        masks: Callable[[int, slice], Tensor],
        are_shared: bool = False,
    ) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """Run masked copies of the pictures, as many at once as memory allows.

        Args:
            question: question of the pictures.
            objective: objective of the pictures.
            counts: number of masks of each picture.
            masks: returns, given a picture's index and a slice of its masks, these masks (R, H, W), float32 on the
                pictures' device: 1 keeps a pixel, 0 replaces it by the baseline.
            are_shared: whether all pictures have the same masks; several questions about one picture then share passes.

        Yields:
            A picture's index, a slice of its masks, these masks, and the scores (R,) float32.
        """
        images = question.images
        baseline = baseline_of(images, self.baseline, question.model).to(images.dtype)
        if are_shared and len(question.distinct_images) < len(images):
            for part in question.chunks(counts[0]):
                group = masks(0, part)
                outputs = question.predict(masked(images[0], baseline[0], group))
                for picture in range(len(images)):
                    owner = torch.full((len(group),), picture, device=images.device)
                    yield picture, part, group, self.scores(objective.rows(owner), outputs)
            return
        owners = torch.repeat_interleave(torch.arange(len(images)), torch.tensor(counts))
        starts = np.cumsum([0, *counts])
        # Passes are full: one may hold the last masks of a picture and the first ones of the next.
        for part in question.chunks(len(owners)):
            groups: list[tuple[int, slice, Tensor]] = []
            for picture in sorted(set(owners[part].tolist())):
                first, last = int(starts[picture]), int(starts[picture + 1])
                rows = slice(max(part.start, first) - first, min(part.stop, last) - first)
                groups.append((picture, rows, masks(picture, rows)))
            copies = torch.cat([masked(images[picture], baseline[picture], group) for picture, _, group in groups])
            scores = self.scores(objective.rows(owners[part].to(images.device)), question.predict(copies))
            start = 0
            for picture, rows, group in groups:
                yield picture, rows, group, scores[start : start + len(group)]
                start += len(group)

    def probe_all(
        self, question: Question, objective: Objective, counts: Sequence[int], masks: Callable[[int, slice], Tensor]
    ) -> list[Tensor]:
        """Return the scores of each picture's masked copies, float64 on the processor; see `probe`."""
        totals = [torch.zeros(count, dtype=torch.float64) for count in counts]
        for picture, rows, _, scores in self.probe(question, objective, counts, masks):
            totals[picture][rows] = scores.double().cpu()
        return totals


@dataclass(frozen=True, kw_only=True)
class Perturbation(Masking):
    """Base of methods that compare the scores of masked copies of a picture."""

    score: Score = "logit"

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the scores (R,) float32 of outputs (R, ...)."""
        return scored(self.score, objective, outputs)

    def answer_of_changes(self, changes: Tensor, objective: Objective, outputs: Tensor) -> Attribution:
        """Return the attribution of changes (N, H, W) of the score; zero where they may be mere rounding."""
        if self.score == "probability":
            largest = self.scores(objective, outputs).abs()
        else:
            largest = outputs.float().abs().flatten(1).amax(dim=1)
        change = certain_change(changes.abs().amax(dim=(1, 2)), largest, outputs.dtype)
        maps = self.project(torch.where((change > 0)[:, None, None], changes, 0.0)[:, None])
        return replace(self.answer(maps, objective, outputs), change=change)


def spread(scores: Tensor) -> Tensor:
    """Return the standard deviation of scores (R,) over the largest, a scalar; 0 where it may be mere rounding."""
    deviation = scores.std(correction=0)
    largest = scores.abs().max()
    return torch.where(deviation > ROUNDING * largest, deviation / largest, 0.0)


def masked(image: Tensor, baseline: Tensor, masks: Tensor) -> Tensor:
    """Return copies (R, C, H, W) of a picture, blended with a baseline, in the picture's dtype.

    Args:
        image: (C, H, W), or (R, C, H, W) for a picture of each mask.
        baseline: likewise, the values where the mask is 0.
        masks: (R, H, W), 0 to 1; 1 keeps the picture.
    """
    exact = widened(image)
    return torch.lerp(baseline.to(exact), exact, masks[:, None].to(exact)).to(image.dtype)


def cells_of(images: Tensor, cells: int) -> tuple[int, int]:
    """Return the rows and columns of a mask with this many cells along the shorter side of pictures (N, C, H, W)."""
    height, width = images.shape[2:]
    rows, columns = (max(1, round(cells * side / min(height, width))) for side in (height, width))
    return rows, columns


def superpixels(image: Tensor, kind: Segmentation, count: int) -> Tensor:
    """Cut a picture into regions of similar colour.

    SLIC (Achanta et al. 2012) and quickshift (Vedaldi, Soatto 2008) are scikit-image's. Their input is the model's,
    stretched to [0, 1] by its lowest and highest value.

    Args:
        image: (C, H, W).
        kind: slic, quickshift, or `grid`: rectangles, whatever the picture shows.
        count: about how many regions; quickshift finds its own number.

    Returns:
        (H, W) int64 on the picture's device: the region of each pixel, counted from 0.
    """
    height, width = image.shape[1:]
    if kind == "grid":
        rows = max(1, min(height, round((count * height / width) ** 0.5)))
        columns = max(1, min(width, round(count / rows)))
        down = torch.arange(height) * rows // height
        across = torch.arange(width) * columns // width
        cells: Tensor = (down[:, None] * columns + across).to(image.device)
        return cells
    from skimage.segmentation import quickshift, slic  # slow to import

    pixels = image.detach().double().cpu().permute(1, 2, 0).numpy()
    low, high = pixels.min(), pixels.max()
    pixels = np.ascontiguousarray((pixels - low) / (high - low) if high > low else np.zeros_like(pixels))
    coloured = pixels.shape[2] == 3
    if kind == "slic":
        segments = slic(pixels, n_segments=count, start_label=0, channel_axis=-1, convert2lab=coloured)
    else:
        segments = quickshift(  # type: ignore[no-untyped-call]
            pixels, kernel_size=4, max_dist=200, ratio=0.2, channel_axis=-1, convert2lab=coloured
        )
    labels = np.unique(segments, return_inverse=True)[1].reshape(height, width)  # numbered without gaps
    return torch.from_numpy(labels.astype(np.int64)).to(image.device)


def scored(score: Score, objective: Objective, outputs: Tensor) -> Tensor:
    """Return the scores (R,) float32 of outputs (R, ...), of their logits or their probabilities."""
    return objective.scores(objective.probabilities(outputs) if score == "probability" else outputs)
