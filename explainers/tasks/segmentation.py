"""Segmentation: a logit for each class at each position; a class's mean logit over a region is explained."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.ask import Ask, Targets
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.percent import likelihood, percent, points
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import ModelOutputError, TargetError
from seewhy.explainers.tasks.choices import PARTS, REGION_METHOD, Part
from seewhy.explainers.tasks.classification import OfClass, class_index, contrasts_of, mean_of_nearest
from seewhy.explainers.tasks.regions import Mask, Region, border, checked, island, resized

_FORMS = "label:NAME and pixel:X,Y, each optionally followed by :border or :picture, and masks"


@dataclass(frozen=True)
class Segmentation(Task):
    """Segmentation: finds the class of each position of a picture.

    Outputs are logits (N, K, H, W). Without a target, the class of the largest region is explained.

    Attributes:
        labels: one per class; empty for ``class 0``, ``class 1`` and so on.
    """

    labels: Sequence[str] = ()

    default_method: ClassVar[str] = REGION_METHOD

    @property
    def objectives(self) -> type["RegionObjective"]:
        """The kind of its objectives."""
        return RegionObjective

    def outputs(self, raw: Any) -> Tensor:
        """Return the logits (N, K, H, W) in the module's result: itself, ``["out"]``, or the only such tensor.

        From a single logit at each position, two classes get minus and plus a half: then the softmax of the second one
        is the sigmoid of the logit, and its lead over the first one is the logit itself.
        """
        logits = raw.get("out") if isinstance(raw, dict) else getattr(raw, "logits", None)
        tensors = [logits] if isinstance(logits, Tensor) else tree_flatten(raw)[0]
        grids = [value for value in tensors if isinstance(value, Tensor) and value.ndim == 4]
        if len(grids) != 1 or not grids[0].is_floating_point() or 0 in grids[0].shape:
            raise ModelOutputError(
                f"Expected logits of shape (N, K, H, W) from the model, found {len(grids)} such tensors in its "
                f"{type(raw).__name__}; wrap the model so that it returns them, alone or as ['out']."
            )
        (grid,) = grids
        return torch.cat([-grid / 2, grid / 2], dim=1) if grid.shape[1] == 1 else grid

    def objective(self, outputs: Tensor, ask: Ask) -> "RegionObjective":
        """Return the checked regions to explain."""
        is_shared = outputs.stride(0) == 0  # by several questions about one picture
        predicted = outputs.detach()[: 1 if is_shared else None].argmax(dim=1).expand(len(outputs), -1, -1)
        regions = ask.in_pictures(len(outputs), Region)
        pairs = [self._resolved(region, classes) for region, classes in zip(regions, predicted, strict=True)]
        weights = torch.stack([mask / mask.sum() for _, mask in pairs]).to(torch.float32)
        targets = torch.tensor([label for label, _ in pairs], device=outputs.device)
        return RegionObjective(targets, contrasts_of(ask, targets, outputs.shape[1]), weights=weights)

    def _resolved(self, region: Any, predicted: Tensor) -> tuple[int, Tensor]:
        """Return the class of a target or a number, and its averaged positions (H, W), given predicted classes (H,
        W)."""
        region = region if isinstance(region, Region) else Region(region)
        label, mask = self._region(region, predicted)
        if region.part == "picture":
            return label, torch.ones_like(mask)
        return label, border(mask) if region.part == "border" else mask

    def _region(self, region: Region, predicted: Tensor) -> tuple[int, Tensor]:
        """Return the class of a target and its whole region (H, W), given the predicted classes (H, W)."""
        if region.pixel is not None:
            return island(region.pixel, predicted)
        where = None if region.mask is None else resized(region.mask, predicted)
        label = region.label
        if label is None:
            label = int((predicted.flatten() if where is None else predicted[where]).bincount().argmax())
        if where is not None:
            return label, where
        where = predicted == label
        if region.part != "picture" and not where.any():
            present = ", ".join(repr(self._label(index)) for index in sorted(set(predicted.flatten().tolist())))
            raise TargetError(
                f"The model predicts {self._label(label)!r} nowhere in this picture, only {present}; name one of "
                "these, or append :picture for the mean over all positions."
            )
        return label, where

    def target(self, target: Any, mask: Mask | None = None) -> Region:
        """Return the region that a user names.

        A label or an index (``label:NAME`` too), ``pixel:X,Y`` in pixels of the picture, or a mask, an array (H, W) of
        the picture's size, true in the region. A text may end in ``:border`` or ``:picture``, the part over which
        logits are averaged; alone, these apply to the largest region.

        Args:
            target: as above; empty for the class of most of the mask, or of the picture.
            mask: the region where the class's logits are averaged, in place of the predicted one.

        Raises:
            TargetError: there is no such class, or the target has another form.
            MaskError: the mask is empty, or not a mask.
        """
        if isinstance(target, np.ndarray | Tensor):
            return self.target("", np.asarray(target))
        region = target if isinstance(target, Region) else self._named(target)
        if mask is None:
            return region
        if region.pixel is not None:
            raise TargetError(
                f"{target!r} and the mask are two different regions; with a mask, name only a class or nothing."
            )
        return replace(region, mask=checked(mask))

    def _named(self, target: int | str) -> Region:
        """Return the region that a text or a number names."""
        if not isinstance(target, str):
            return Region(class_index(target, self.labels), name=target)
        name, part = _parted(target.strip(), self.labels)
        if name.startswith("pixel:"):
            return Region(None, part, pixel=_pixel(name), name=target)
        try:
            label = class_index(name.removeprefix("label:"), self.labels) if name else None
        except TargetError as error:
            raise TargetError(f"{error} Targets of a segmenter are {_FORMS}.") from None
        return Region(label, part, name=target)

    def describe(self, outputs: Tensor, targets: Sequence[Any] = (), top: int = 5) -> "tuple[RegionPrediction, ...]":
        """Return the targets of a picture with logits (K, H, W), and then the `top` classes of the largest regions."""
        logits = outputs.detach().float()
        predicted = logits.argmax(dim=0)
        areas = predicted.flatten().bincount(minlength=len(logits)).double() / predicted.numel()
        largest = [int(index) for index in areas.argsort(descending=True, stable=True)[:top] if areas[index] > 0]
        rows: list[tuple[int, Tensor]] = []
        for target in targets:
            # A contrast is a number after its target, and is read in the same region.
            row = (int(target), rows[0][1]) if rows and not isinstance(target, Region) else None
            rows.append(row or self._resolved(target, predicted))
        rows += [(index, predicted == index) for index in largest]
        return tuple(
            RegionPrediction(
                index,
                self._label(index),
                area=float((mask & (predicted == index)).double().mean()),
                logit=float(logits[index][mask].mean()),
            )
            for index, mask in rows
        )

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether logits (N, K, H, W) look like the result of a softmax."""
        values = outputs.float()
        return bool(((values >= 0) & (values <= 1)).all()) and bool((values.sum(dim=1) - 1).abs().max() < 1e-2)

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"class {index}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RegionObjective(Objective):
    """For each picture the mean logit of a class over a region, or its lead over that of another class there.

    Attributes:
        weights: (N, H, W) float32, of each position; they sum to one.
    """

    weights: Tensor

    @property
    def region(self) -> Tensor:
        """(N, H, W) bool: the positions that count."""
        return self.weights > 0

    def loss(self, outputs: Tensor, before: Tensor) -> Tensor:
        """Return (N,) float32: the mean over the region of how much the probability has fallen at each position."""
        fall = self._likely(before) - self._likely(outputs)
        return (fall.clamp_min(0) * self.weights).sum(dim=(1, 2))

    @property
    def ask_targets(self) -> Targets:
        """The same classes over the same regions."""
        masks = self.region.cpu().numpy()
        return tuple(Region(label, mask=mask) for label, mask in zip(self.targets.tolist(), masks, strict=True))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the mean logit of each target in its region, minus that of its contrast."""
        return (self._values(outputs) * self.weights).sum(dim=(1, 2))

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (N, K, H, W) of logits (N, K, H, W)."""
        return outputs.float().softmax(dim=1)

    @property
    def are_probabilities(self) -> Tensor:
        """(N,) bool: means over a region, except leads over a contrast."""
        return ~self.is_contrasted

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of `probabilities`."""
        return outputs.float().log_softmax(dim=1)

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,): the mean logit, over the region, of the `count` other classes nearest to the target there."""
        means = torch.einsum("nkhw,nhw->nk", outputs.float(), self.weights)
        return mean_of_nearest(means, self.targets, count)

    def _likely(self, outputs: Tensor) -> Tensor:
        """Return (N, H, W): the probability of each target at each position, minus that of its contrast."""
        return self._values(self.probabilities(outputs))

    def _values(self, outputs: Tensor) -> Tensor:
        """Return (N, H, W) float32: the value of each target in outputs (N, K, H, W), minus that of its contrast."""
        rows = torch.arange(len(outputs), device=outputs.device)
        values = outputs[rows, self.targets].float()
        if self.against is None:
            return values
        contrasts = outputs[rows, self.against.clamp_min(0)].float()
        return values - torch.where(self.is_contrasted[:, None, None], contrasts, 0)


@dataclass(frozen=True)
class RegionPrediction(OfClass):
    """One class, and its area.

    Attributes:
        index: class index.
        label: class label.
        area: share of the model's input that the class covers within the region, in [0, 1].
        logit: mean over the region.
    """

    probability: ClassVar[None] = None  # each position has its own

    index: int
    label: str
    area: float
    logit: float

    @property
    def text(self) -> str:
        """The area in percent."""
        return f"on {percent(self.area)}"

    def reading(self, score: float) -> str:
        """Return a mean probability in percent."""
        return likelihood(score)

    def lead(self, score: float) -> str:
        """Return a difference of probabilities in percentage points."""
        return points(score)

    def change(self, before: Self) -> str:
        """Return the change of the mean logit."""
        return f"{self.logit - before.logit:+.3g}"


def _parted(target: str, labels: Sequence[str]) -> tuple[str, Part]:
    """Return a target, and the part over which its logits are averaged; a whole label goes before a label with a
    part."""
    front, colon, back = target.rpartition(":")
    name = target.removeprefix("label:").casefold()
    is_label = front == "label" or name in (label.casefold() for label in labels)
    for part in PARTS if colon and not is_label else ():
        if part == back:
            return front, part
    return target, "region"


def _pixel(name: str) -> tuple[float, float]:
    match = re.fullmatch(r"pixel:(\d{1,6}),(\d{1,6})", name)
    if match is None:
        raise TargetError(f"{name!r} is not a pixel of the picture; give pixel:X,Y with two integers of 0 or more.")
    return float(match[1]), float(match[2])
